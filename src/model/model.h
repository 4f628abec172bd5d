// Model: the weights of one model and its forward pass. Knows rows, blocks and logits; not
// sequences, and not who owns a block.
//
// Threading: Load anywhere. Afterwards any thread may use the const accessors, and one thread at a
// time may call Forward (the engine thread). Meanwhile only this thread may use the ThreadPool.
//
// Invariants
//  1. All memory is taken by Load; Forward allocates nothing and takes no lock.
//  2. The bits of a row's logits and of its K and V depend only on the weights, numerics_id() and
//     the tokens of its sequence up to it. They do not depend on the other rows, the chunking, the
//     block ids, the number of threads, or whether logits of other rows are wanted.
//  3. Forward writes only the KV slots of its rows, zeros into the unused token slots of a block
//     that they leave part-full, and the state blocks of their sequences. A sequence's state is
//     that of all tokens before its span: computing a row a second time moves it on twice.
#ifndef BATON_MODEL_MODEL_H_
#define BATON_MODEL_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kvcache/kv_view.h"
#include "src/base/status.h"
#include "src/device/aligned_buffer.h"
#include "src/device/thread_pool.h"
#include "src/model/forward_model.h"
#include "src/model/gguf.h"
#include "src/model/model_batch.h"
#include "src/model/model_config.h"
#include "src/model/shared_weights.h"
#include "src/model/state_map.h"

namespace baton::model {

// Options of a model; they decide its working memory.
struct ModelOptions {
  device::ThreadPool* pool = nullptr;  // not owned; outlives the model
  kernels::Isa isa = kernels::Isa::kAuto;
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;
  uint32_t block_size = 16;    // tokens of a KV block
  uint32_t max_rows = 1024;    // rows of one Forward
  uint32_t max_context = 0;    // positions of one sequence; 0 = the model's context length
  uint64_t tokenizer_id = 0;   // part of numerics_id
  SharedWeights sharing = {};  // with other processes that load the same file
};

struct FeedForwardWeights;  // model_weights.h
struct LayerWeights;        // model_weights.h
struct MatrixGroup;         // model_weights.h
struct ModelWeights;        // model_weights.h
class ModelWorkspace;       // model_workspace.h

// Weights plus forward pass; see the file comment.
class Model final : public LoadedModel {
 public:
  // Checks, packs and hashes the tensors of `file`, which is not needed afterwards. Errors as
  // ReadModelConfig; InvalidArgument for options out of range; FailedPrecondition when `isa` cannot
  // run here; ResourceExhausted when memory is short. Costs one read of the file, or of the part
  // that no other process of options.sharing has packed.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const GgufFile& file,
                                                     const ModelOptions& options);
  ~Model() override;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  StatusOr<std::unique_ptr<LoadedModel>> Share(const ModelThreads& threads) const override;
  Status Forward(const ModelBatch& batch, const kv::KvView& kv, LayerHook* hook,
                 std::span<float> logits) override;
  std::optional<uint32_t> BrokenStateLayer(std::span<const uint32_t> state,
                                           const kv::KvView& kv) const override;

  const ModelConfig& config() const override { return config_; }
  const kv::KvLayout& layout() const override { return layout_; }
  uint32_t max_rows() const override { return max_rows_; }
  uint32_t max_context() const override { return max_context_; }
  const kernels::Ops& ops() const { return *ops_; }
  // Most multiplications are of 16-bit integers (quantised weights), not of floats.
  bool computes_in_int16() const;

  const std::string& weights_id() const override { return weights_id_; }
  const std::string& numerics_id() const override { return numerics_id_; }
  const std::string& numerics_text() const override { return numerics_text_; }
  std::string_view arithmetic_name() const override { return ops_->name; }
  size_t weight_bytes() const override;
  const SharingReport& sharing() const;
  size_t workspace_bytes() const;  // activations and tables
  // More rows read more experts of a mixture.
  size_t bytes_read_per_step() const override;

 private:
  Model();
  Status MakeWorkspace();

