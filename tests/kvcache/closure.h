// Visits every state of a ClusterWorld that can be reached, breadth first, and proves that from
// each one, without any further fault, all can come to rest.
//
// States are known by 128-bit hashes of all that decides what happens next: with n states two of
// them are taken for one with a chance below n * n / 2^129.
#ifndef BATON_TESTS_KVCACHE_CLOSURE_H_
#define BATON_TESTS_KVCACHE_CLOSURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/kvcache/cluster_world.h"

namespace baton::kv {

// The result of an exploration.
struct Closure {
  bool closed = false;  // nothing new is left; else the limit was reached or a bug was found
  uint64_t states = 0;
  uint64_t transitions = 0;
  uint64_t at_rest = 0;
  uint64_t done = 0;  // at rest, and all clients have their whole answers
  uint32_t depth = 0;
  uint64_t peak_frontier = 0;
  double seconds = 0;
  std::string bug;  // empty = none; else what, where and the steps that lead there
};

// Stops at the first bug, or beyond `max_states`.
Closure ExploreToClosure(const ClusterShape& shape, uint64_t max_states);

}  // namespace baton::kv

#endif  // BATON_TESTS_KVCACHE_CLOSURE_H_
