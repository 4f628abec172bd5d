// CancellableStarts: the starts of one session that may still run at its engine. A cancel reaches
// the engine for these alone: its inbox never refuses one, so that no flood of them, of unknown
// requests or of one, may get there. Not thread-safe.
//
// Invariants
//  1. Each start lets at most one cancel through.
//  2. An attempt that runs can be cancelled, whatever is refused of others of its request.
#ifndef BATON_ENGINE_CANCELLABLE_STARTS_H_
#define BATON_ENGINE_CANCELLABLE_STARTS_H_

#include "absl/container/btree_set.h"

#include "src/engine/engine_types.h"

namespace baton::engine {

// See the file comment.
class CancellableStarts {
 public:
  // Before the engine may report its end. False when it was noted before.
  bool Note(const RequestKey& key) { return starts_.insert(key).second; }
  // This one was refused; others of its request are not concerned.
  void Forget(const RequestKey& key) { starts_.erase(key); }
  // Notes a state that the engine reported. An attempt that ends has taken the place of all before
  // it; a rejected one may have left them alone.
  void OnState(const RequestKey& key, RequestState state) {
    if (state == RequestState::kRejected) {
      Forget(key);
    } else if (IsTerminal(state)) {
      (void)ForgetUpTo(key);
    }
  }
  // True when an attempt up to this one may run: the engine is to hear of the cancel.
  bool TakeCancel(const RequestKey& key) { return ForgetUpTo(key); }

 private:
  bool ForgetUpTo(const RequestKey& key) {
    const auto first = starts_.lower_bound(RequestKey{key.uid, 0});
    const auto end = starts_.upper_bound(key);
    const bool any = first != end;
    starts_.erase(first, end);
    return any;
  }

  absl::btree_set<RequestKey> starts_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_CANCELLABLE_STARTS_H_
