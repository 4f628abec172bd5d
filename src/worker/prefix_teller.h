// PrefixTeller: what one router is still to hear of this worker's prefix cache, as numbered batches
// (PrefixEvents of worker.proto). Pure; the registration thread.
//
// Invariants
//  1. The batches given since the last one with `reset` number every change without a gap.
//  2. At most kMaxWaitingChanges wait: a router that takes none hears everything anew instead.
#ifndef BATON_WORKER_PREFIX_TELLER_H_
#define BATON_WORKER_PREFIX_TELLER_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "baton/v1/worker.pb.h"
#include "src/engine/prefix_journal.h"

namespace baton {

// See the file comment.
class PrefixTeller {
 public:
  static constexpr size_t kMaxBatchChanges = 4096;
  static constexpr size_t kMaxWaitingChanges = size_t{1} << 20;  // 24 MiB; or what a cache holds

  // The router knows nothing (a new lease) or lost count: begins anew with the next news.
  void TellAll() { wants_held_ = true; }
  // The next news must say what is held.
  bool wants_held() const { return wants_held_; }
  // Takes what changed since the news before; with `held` if wants_held().
  void Take(const PrefixJournal::News& news);

  bool has_batch() const { return reset_ || !waiting_.empty(); }
  // With has_batch(): the next one, at most kMaxBatchChanges changes.
  v1::PrefixEvents NextBatch();

 private:
  bool wants_held_ = false;
  bool reset_ = false;  // the next batch begins anew
  uint64_t next_sequence_ = 1;
  std::deque<PrefixChange> waiting_;
};

}  // namespace baton

#endif  // BATON_WORKER_PREFIX_TELLER_H_
