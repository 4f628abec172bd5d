// PrefixFeed: what one router is still to hear of a simulated worker's prefix cache, as numbered
// batches; the rules are those of PrefixTeller (src/worker). One thread.
#ifndef BATON_SIM_PREFIX_FEED_H_
#define BATON_SIM_PREFIX_FEED_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "src/base/limits.h"
#include "src/router/worker_messages.h"

namespace baton::sim {

// The links that a prefix cache holds, with their places in their prompts.
using HeldLinks = std::map<kv::ChainLink, uint32_t>;

// See the file comment.
class PrefixFeed {
 public:
  // The router knows nothing, or lost count.
  void TellAll() { tell_all_ = true; }

  // Takes the changes, and all that is held after them.
  void Take(std::span<const kv::PrefixChange> changes, const HeldLinks& held) {
    if (!tell_all_ &&
        waiting_.size() + changes.size() <= 2 * held.size() + limits::kMaxPrefixChanges) {
      waiting_.insert(waiting_.end(), changes.begin(), changes.end());
      return;
    }
    tell_all_ = false;
    reset_ = true;
    waiting_.clear();
    for (const auto& [link, ordinal] : held) waiting_.push_back({link, true, ordinal});
    // Beginnings of prompts first.
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [](const auto& a, const auto& b) { return a.ordinal < b.ordinal; });
  }

  bool has_batch() const { return reset_ || !waiting_.empty(); }
  router::PrefixBatch NextBatch() {
    router::PrefixBatch batch;
    const size_t num_changes = std::min(waiting_.size(), limits::kMaxPrefixChanges);
    const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(num_changes);
    batch.changes.assign(waiting_.begin(), end);
    waiting_.erase(waiting_.begin(), end);
    batch.first_sequence = std::exchange(next_sequence_, next_sequence_ + num_changes);
    batch.reset = std::exchange(reset_, false);
    return batch;
  }

 private:
  bool tell_all_ = true;
  bool reset_ = false;
  uint64_t next_sequence_ = 1;
  std::deque<kv::PrefixChange> waiting_;
};

}  // namespace baton::sim

#endif  // BATON_SIM_PREFIX_FEED_H_
