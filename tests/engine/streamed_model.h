// StreamedModel: a model of tests that computes in the stream of a device.
#ifndef BATON_TESTS_ENGINE_STREAMED_MODEL_H_
#define BATON_TESTS_ENGINE_STREAMED_MODEL_H_

#include "src/device/accelerator.h"
#include "src/model/forward_model.h"

namespace baton::engine {

// A model that computes in a device's stream: after what was copied to it.
class StreamedModel final : public model::ForwardModel {
 public:
  StreamedModel(model::ForwardModel* model, device::Accelerator* device)
      : model_(model), device_(device) {}

  bool samples() const override { return model_->samples(); }
  bool overlaps_steps() const override { return model_->overlaps_steps(); }
  Status Begin(const model::ModelBatch& batch, const kv::KvView& kv) override {
    BATON_RETURN_IF_ERROR(device_->Wait());
    return model_->Begin(batch, kv);
  }
  Status End(std::span<TokenId> tokens) override { return model_->End(tokens); }

  uint32_t vocab_size() const override { return model_->vocab_size(); }
  uint32_t max_rows() const override { return model_->max_rows(); }
  uint32_t max_context() const override { return model_->max_context(); }
  Status Forward(const model::ModelBatch& batch, const kv::KvView& kv, model::LayerHook* hook,
                 std::span<float> logits) override {
    BATON_RETURN_IF_ERROR(device_->Wait());
    return model_->Forward(batch, kv, hook, logits);
  }

 private:
  model::ForwardModel* const model_;
  device::Accelerator* const device_;
};

}  // namespace baton::engine

#endif  // BATON_TESTS_ENGINE_STREAMED_MODEL_H_
