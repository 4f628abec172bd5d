#include "src/engine/prefix_journal.h"

#include <utility>

namespace baton {

PrefixJournal::PrefixJournal(uint32_t num_blocks, size_t max_pending) : max_pending_(max_pending) {
  held_.reserve(num_blocks);
  pending_.reserve(max_pending);
}

void PrefixJournal::OnPrefixChange(const PrefixChange& change) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (change.added) {
    held_.insert(change.link);
  } else {
    held_.erase(change.link);
  }
  if (lost_) return;
  if (pending_.size() < max_pending_) {
    pending_.push_back(change);
  } else {
    lost_ = true;
    pending_.clear();
  }
}

PrefixJournal::News PrefixJournal::Take(bool want_held) {
  News news;
  std::lock_guard<std::mutex> lock(mutex_);
  news.lost = std::exchange(lost_, false);
  news.changes.assign(pending_.begin(), pending_.end());
  pending_.clear();
  if (want_held || news.lost) news.held.assign(held_.begin(), held_.end());
  return news;
}

}  // namespace baton
