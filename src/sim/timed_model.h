// TimedModel: a model that computes nothing and takes the time that a step of its shape takes, so
// that recorded loads of any size can be replayed. Every token that it gives is kTimedToken; KV is
// never written, and neither are states. Engine thread of one simulated worker.
#ifndef BATON_SIM_TIMED_MODEL_H_
#define BATON_SIM_TIMED_MODEL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "src/model/forward_model.h"
#include "src/plan/step_model.h"
#include "src/sim/sim_model.h"

namespace baton::sim {

// Ends no answer.
inline constexpr TokenId kTimedToken = 1;
static_assert(kTimedToken != kSimEos);

// The settings of a timed model; constant.
struct TimedModelOptions {
  plan::StepModel steps;
  uint32_t num_layers = 1;  // as many calls of the hook in each step, evenly spaced
  uint32_t max_rows = 1024;
  uint32_t max_context = 1;
};

// See the file comment. Its vocabulary is that of SimModelInfo.
class TimedModel final : public model::ForwardModel {
 public:
  // `spend` is told what each layer costs, before the hook hears of it.
  TimedModel(const TimedModelOptions& options, std::function<void(int64_t us)> spend)
      : options_(options), spend_(std::move(spend)) {}

  uint32_t vocab_size() const override { return kSimVocab; }
  uint32_t max_rows() const override { return options_.max_rows; }
  uint32_t max_context() const override { return options_.max_context; }
  Status Forward(const model::ModelBatch& batch, const kv::KvView& kv, model::LayerHook* hook,
                 std::span<float> logits) override;

 private:
  int64_t StepUs(const model::ModelBatch& batch) const;

  const TimedModelOptions options_;
  const std::function<void(int64_t us)> spend_;
};

}  // namespace baton::sim

#endif  // BATON_SIM_TIMED_MODEL_H_
