// PacedModel: the toy model at the pace of a real one, so that a test can act while a request runs.
#ifndef BATON_TESTS_ENGINE_PACED_MODEL_H_
#define BATON_TESTS_ENGINE_PACED_MODEL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <thread>

#include "tests/engine/toy_model.h"

namespace baton::engine {

// See the file comment.
class PacedModel final : public ToyModel {
 public:
  explicit PacedModel(int64_t microseconds_per_step = 0) : step_us(microseconds_per_step) {}

  Status Forward(const model::ModelBatch& batch, const kv::KvView& kv, model::LayerHook* hook,
                 std::span<float> logits) override {
    std::this_thread::sleep_for(std::chrono::microseconds(step_us.load()));
    return ToyModel::Forward(batch, kv, hook, logits);
  }

  std::atomic<int64_t> step_us;  // any thread may change it
};

}  // namespace baton::engine

#endif  // BATON_TESTS_ENGINE_PACED_MODEL_H_
