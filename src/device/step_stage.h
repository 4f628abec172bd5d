// StepStage: the stages of an engine thread's work, for a profiler beside the device's own work.
// Each is a range with a name that traces use too (src/cli/trace), from one table. A range costs a
// comparison where nobody listens.
//
// Threading: the ranges of a thread nest; a sink takes those of any thread.
#ifndef BATON_DEVICE_STEP_STAGE_H_
#define BATON_DEVICE_STEP_STAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace baton::device {

// A step by its kind, and its parts: it is planned and lowered, put into the device's queue, and
// waited for. kForward is the last two where the model does them in one call. kSample takes tokens
// from what came back. Beside steps: blocks are hashed and sealed for their way, blocks of another
// worker are bound to a sequence, and messages of transfers are handled.
enum class StepStage : uint8_t {
  kPrefillStep,
  kDecodeStep,
  kMixedStep,
  kPlan,
  kLaunch,
  kWait,
  kForward,
  kSample,
  kSeal,
  kAdopt,
  kTransfer
};
inline constexpr std::array<const char*, 11> kStepStageNames = {
    "prefill step", "decode step", "mixed step", "plan",  "launch",  "wait",
    "forward",      "sample",      "seal",       "adopt", "transfer"};

constexpr const char* StepStageName(StepStage stage) {
  return kStepStageNames[static_cast<size_t>(stage)];
}

// The stage of a step with so many tokens of prompts and rows of decoding.
constexpr StepStage StageOfStep(uint64_t prefill_tokens, uint64_t decode_rows) {
  if (decode_rows == 0) return StepStage::kPrefillStep;
  return prefill_tokens == 0 ? StepStage::kDecodeStep : StepStage::kMixedStep;
}

// Hears of ranges. Neither waits nor fails.
class StageSink {
 public:
  virtual ~StageSink() = default;
  virtual void Begin(StepStage stage) = 0;
  // Ends the range that this thread began last.
  virtual void End() = 0;
};

// A range for its lifetime; nothing without a sink.
class StageRange {
 public:
  StageRange(StageSink* sink, StepStage stage) : sink_(sink) {
    if (sink_ != nullptr) sink_->Begin(stage);
  }
  ~StageRange() {
    if (sink_ != nullptr) sink_->End();
  }
  StageRange(const StageRange&) = delete;
  StageRange& operator=(const StageRange&) = delete;

 private:
  StageSink* const sink_;
};

}  // namespace baton::device

#endif  // BATON_DEVICE_STEP_STAGE_H_
