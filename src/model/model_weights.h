// ModelWeights: the packed weights of a model. Built by LoadWeights, constant afterwards; any
// thread. Private to src/model.
#ifndef BATON_MODEL_MODEL_WEIGHTS_H_
#define BATON_MODEL_MODEL_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/packed_matrix.h"
#include "src/base/status.h"
#include "src/base/xxh3.h"
#include "src/device/thread_pool.h"
#include "src/model/gguf.h"
#include "src/model/model_config.h"
#include "src/model/shared_weights.h"
#include "src/model/tensor_plan.h"

namespace baton::model {

// Matrices that read the same input, side by side in one output: Q|K|V or gate|up. Neighbours of
// equal type are joined into one packed matrix.
struct MatrixGroup {
  std::vector<kernels::PackedMatrix> parts;  // in output order
  uint32_t n = 0;                            // columns of the output, all parts
  bool uses_a16 = false;                     // at least one part reads quantised activations

  size_t bytes() const;
};

// A matrix whose rows are taken one by one as they lie in the model file. It stays in the file's
// mapping and takes no other memory, unless it was packed in a folder or has another type here.
class MappedRows {
 public:
  MappedRows() = default;
  // InvalidArgument as CheckElements, and naming the first row with a scale that is not finite.
  // Costs one read of the matrix.
  static absl::StatusOr<MappedRows> Create(const GgufFile& file, const GgufTensor& tensor,
                                           device::ThreadPool& pool);

  uint32_t k() const { return k_; }
  // Row `row` to out [k].
  void Read(uint32_t row, float* out) const;
  // Bytes of memory that is no mapping.
  size_t bytes() const { return memory_.is_mapping ? 0 : bytes_.size(); }

 private:
  kernels::WeightType type_ = kernels::WeightType::kF32;
  uint32_t k_ = 0;
  size_t row_bytes_ = 0;
  std::span<const std::byte> bytes_;
  GgufMemory memory_;  // holds bytes_
};

// A feed-forward layer, gated or not.
struct FeedForwardWeights {
  MatrixGroup gate_up;  // [2 * ffn, hidden]; of GateActivation::kReluSquared [ffn, hidden]
  MatrixGroup down;     // [hidden, ffn]
  // Empty unless the model has them.
  std::vector<float> gate_up_bias;  // as the columns of gate_up
  std::vector<float> down_bias;     // [hidden]
};

// The weights of one transformer layer.
struct LayerWeights {
  std::vector<float> attn_norm;  // [hidden], empty without pre_norms
  // The first and the last product of attention, of a convolution or of a net with a fixed state.
  MatrixGroup qkv;              // [projected_size, hidden] (ModelConfig); of Mamba-2 fewer columns
  MatrixGroup attn_output;      // [hidden, mixed_size]
  std::vector<float> ffn_norm;  // [hidden], empty without pre_norms
  // One feed-forward layer, or one for each expert; none of traits->mamba's other layers.
  std::vector<FeedForwardWeights> ffn;
  // Empty unless the architecture has them.
  std::vector<float> qkv_bias;        // [qkv_size]
  std::vector<float> q_norm;          // [head_dim]; with whole_norms [q_size]
  std::vector<float> k_norm;          // [head_dim]; with whole_norms [kv_size]
  std::vector<float> post_attn_norm;  // [hidden]
  std::vector<float> post_ffn_norm;   // [hidden]
  std::vector<float> conv_taps;       // [taps, hidden]; of a gated delta net [taps, channels]
  std::vector<float> delta_rates;     // [v heads]
  std::vector<float> dt_bias;         // [v heads]
  std::vector<float> delta_norm;      // [v_dim]; of Mamba-2 [value_size]
  std::vector<float> conv_bias;       // [channels], of Mamba-2
  std::vector<float> skips;           // [v heads], of Mamba-2
  MatrixGroup router;                 // [experts, hidden]
  std::vector<float> sinks;           // [heads]
  std::vector<float> output_bias;     // [hidden]
  MatrixGroup per_layer_gate;         // [per_layer, hidden]
  MatrixGroup per_layer_out;          // [hidden, per_layer]
  std::vector<float> post_per_layer;  // [hidden]
  std::vector<float> v_norm;          // [head_dim] ones: V is normed without weights
  float layer_scale = 1;              // of the stream after the layer
  std::vector<float> router_bias;     // [experts]
  std::vector<float> choice_bias;     // [experts], of ExpertScore::kSigmoid
  FeedForwardWeights shared;          // of the experts that serve every row
  MatrixGroup shared_router;          // [1, hidden]: its sigmoid weighs them
  // Latent attention; its `qkv` is the product of the queries, the first one with q_rank.
  MatrixGroup kv_a;              // [head_dim, hidden]
  std::vector<float> kv_a_norm;  // [latent_dim]
  std::vector<float> q_a_norm;   // [q_rank]
  MatrixGroup q_b;               // [latent_q_size, q_rank]
  std::vector<MatrixGroup> k_b;  // of each head [latent_dim, nope_dim]
  std::vector<MatrixGroup> v_b;  // of each head [value_dim, latent_dim]

