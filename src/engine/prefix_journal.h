// PrefixJournal: carries the changes of a PrefixIndex from the engine thread, which tells it, to
// any one other thread, which takes them. Thread-safe.
//
// Invariants
//  1. Whoever applies all that was taken, in order, to an empty set has the set of links that the
//     index held at the last Take.
//  2. The engine thread waits for nothing but a Take that exchanges two pointers, and allocates
//     only while a reader sleeps: at most 4 changes for each block of the arena are kept; then
//     those of one link are merged into one, which leaves 2 for each block.
#ifndef BATON_ENGINE_PREFIX_JOURNAL_H_
#define BATON_ENGINE_PREFIX_JOURNAL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvcache/prefix_listener.h"
#include "src/base/mutex.h"

namespace baton::engine {

// See the file comment.
class PrefixJournal final : public kv::PrefixListener {
 public:
  // Makes the journal of an arena of `num_blocks` >= 1.
  explicit PrefixJournal(uint32_t num_blocks);

  void OnPrefixChange(const kv::PrefixChange& change) override;

  // Replaces what `changes` held by the changes since the last call. Its capacity, which this
  // raises first, goes to the engine thread.
  void Take(std::vector<kv::PrefixChange>* changes);

 private:
  void Merge() BATON_REQUIRES(mutex_);

  const size_t max_pending_;
  Mutex mutex_;
  std::vector<kv::PrefixChange> pending_ BATON_GUARDED_BY(mutex_);
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_PREFIX_JOURNAL_H_
