// SplitLength: the prompt length from which a pair of workers costs clients less than the decode
// worker alone. Pure; any thread.
//
// The costs are those by which a router in mode adaptive chooses (scheduler/path_choice.h): a pair
// takes the longer of computing the prompt and sending its KV with the fixed state, the decode
// worker alone makes each of its streams wait for the prompt. Nobody waits for other prompts, no
// cache has the prompt's beginning, and the decode worker runs the plan's mean batch.
#ifndef BATON_PLAN_SPLIT_LENGTH_H_
#define BATON_PLAN_SPLIT_LENGTH_H_

#include <cstdint>

#include "src/plan/cluster_plan.h"

namespace baton::plan {

// See the file comment.
struct SplitLength {
  bool is_known = false;  // the link is
  // Prompts of so many tokens and all longer ones are better split, as far as whole blocks tell; 0
  // = the longest is not.
  uint32_t from_tokens = 0;
};

// Looks at prompts of up to `max_tokens`, a block apart.
SplitLength FindSplitLength(const PlanInput& input, const ClusterPlan& plan, uint32_t max_tokens);

}  // namespace baton::plan

#endif  // BATON_PLAN_SPLIT_LENGTH_H_
