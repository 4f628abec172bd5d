// PrefixJournal: what changed in a PrefixIndex, for those who keep a copy of it elsewhere (the
// routers). The engine thread tells it; any one other thread takes. Thread-safe.
//
// Invariants
//  1. Take gives every change once, in order, or says that some were lost; held() then has the
//     whole truth.
//  2. At most max_pending changes wait: a reader that sleeps costs no more memory, it loses them.
//  3. OnPrefixChange allocates nothing.
#ifndef BATON_ENGINE_PREFIX_JOURNAL_H_
#define BATON_ENGINE_PREFIX_JOURNAL_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_set.h"

#include "kvcache/prefix_listener.h"

namespace baton {

// See the file comment.
class PrefixJournal final : public PrefixListener {
 public:
  // Of an arena of `num_blocks`; at most `max_pending` >= 1 changes wait to be taken.
  PrefixJournal(uint32_t num_blocks, size_t max_pending);
  // A journal of twice the arena: more changes than that are longer than the truth.
  explicit PrefixJournal(uint32_t num_blocks)
      : PrefixJournal(num_blocks, size_t{2} * num_blocks + 1) {}

  void OnPrefixChange(const PrefixChange& change) override;

  // Changes since the last call.
  struct News {
    bool lost = false;  // some are missing: `changes` is empty, the copy must begin anew
    std::vector<PrefixChange> changes;
    std::vector<ChainLink> held;  // after `changes`, in no order; with `want_held` or `lost`
  };
  News Take(bool want_held);

 private:
  std::mutex mutex_;
  const size_t max_pending_;
  absl::flat_hash_set<ChainLink> held_;
  std::vector<PrefixChange> pending_;
  bool lost_ = false;
};

}  // namespace baton

#endif  // BATON_ENGINE_PREFIX_JOURNAL_H_
