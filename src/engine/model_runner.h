// ModelRunner: a loaded Model as the ForwardModel of an engine.
#ifndef BATON_ENGINE_MODEL_RUNNER_H_
#define BATON_ENGINE_MODEL_RUNNER_H_

#include <cstdint>
#include <span>

#include "src/engine/forward_model.h"
#include "src/model/model.h"

namespace baton {

// See the file comment. The model outlives it.
class ModelRunner : public ForwardModel {
 public:
  explicit ModelRunner(Model* model) : model_(model) {}

  uint32_t vocab_size() const override { return model_->config().vocab_size; }
  uint32_t max_rows() const override { return model_->max_rows(); }
  uint32_t max_context() const override { return model_->max_context(); }
  Status Forward(const ModelBatch& batch, const KvView& kv, LayerHook* hook,
                 std::span<float> logits) override {
    return model_->Forward(batch, kv, hook, logits);
  }
  uint64_t weight_bytes() const override { return model_->bytes_read_per_step(); }
  // A multiplication and an addition per weight of every matrix that a row passes through; the
  // output layer only counts for the rows whose logits are wanted, which are few in a prefill.
  uint64_t flops_per_row() const override {
    const ModelConfig& c = model_->config();
    return 2 * c.num_layers * c.LayerWeightsPerRow();
  }

 private:
  Model* const model_;
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_RUNNER_H_