  size_t bytes() const;
  size_t ffn_bytes() const;
};

// All weights; see the file comment.
struct ModelWeights {
  kernels::PackedMatrix token_embd;   // [vocab, hidden]
  MatrixGroup output;                 // [vocab, hidden]; empty when tied
  std::vector<float> output_norm;     // [hidden]
  std::vector<float> rope_factors;    // [rope_dims / 2] or empty
  std::vector<float> long_factors;    // the long set of LongRoPE [rope_dims / 2], or empty
  MappedRows per_layer_embd;          // [vocab, layers * per_layer]; empty without it
  MatrixGroup per_layer_proj;         // [layers * per_layer, hidden]
  std::vector<float> per_layer_norm;  // [per_layer]
  std::vector<LayerWeights> layers;
  std::string weights_id;              // HashWeights
  SharingReport sharing;               // where the packed bytes lie
  std::shared_ptr<const void> memory;  // in which they lie, of one process or several

  size_t bytes() const;  // packed, everything but mappings
};

// A checked file: its tensors, what they become, and the model's constants.
struct WeightSource {
  const GgufFile& file;
  const ModelConfig& config;
  const TensorPlan& plan;
};

// Packs the tensors of `source`, one matrix after the other, so that memory peaks at the packed
// weights plus the pages of the file, and hashes them. In memory that processes share, it packs the
// matrices that no other one has packed or is packing, and waits for these (weight_sharing.h).
// InvalidArgument as CheckElements, for the first matrix in the order of loading;
// ResourceExhausted when memory is short.
absl::StatusOr<ModelWeights> LoadWeights(const WeightSource& source, device::ThreadPool& pool,
                                         const SharedWeights& sharing);

// The error that loading for the model's whole context would give for the values of a file that
// PlanTensors accepts: that of LoadWeights, CheckVectors or CheckRope. Works on 16 MiB (or a row)
// at a time; costs one read of the file.
absl::Status CheckWeightValues(const GgufFile& file, device::ThreadPool& pool);

// Hash of the canonical config and of name, type, shape, bytes and scales of every tensor, by
// ascending name; 32 hex digits.
std::string HashWeights(const GgufFile& file, const ModelConfig& config);

// The hash of HashWeights for a caller that reads the tensors' bytes itself. It calls Begin for
// each of TensorsByName, Update with its bytes, which may come in pieces, then End.
class WeightsHash {
 public:
  explicit WeightsHash(const ModelConfig& config);
  void Begin(const GgufTensor& tensor);
  void Update(std::span<const std::byte> bytes) { hash_.Update(bytes.data(), bytes.size()); }
  void End(const GgufTensor& tensor);
  std::string Text() const;

 private:
  Xxh3Stream hash_;
};
std::vector<const GgufTensor*> TensorsByName(const GgufFile& file);

}  // namespace baton::model

#endif  // BATON_MODEL_MODEL_WEIGHTS_H_