  void RunLayers(const ModelBatch& batch, const kv::KvView& kv, LayerHook* hook);
  // The rows that a layer computes: all of a batch, or those of it that KeepLogitRows kept.
  struct LayerRows {
    std::span<const kernels::AttentionSpan> spans;
    uint32_t num_rows;
    std::span<StateCopy> copies = {};  // of spans' states
  };
  // K and V of one layer as its kernels read them.
  struct LayerKv {
    kv::KvView view;
    uint32_t slice;  // of the view
  };
  LayerKv KvOf(uint32_t layer, const kv::KvView& kv) const;
  // The pieces of a layer, in model_layers.cc.
  void StoreKv(uint32_t layer, const LayerRows& rows, const kv::KvView& kv);
  // These two serve layers with latent attention, in model_latents.cc. LatentQueries gives [rows,
  // latent_q_size] of normed.
  void StoreLatents(uint32_t layer, const LayerRows& rows, const kv::KvView& kv);
  const float* LatentQueries(const LayerWeights& weights, uint32_t rows);
  // attended = each head's attn_v_b times what it attended.
  void ValuesOfLatents(const LayerWeights& weights, uint32_t rows);
  void RotateAndStore(uint32_t layer, const LayerRows& rows, const kv::KvView& kv);
  // The gated delta net or Mamba-2 of a layer for all rows: the state moves on, the rows are in
  // `attended`, and the layer's part of each copy is made.
  void MixDelta(uint32_t layer, const LayerRows& rows, const kv::KvView& kv);
  // Copies the layer's part of a span's state, as it is.
  void CopyState(uint32_t layer, const kernels::AttentionSpan& span, const kv::KvView& kv,
                 StateCopy& copy);
  // Zeros what of the copies' blocks no layer uses.
  void ClearUnused(std::span<const StateCopy> copies, const kv::KvView& kv);
  // Zeros the states of sequences at position 0, and what of their blocks no layer uses.
  void ClearStates(std::span<const kernels::AttentionSpan> spans, const kv::KvView& kv);
  kernels::ShortConvArgs ConvArgs(uint32_t layer, std::span<const kernels::AttentionSpan> spans,
                                  const kv::KvView& kv) const;
  void AttendAndFeedForward(uint32_t layer, const LayerRows& rows, const kv::KvView& kv);
  // x += the branch of attention, a convolution or a net whose first product StoreKv computed.
  void EndMixer(uint32_t layer, const LayerRows& rows, const kv::KvView& kv);
  void Attend(uint32_t layer, std::span<const kernels::AttentionSpan> spans, const kv::KvView& kv);
  // Rows `rows` of x += norm(group * input + bias), the norm only where the architecture has one,
  // the bias only where the model does. `input` has these rows alone.
  void AddToResidual(const MatrixGroup& group, const float* input, device::TaskRange rows,
                     std::span<const float> post_norm, std::span<const float> bias = {});
  // Rows `rows` of x += norm(the feed-forward layer `weights` of input). `input` has these alone.
  void FeedForward(const FeedForwardWeights& weights, const float* input, device::TaskRange rows,
                   std::span<const float> post_norm);
  // The vectors that each row's token and its embedding give all layers, in model_per_layer.cc.
  void ComputePerLayer(const ModelBatch& batch);
  // x += norm(out * (gelu(gate * x) * the row's vector of `layer`)).
  void AddPerLayer(uint32_t layer, uint32_t rows);
  void MixExperts(const LayerWeights& weights, uint32_t rows);
  void AddGatedSharedExpert(const LayerWeights& weights, uint32_t rows);
  // The experts of each row and their weights, by router_logits.
  void RouteRows(const LayerWeights& weights, uint32_t rows);
  // Sorts the (row, expert) pairs of the batch by expert.
  void SortPairs(uint32_t rows);
  // gated = activation(gate of input) * (up of input), or without a gate activation(up of input).
  void Gate(const FeedForwardWeights& weights, const float* input, uint32_t rows);
  // Moves the wanted rows of the residual stream, of the first product of the last layer that
  // stores K and V, and of the per-layer vectors to the front.
  std::span<const kernels::AttentionSpan> KeepLogitRows(const ModelBatch& batch);

  // Constant after Load.
  ModelConfig config_;
  kv::KvLayout layout_;
  StateMap state_map_;
  std::vector<kv::KvLayout> layer_layouts_;  // LayerLayoutOf; empty where all layers are alike
  const kernels::Ops* ops_ = nullptr;
  device::ThreadPool* pool_ = nullptr;
  uint32_t max_rows_ = 0;
  uint32_t max_context_ = 0;
  std::string weights_id_;
  std::string numerics_id_;
  std::string numerics_text_;
  std::shared_ptr<const ModelWeights> weights_;  // of all models of Share
  // Owned by the thread that calls Forward.
  std::unique_ptr<ModelWorkspace> workspace_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_MODEL_H_
