// ModelRig: a model with random weights, made where they are needed, and the KV blocks of a few
// sequences. Rigs of one seed have the same weights. One thread.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_MODEL_RIG_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_MODEL_RIG_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/engine/kv_store.h"
#include "src/model/compute_device.h"
#include "src/model/device_model.h"
#include "src/model/device_weights.h"
#include "tests/kernels/gpu_check/model_shape.h"
#include "tests/kernels/gpu_check/stages.h"

namespace baton::kernels::gpu_check {

// The sizes and options that a rig is made for.
struct RigSize {
  uint32_t max_rows;
  uint32_t max_context;
  uint32_t num_blocks;  // of kShapeBlockSize tokens
  uint32_t max_logit_rows = kMostOutputRows;
  uint32_t num_ranks = 1;  // all on the device, each with weights of its own; then blocks are not
                           // read, written or filled
  model::FastMode fast = {};
  // A second model over the same weights and blocks, on a part of the device.
  bool is_split = false;
};

// Tokens of one sequence to compute: they follow `first_pos` others in `blocks`.
struct RigChunk {
  std::span<const uint32_t> blocks;
  uint32_t first_pos;
  std::span<const TokenId> tokens;
};

// Blocks that hold so many tokens.
uint32_t BlocksFor(uint32_t num_tokens);
std::vector<TokenId> RandomTokens(uint32_t count, uint32_t vocab_size, uint64_t seed);

// The verdict for a GPU that was not divided: every driver since CUDA 12.5 divides a Hopper.
inline Verdict VerdictOfNoSplit(const StageInput& input) {
  return input.major >= 9 ? Verdict::kFail : Verdict::kNotRun;
}

// See the file comment.
class ModelRig {
 public:
  static absl::StatusOr<std::unique_ptr<ModelRig>> Create(const StageInput& input,
                                                          const RigSize& size);

  // For a rig that is split: FailedPrecondition where a GPU was not divided. The runner is never
  // divided.
  absl::Status CheckSplit() const;

  // Has the model record its decode steps from now on; the second one on blocks of its own.
  // Internal also where none could be recorded, which a worker goes on without.
  absl::Status Prepare() { return PrepareModel(*model_, kv_->view()); }
  absl::Status PrepareSecond(const kv::KvView& kv) { return PrepareModel(*second_model_, kv); }
  // One Forward; the logits of each chunk's last row [chunks][vocab].
  absl::StatusOr<std::vector<float>> Run(const std::vector<RigChunk>& chunks,
                                         model::LayerHook* hook = nullptr);
  // The second model runs one Forward, as Run does.
  absl::StatusOr<std::vector<float>> RunOnSecond(const std::vector<RigChunk>& chunks);
  // Puts the copy of one layer of a block, SliceBytes(), into the second model's stream.
  absl::Status CopyLayerOut(std::byte* to, uint32_t block, uint32_t layer);
  // Runs as Run does, but returns the token of the largest logit of each. The device chooses it.
  absl::StatusOr<std::vector<TokenId>> Choose(const std::vector<RigChunk>& chunks);
  // A step of rows with such tokens, which may be fed by the one begun before; and its tokens.
  absl::Status Begin(const std::vector<RigChunk>& rows);
  absl::StatusOr<std::vector<TokenId>> End(size_t num_rows);
  // The bytes of whole blocks, in this order.
  absl::StatusOr<std::vector<std::byte>> ReadBlocks(std::span<const uint32_t> blocks);
  absl::Status WriteBlocks(std::span<const uint32_t> blocks, std::span<const std::byte> bytes);
  // Random K and V in every block, for steps whose results nobody looks at.
  absl::Status FillBlocks();

  const model::DeviceModel& model() const { return *model_; }
  const device::Accelerator& device() const { return *device_.accelerator; }
  uint32_t num_sms() const { return num_sms_; }  // of the whole device
  device::Accelerator* second_device() { return second_device_.get(); }
  uint32_t num_blocks() const { return kv_->memory().num_blocks; }

  // For an engine. While it runs nothing but constants is asked for here.
  model::LoadedModel* engine_model() { return model_.get(); }
  model::LoadedModel* second_model() { return second_model_.get(); }
  engine::KvStore* kv() { return kv_.get(); }
  device::Accelerator* engine_device() { return device_.accelerator.get(); }
  const cuda::KernelTable* kernels() const { return device_.kernels; }

 private:
  struct Lowered;  // chunks as a batch

  explicit ModelRig(const StageInput& input) : input_(input) {}
  static absl::Status PrepareModel(model::LoadedModel& model, const kv::KvView& kv);
  absl::StatusOr<std::vector<float>> RunOn(model::ForwardModel& model,
                                           const std::vector<RigChunk>& chunks,
                                           model::LayerHook* hook);
  // A bf16 matrix or vector of random values.
  absl::Status Make(size_t count, float mean, float spread, device::DeviceBuffer* buffer);
  // Weights of a rank with this config, and with so many columns of the logits.
  absl::Status MakeWeights(const model::ModelConfig& config, uint32_t num_logits,
                           model::DeviceWeights* weights);
  absl::Status MakeLayer(const model::ModelConfig& config, model::DeviceLayer* layer);

  const StageInput& input_;
  model::ComputeDevice device_;
  uint32_t num_sms_ = 0;  // of the whole device
  std::unique_ptr<device::Accelerator> second_device_;
  uint32_t next_seed_ = 1;
  std::unique_ptr<model::DeviceModel> model_;
  std::unique_ptr<model::LoadedModel> second_model_;
  std::unique_ptr<engine::KvStore> kv_;
  std::vector<float> unread_logits_;  // of rows whose tokens are chosen: room that nobody writes
};

// Blocks `stride` apart, so that no two lists lie alike.
std::vector<uint32_t> SomeBlocks(const ModelRig& rig, uint32_t count, uint32_t first,
                                 uint32_t stride);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_MODEL_RIG_H_
