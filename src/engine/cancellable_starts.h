// CancellableStarts: the starts of one session that may still run at its engine. Only a cancel of
// one of them reaches the engine. The engine's inbox refuses no cancel, so this class keeps a flood
// of cancels away from it. Not thread-safe.
//
// Invariants
//  1. Each start lets at most one cancel through.
//  2. An attempt that runs can be cancelled, also after other attempts of its request were refused.
#ifndef BATON_ENGINE_CANCELLABLE_STARTS_H_
#define BATON_ENGINE_CANCELLABLE_STARTS_H_

#include "absl/container/btree_set.h"

#include "src/engine/engine_types.h"

namespace baton::engine {

// See the file comment.
class CancellableStarts {
 public:
  // Call it before the engine may report the end of the start. False: it was noted before.
  bool Note(const RequestKey& key) { return starts_.insert(key).second; }
  // Forgets a refused start, and no other start of its request.
  void Forget(const RequestKey& key) { starts_.erase(key); }
  // Notes a state that the engine reported. An attempt that ended had replaced all earlier ones; a
  // rejected attempt may have replaced none.
  void OnState(const RequestKey& key, RequestState state) {
    if (state == RequestState::kRejected) {
      Forget(key);
    } else if (IsTerminal(state)) {
      (void)ForgetUpTo(key);
    }
  }
  // True when this or an earlier attempt may run. The caller then sends the cancel to the engine.
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
