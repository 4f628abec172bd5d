#include "src/engine/prefix_journal.h"

#include <algorithm>

#include "src/base/limits.h"

namespace baton::engine {

using kv::PrefixChange;
using limits::kMaxChangesPerBlock;

namespace {

// The changes that a reader which comes every heartbeat finds; memory for more is allocated once.
constexpr size_t kUsualChanges = 4096;

}  // namespace

PrefixJournal::PrefixJournal(uint32_t num_blocks) : max_pending_(kMaxChangesPerBlock * num_blocks) {
  pending_.reserve(std::min(max_pending_, kUsualChanges));
}

void PrefixJournal::OnPrefixChange(const PrefixChange& change) {
  MutexLock lock(mutex_);
  if (pending_.size() == max_pending_) Merge();
  pending_.push_back(change);
}

// The changes of one link alternate. An even number of them changes nothing; of an odd number the
// last one is what is left. Left are at most the links that the reader knows (removed) and those
// that the index holds now (added), so at most twice the arena.
void PrefixJournal::Merge() {
  std::stable_sort(pending_.begin(), pending_.end(),
                   [](const PrefixChange& a, const PrefixChange& b) { return a.link < b.link; });
  size_t num_left = 0;
  for (size_t begin = 0; begin < pending_.size();) {
    size_t end = begin + 1;
    while (end < pending_.size() && pending_[end].link == pending_[begin].link) ++end;
    if ((end - begin) % 2 == 1) pending_[num_left++] = pending_[end - 1];
    begin = end;
  }
  pending_.resize(num_left);
}

void PrefixJournal::Take(std::vector<PrefixChange>* changes) {
  changes->clear();
  changes->reserve(std::min(max_pending_, kUsualChanges));  // the engine thread writes into it next
  MutexLock lock(mutex_);
  changes->swap(pending_);
}

}  // namespace baton::engine
