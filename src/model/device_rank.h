// DeviceRank: the part of a model that one device computes. It is the whole model, or the part of
// one of several ranks (model_rank.h). Each call puts kernels into the device's stream. The model
// (device_model.h) decides their order, and lets ranks exchange their parts.
//
// Owned by the thread that calls Forward, for which the device is current. Private to src/model.
#ifndef BATON_MODEL_DEVICE_RANK_H_
#define BATON_MODEL_DEVICE_RANK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/kernel_table.h"
#include "src/base/status.h"
#include "src/device/accelerator.h"
#include "src/model/device_weights.h"
#include "src/model/device_workspace.h"
#include "src/model/fast_products.h"
#include "src/model/model_batch.h"
#include "src/model/model_config.h"
#include "src/model/model_rank.h"
#include "src/model/state_map.h"

namespace baton::model {

// The kernels' name for the type of K and V, bf16 or fp8.
inline kernels::cuda::KvElement ElementOf(const kv::KvLayout& layout) {
  return layout.dtype == kv::KvDtype::kFp8 ? kernels::cuda::KvElement::kFp8
                                           : kernels::cuda::KvElement::kBf16;
}

// Everything that a rank is made from.
struct DeviceRankOptions {
  device::Accelerator* device = nullptr;
  const kernels::cuda::KernelTable* kernels = nullptr;
  ModelConfig config;   // of the rank
  kv::KvLayout layout;  // of its blocks
  ModelRank rank;
  IndexRange logits;  // whose columns it computes
  DeviceBatchSize batch;
  std::span<const float> rope_factors;  // as FillRopeTable's; read by Create
  bool allows_wgmma = false;
  bool attends_by_wgmma = false;
  FastMode fast;  // of a rank that is alone
};

// Where a rank leaves a part of a sum.
enum class PartialSum : uint8_t { kAttention = 0, kFeedForward = 1 };

// See the file comment.
class DeviceRank {
 public:
  // ResourceExhausted when the device's memory is short.
  static absl::StatusOr<std::unique_ptr<DeviceRank>> Create(
      const DeviceRankOptions& options, std::shared_ptr<const DeviceWeights> weights);

  uint32_t index() const { return options_.rank.index; }
  device::Accelerator* device() const { return options_.device; }
  const DeviceWeights& weights() const { return *weights_; }
  DeviceBatch& batch() const { return *workspace_->batch; }
  // Null: all products are by our own kernels.
  const FastProducts* fast() const { return fast_.get(); }

  // `fed` holds the tokens of the step before, for ids that are FedToken; null where there are
  // none.
  Status EmbedTokens(const uint32_t* fed);
  // Zeros the blocks of the states that begin in this batch, and of copies of states.
  Status ClearStates(std::byte* kv);
  // Stores K and V of a layer, the inputs of a convolution, or the states of a net and their
  // copies, in the blocks of this rank that begin at `kv`. A convolution is computed by then, and a
  // net but for the gate of its output.
  Status StoreKv(uint32_t layer, std::byte* kv);
  // Leaves the vector that attention, a convolution or a net adds to the residual: in added(), or
  // as a part of the sum.
  Status Attend(uint32_t layer, std::byte* kv);
  // Adds the vector of Attend, and leaves the vector that the feed-forward layer adds.
  Status FeedForward(uint32_t layer);
  // Adds the vector of FeedForward, and computes the rank's columns of the wanted logits.
  Status ComputeLogits();
  // Chooses tokens on rank 0, which has all logits by then.
  Status ChooseTokens();
  // On rank 0: copies the tokens that were chosen here and the other rows' logits, and waits for
  // them.
  Status TakeAnswers(const ModelBatch& batch, std::span<float> logits);
  // Copies the hidden states of the wanted rows, which ComputeLogits leaves in bf16, into `hidden`
  // [logit rows][hidden], and waits for them.
  Status TakeHidden(std::span<float> hidden);
  // Says of each copy of a state whether all its elements are finite, and waits for that.
  Status TakeCopies(std::span<StateCopy> copies);
  // On rank 0: puts the copy of the first `num_rows` tokens into the stream. They are the tokens of
  // step `which` of two.
  Status SendTokens(size_t which, uint32_t num_rows);
  // Waits for the tokens of SendTokens, and for no later work.
  Status TakeTokens(size_t which, std::span<TokenId> to);

