// RequestLifetime: when things happened to one request, seen from its router, and the stages that
// follow from it. A value; one thread at a time. Times are microseconds of one Clock.
//
// Invariants
//  1. Each stage runs from the end of the one before to its own end; a stage whose end has already
//     passed, or is not known, is 0. No stage is negative.
//  2. The stages sum to EndToEndUs, whatever was marked and in whatever order.
//  3. First step and decode are at least as long as their steps took at the worker, as far as
//     EndToEndUs allows: a busy router may hear a step's start and its end at one time.
#ifndef BATON_OBS_REQUEST_LIFETIME_H_
#define BATON_OBS_REQUEST_LIFETIME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace baton::obs {

// The moments that are timed. The order is that of the critical path of a disaggregated request.
enum class RequestEvent : uint8_t {
  kAccepted = 0,      // the request was read completely
  kAdmitted,          // a place in the running set was given
  kPrefillStarted,    // the prefill worker began to compute
  kFirstToken,        // token 0 reached the router
  kGranted,           // the grant reached the prefill worker
  kVerified,          // the decode worker verified the KV
  kFirstStepStarted,  // the decode worker began its first step
  kFirstStepEnded,    // token 1 exists
  kLastToken,         // the last token reached the router
  kNumEvents,
};

// Consecutive intervals of the critical path; the names of baton_stage_seconds{stage}.
enum class RequestStage : uint8_t {
  kAdmit = 0,     // accepted -> admitted
  kQueuePrefill,  // -> the prefill worker starts
  kPrefill,       // -> token 0
  kKvWait,        // -> the grant at the prefill worker
  kKvTransfer,    // -> VERIFIED; the exposed part only
  kQueueDecode,   // -> the first step's start
  kFirstStep,     // -> its end
  kDecode,        // -> the last token
  kNumStages,
};

inline constexpr size_t kNumRequestEvents = static_cast<size_t>(RequestEvent::kNumEvents);
inline constexpr size_t kNumRequestStages = static_cast<size_t>(RequestStage::kNumStages);
static_assert(kNumRequestStages + 1 == kNumRequestEvents,
              "a stage ends at each event but the first");

// "admit", "queue_prefill", ...
std::string_view StageName(RequestStage stage);
// "accepted", "admitted", "prefill_started", ...
std::string_view EventName(RequestEvent event);

// See the file comment.
class RequestLifetime {
 public:
  // The request was accepted at `accepted_us`.
  explicit RequestLifetime(int64_t accepted_us);

  // Sets the time of `event`. The first mark counts: a retried placement does not move it back;
  // only kLastToken moves with each token. A mark that comes after one of an event that follows
  // from it gets the earlier time: its report was late, not the event.
  void Mark(RequestEvent event, int64_t now_us);
  std::optional<int64_t> TimeOf(RequestEvent event) const;
  // The worker's step that gave output token `index` took `step_us`, 0 = not known. Several choices
  // share a step, which counts once.
  void CountStep(uint32_t index, uint32_t step_us);

  // Microseconds of each stage, [kNumRequestStages], so far: up to the latest mark.
  std::array<int64_t, kNumRequestStages> StagesUs() const;
  // The stages of a request that has no good end: it lives or failed, and was seen until `end_us`.
  // The time since the last mark belongs to the stage that had begun, so that they sum to end_us
  // less the time of kAccepted.
  std::array<int64_t, kNumRequestStages> StagesUntilUs(int64_t end_us) const;
  int64_t StageUs(RequestStage stage) const { return StagesUs()[static_cast<size_t>(stage)]; }

  // Accepted to the last token; without tokens, to the latest mark.
  int64_t EndToEndUs() const;
  // Accepted to token 0, if it came.
  std::optional<int64_t> TimeToFirstTokenUs() const;

 private:
  int64_t EndUs() const;
  // Where the stages meet: stage i is [boundary i, boundary i + 1); none is after `end_us`.
  std::array<int64_t, kNumRequestEvents> BoundariesUs(int64_t end_us) const;
  size_t OpenStage() const;

  std::array<int64_t, kNumRequestEvents> times_us_;  // kUnmarked when it has not happened
  uint32_t last_step_idx_ = 0;                       // the last token whose step counts
  int64_t first_step_us_ = 0;                        // of token 1
  int64_t decode_steps_us_ = 0;                      // of the tokens after it
};

}  // namespace baton::obs

#endif  // BATON_OBS_REQUEST_LIFETIME_H_
