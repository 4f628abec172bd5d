// An objective of the inter-token latency, and the parts of it that a worker's steps may take.
// Pure; any thread.
//
// The objective is one of slow gaps (99 of 100), and steps are planned by their mean time. Decode
// rows therefore leave a quarter of it: for a chunk of a prompt beside them, and for steps that the
// system holds up. A step with a chunk leaves an eighth, for a prediction that is short.
#ifndef BATON_SCHEDULER_ITL_OBJECTIVE_H_
#define BATON_SCHEDULER_ITL_OBJECTIVE_H_

#include <cstdint>

namespace baton::scheduler {

// The mean time of a step with decode rows alone.
inline int64_t RowsObjectiveUs(int64_t itl_objective_us) { return itl_objective_us * 3 / 4; }
// The predicted time of a step with a chunk beside decode rows.
inline int64_t ChunksObjectiveUs(int64_t itl_objective_us) { return itl_objective_us * 7 / 8; }

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_ITL_OBJECTIVE_H_