  // The buffers that ranks exchange; one rank alone exchanges nothing.
  kernels::simt::Bf16* added() const { return workspace_->added.as<kernels::simt::Bf16>(); }
  const float* partial_sum(PartialSum which) const { return Partial(which).as<float>(); }
  const float* logit_columns() const { return workspace_->logit_columns.as<float>(); }
  float* logits() const { return workspace_->logits.as<float>(); }  // of rank 0
  // The tokens that rank 0 chose in the last step.
  const uint32_t* tokens() const { return workspace_->tokens.as<uint32_t>(); }
  kernels::cuda::ExchangeFlags* flags() const {
    return workspace_->flags.as<kernels::cuda::ExchangeFlags>();
  }

 private:
  DeviceRank(const DeviceRankOptions& options, std::shared_ptr<const DeviceWeights> weights)
      : options_(options), state_map_(StateMapOf(options.config)), weights_(std::move(weights)) {}

  bool is_alone() const { return options_.rank.count == 1; }
  const device::DeviceBuffer& Partial(PartialSum which) const {
    return workspace_->partial_sums[static_cast<size_t>(which)];
  }
  const kernels::cuda::KernelTable& Kernels() const { return *options_.kernels; }
  kernels::cuda::KvBlocks BlocksOf(uint32_t layer, std::byte* kv) const;
  kernels::cuda::RopeAppendParams RopeOf(uint32_t layer, std::byte* kv) const;
  kernels::cuda::ShortConvParams ConvOf(uint32_t layer, std::byte* kv) const;
  kernels::cuda::DeltaParams NetOf(uint32_t layer, std::byte* kv) const;
  // Moves the states of a net on, for its first product in qkv.
  Status MoveStates(uint32_t layer, std::byte* kv);
  // attended = what lies there, or what a net has read, times its gates.
  Status GateOutput(uint32_t layer, std::byte* kv);
  // Leaves the result of attention over the blocks in attended.
  Status ReadKv(uint32_t layer, std::byte* kv);
  // normed = norm(residual += branch).
  Status Normalise(const struct DeviceBranch& branch, const device::DeviceBuffer& weight);
  // Computes the result of each row's experts for normed.
  Status MixExperts(uint32_t layer);
  // Where `slot_rows` is null, the slots are the rows of x.
  Status MultiplyExperts(const DeviceMatrix& weight, const struct DeviceProduct& product,
                         const uint32_t* slot_rows);
  kernels::cuda::RouteScores ScoresOf(const DeviceLayer& weights) const;
  // gated = activation(gate) * up, of the products of the layer's input and gate_up.
  Status GateUp(uint32_t layer);
  // gated = activation(gate) * up, of what lies in gate_up, [rows][2][size].
  Status Gate(uint32_t rows, uint32_t size);
  // Whether the products of this matrix end with the work of the kernel after them.
  bool Joins(const DeviceMatrix& weight) const;
  // Whether the products around a norm divide it between them, but the first and the last norm.
  bool JoinsNorms() const;
  // The norm of the residual, for the product after one that left its squares.
  kernels::cuda::NormedRows NormOf(const device::DeviceBuffer& weight) const;
  kernels::cuda::GemmParams ParamsOf(const DeviceMatrix& weight,
                                     const struct DeviceProduct& product) const;
  Status MatMul(const DeviceMatrix& weight, const struct DeviceProduct& product);
  Status MatMulPacked(const DeviceMatrix& weight, const kernels::cuda::GemmParams& params);
  // By cuBLASLt where it takes the product, by our own kernels elsewhere.
  Status MatMulDense(const kernels::cuda::GemmParams& params);
  bool CanUnpack(uint32_t n, uint32_t k) const;
  Status Unpack(const DeviceMatrix& weight, uint32_t n, uint32_t k);
  // The products that FastProducts may take: those of a layer and of the output layer.
  std::vector<FastSite> FastSites();
  void AddSite(const char* name, const DeviceMatrix& weight, const struct DeviceProduct& product,
               std::vector<FastSite>* sites);
  // The product that a branch ends with: hidden_size sums of k a row.
  Status MatMulOfBranch(const DeviceMatrix& weight, const device::DeviceBuffer& x, uint32_t k,
                        PartialSum which);
  // Adds that product to the residual, and leaves the squares that the next norm needs.
  Status AddBranch(const DeviceMatrix& weight, const device::DeviceBuffer& x, uint32_t k);

  const DeviceRankOptions options_;
  const StateMap state_map_;
  const std::shared_ptr<const DeviceWeights> weights_;
  std::unique_ptr<DeviceWorkspace> workspace_;
  std::unique_ptr<FastProducts> fast_;  // null without
  bool can_join_norms_ = false;         // of few rows
};

}  // namespace baton::model

#endif  // BATON_MODEL_DEVICE_RANK_H_
