// Names and row order of the weights: Hugging Face's against GGUF's. Private to the folder reader;
// pure; any thread.
#ifndef BATON_MODEL_HF_TENSORS_H_
#define BATON_MODEL_HF_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/model/architecture.h"
#include "src/model/hf_delta.h"
#include "src/model/safetensors.h"

namespace baton::model {

// The form of a tensor of gpt_oss that belongs to all experts. Where one tensor holds gates and
// ups, their rows take turns, gates first.
enum class HfExpertForm : uint8_t {
  kNone = 0,
  kTransposed = 1,   // [experts, k, n]
  kBias = 2,         // [experts, n]
  kMxfp4 = 3,        // [experts, n, k / 32, 16] of U8, with a tensor of scales beside it
  kMxfp4Scales = 4,  // [experts, n, k / 32] of U8
};

// How one tensor of a folder becomes a tensor of GGUF.
struct HfTensorPlan {
  std::string gguf_name;
  std::optional<uint32_t> expert;  // one of the matrices that GGUF stores together
  bool all_experts = false;        // all of them together, as GGUF has them
  std::string second_gguf_name;    // with all_experts: the lower halves of them, or empty
  HfExpertForm expert_form = HfExpertForm::kNone;  // with second_gguf_name of gates and ups
  bool permuted_q = false;                         // rows of q, k in GGUF's order of llama
  bool permuted_k = false;
  bool plus_one = false;  // a gemma norm: GGUF holds 1 + weight
  bool as_f32 = false;    // vectors, the router and taps of convolutions are F32 in GGUF
  bool is_conv = false;   // [channels, 1, taps], in GGUF without the dimension of 1
  bool is_row = false;    // [1, n], in GGUF a vector [n]
  bool is_kv_b = false;   // in GGUF k_b and, with the second name, v_b (hf_deepseek.h)
  bool is_log = false;    // GGUF holds -e^x
  // Vectors [n] of Mamba-2: in GGUF a matrix [n, 1], or one of its groups [groups, n / groups].
  bool is_column = false;
  bool is_grouped = false;
  HfVHeads v_heads = HfVHeads::kNone;  // heads of v in GGUF's order
};

// The name that a tensor of the text part has in a model of text alone; empty for a tensor of the
// image part. transformers 4 and 5 write language_model.model.X; 5 has model.language_model.X in
// memory and can write that too.
std::string TextNameOfHfTensor(std::string_view name);

// `name` is the tensor's, or TextNameOfHfTensor of it.
// nullopt for a tensor that the architecture does not have. Constant tables of a model (rotary
// frequencies) and scales of activations have a plan with an empty name: they are not weights.
std::optional<HfTensorPlan> PlanHfTensor(const ArchitectureTraits& traits, std::string_view name,
                                         size_t num_dims);

// Reorders rows [heads, 2, half] to [heads, half, 2] (gguf.md: architecture llama turns
// neighbouring pairs), `row_bytes` each. The sizes of in and out are heads * 2 * half * row_bytes.
struct PermuteShape {
  uint64_t heads = 0;
  uint64_t half = 0;
  uint64_t row_bytes = 0;
};
void PermuteRows(const PermuteShape& shape, std::span<const std::byte> in, std::byte* out);

// Elements to fp32 (exact; of fp8 without their scales), plus `added`.
void ToF32(SafetensorsType type, std::span<const std::byte> in, float added, float* out);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_TENSORS_H_
