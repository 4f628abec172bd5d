// WorkerRole: what a worker does with a prompt that is computed.
#ifndef BATON_BASE_WORKER_ROLE_H_
#define BATON_BASE_WORKER_ROLE_H_

#include <cstdint>

namespace baton {

enum class WorkerRole : uint8_t {
  kPrefill = 0,  // the prompt waits for the hand-off to release it
  kDecode = 1,   // decodes; computes short or preempted prompts itself
};
inline const char* WorkerRoleName(WorkerRole role) {
  return role == WorkerRole::kPrefill ? "prefill" : "decode";
}

}  // namespace baton

#endif  // BATON_BASE_WORKER_ROLE_H_
