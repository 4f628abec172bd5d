// Model as the engine's ForwardModel.
#ifndef BATON_WORKER_MODEL_FORWARD_H_
#define BATON_WORKER_MODEL_FORWARD_H_

#include <cstdint>
#include <span>

#include "src/engine/forward_model.h"
#include "src/model/model.h"

namespace baton {

// Adapts a Model, which outlives it.
class ModelForward : public ForwardModel {
 public:
  explicit ModelForward(Model* model) : model_(model) {}

  uint32_t vocab_size() const override { return model_->config().vocab_size; }
  uint32_t max_rows() const override { return model_->max_rows(); }
  uint32_t max_context() const override { return model_->max_context(); }

  Status Forward(const ModelBatch& batch, const KvView& kv, LayerHook* hook,
                 std::span<float> logits) override {
    return model_->Forward(batch, kv, hook, logits);
  }

  uint64_t weight_bytes() const override { return model_->bytes_read_per_step(); }

 private:
  Model* const model_;
};

}  // namespace baton

#endif  // BATON_WORKER_MODEL_FORWARD_H_
