// PrefixTeller: what one router is still to hear of this worker's prefix cache, as numbered batches
// (PrefixEvents of worker.proto). PrefixCopy: what the cache holds, for routers that know nothing.
// Pure; the registration thread.
#ifndef BATON_WORKER_PREFIX_TELLER_H_
#define BATON_WORKER_PREFIX_TELLER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "baton/v1/worker.pb.h"
#include "kvcache/prefix_listener.h"

namespace baton::worker {

// The links that a prefix cache holds, as its journal tells.
class PrefixCopy {
 public:
  void Apply(std::span<const kv::PrefixChange> changes);
  // Beginnings of prompts first: a router that has no room for all of it keeps what comes first,
  // and only a prefix without a hole is worth anything. Equal holdings give equal orders. O(held
  // log held).
  std::vector<kv::PrefixChange> InOrder() const;
  size_t size() const { return ordinals_.size(); }

 private:
  absl::flat_hash_map<kv::ChainLink, uint32_t> ordinals_;
};

// One numbered batch of changes.
struct PrefixNews {
  uint64_t first_sequence = 0;  // of its first change
  bool reset = false;           // the router is to forget what it knew
  std::vector<kv::PrefixChange> changes;
};
void ToProto(const PrefixNews& news, v1::PrefixEvents* out);

// See the file comment.
//
// Invariants
//  1. The batches given since the last one with `reset` number every change without a gap.
//  2. At most twice what the cache holds and limits::kMaxPrefixChanges wait: a router that takes
//  less hears
//     everything anew instead.
class PrefixTeller {
 public:
  // The router knows nothing (a new lease) or lost count: it is to hear everything anew.
  void TellAll() { tell_all_ = true; }
  // Takes the changes, and all that is held after them. TellAll comes into effect here.
  void Take(std::span<const kv::PrefixChange> changes, const PrefixCopy& held);

  bool has_batch() const { return reset_ || !waiting_.empty(); }
  // With has_batch(): the next one, at most limits::kMaxPrefixChanges changes.
  PrefixNews NextNews();
  v1::PrefixEvents NextBatch();

 private:
  bool tell_all_ = false;
  bool reset_ = false;  // the next batch begins anew
  uint64_t next_sequence_ = 1;
  std::deque<kv::PrefixChange> waiting_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_PREFIX_TELLER_H_
