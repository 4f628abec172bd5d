// The kinds of the actions that one event of a hand-off led to.
#ifndef BATON_TESTS_KVCACHE_ACTION_KINDS_H_
#define BATON_TESTS_KVCACHE_ACTION_KINDS_H_

#include <vector>

#include "kvcache/handoff_action.h"

namespace baton::kv {

inline std::vector<HandoffActionKind> Kinds(const HandoffActions& actions) {
  std::vector<HandoffActionKind> kinds;
  for (const HandoffAction& action : actions) kinds.push_back(action.kind);
  return kinds;
}

}  // namespace baton::kv

#endif  // BATON_TESTS_KVCACHE_ACTION_KINDS_H_
