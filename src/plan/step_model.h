// StepModel: how long a step takes, for planning a cluster: a share of what a device can do at
// most, or weights fitted to measured steps. Pure data; any thread.
#ifndef BATON_PLAN_STEP_MODEL_H_
#define BATON_PLAN_STEP_MODEL_H_

#include <cstdint>
#include <optional>

#include "scheduler/roofline.h"
#include "scheduler/step_cost.h"

namespace baton::plan {

// A step of the steady state: one chunk of one prompt, beside decode rows of one length.
struct PlannedStep {
  uint32_t chunk_tokens = 0;
  uint32_t first_pos = 0;  // of the chunk
  uint32_t decode_rows = 0;
  uint32_t context = 0;  // keys that each decode row sees
};

// Weights of steps that only compute prompts and of those that only decode: a chunk reads a key
// once and a decode row once each, so one weight does not fit both (on a processor they are a
// factor of six apart).
struct MeasuredWeights {
  scheduler::StepWeights prefill;  // decode_row_us unused
  scheduler::StepWeights decode;   // prefill_token_us unused
};

// The part of a model's attention whose rows see the last `tokens` positions alone.
struct KeyWindow {
  uint32_t tokens = 0;  // the row's own position included; 0 = every row sees all
  double share = 0;     // of a key's cost in all layers: layers with the window, in [0, 1]

  // Keys that rows at positions [first_pos, first_pos + num_rows) are charged for: what they see in
  // full layers and in those with the window, by their shares.
  double RunKeys(double first_pos, double num_rows) const;
  // Keys for rows that each see `context` of them in full layers.
  double RowKeys(double context, double num_rows) const;
};

// See the file comment.
class StepModel {
 public:
  // The roofline at `share` in (0, 1] of every limit: 1 is the best case, kFirstShare what a first
  // step is trusted to reach.
  static StepModel OfDevice(const scheduler::DeviceLimits& device,
                            const scheduler::RooflineModel& model, double share,
                            const KeyWindow& window = {});
  // A mixed step takes the larger of the two fixed times and the sum of everything else. A key of
  // the weights is one that KeyWindow charges.
  static StepModel OfMeasurements(const MeasuredWeights& weights, const KeyWindow& window = {});

  // Microseconds; 0 for a step without rows. Rises, or stays, with every field.
  double StepUs(const PlannedStep& step) const;
  // Any step: the part that computes prompts, and the part that decodes. With a window the former
  // counts as one chunk, the latter as rows of equal contexts.
  double StepUs(const scheduler::StepShape& prompts, const scheduler::StepShape& decodes) const;
  // A prompt computed from position 0 in chunks of at most `chunk` > 0 tokens, each beside these
  // decode rows. All whole chunks count as the one in the middle, which is exact where the time is
  // linear in the position.
  double PromptUs(uint32_t num_tokens, uint32_t chunk, const PlannedStep& beside) const;

 private:
  // A device and what a model costs there.
  struct Roofline {
    scheduler::DeviceLimits device;
    scheduler::RooflineModel model;
    double share;
  };
  double PromptKeys(const scheduler::StepShape& prompts) const;
  double DecodeKeys(const scheduler::StepShape& decodes) const;
  double MeasuredUs(const scheduler::StepShape& prompts, const scheduler::StepShape& decodes) const;
  double RooflineUs(const scheduler::StepShape& prompts, const scheduler::StepShape& decodes) const;

  std::optional<Roofline> roofline_;
  MeasuredWeights weights_;
  KeyWindow window_;
};

}  // namespace baton::plan

#endif  // BATON_PLAN_STEP_MODEL_H_
