#include "src/worker/prefix_teller.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace baton {

void PrefixTeller::Take(const PrefixJournal::News& news) {
  if (wants_held_ || news.lost) {
    wants_held_ = false;
    reset_ = true;
    waiting_.clear();
    for (const ChainLink& link : news.held) waiting_.push_back({.link = link, .added = true});
    return;
  }
  if (waiting_.size() + news.changes.size() > kMaxWaitingChanges) {
    waiting_.clear();
    reset_ = false;
    wants_held_ = true;
    return;
  }
  waiting_.insert(waiting_.end(), news.changes.begin(), news.changes.end());
}

v1::PrefixEvents PrefixTeller::NextBatch() {
  const size_t num_changes = std::min(waiting_.size(), kMaxBatchChanges);
  std::vector<ChainLink> links;
  links.reserve(num_changes);
  std::string removed((num_changes + 7) / 8, '\0');
  for (size_t i = 0; i < num_changes; ++i) {
    const PrefixChange& change = waiting_[i];
    links.push_back(change.link);
    if (!change.added) removed[i / 8] = static_cast<char>(removed[i / 8] | 1 << (i % 8));
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(num_changes));
  while (!removed.empty() && removed.back() == '\0') removed.pop_back();
  v1::PrefixEvents events;
  events.set_first_sequence(std::exchange(next_sequence_, next_sequence_ + num_changes));
  events.set_reset(std::exchange(reset_, false));
  events.set_links(ChainToBytes(links));
  events.set_removed(removed);
  return events;
}

}  // namespace baton
