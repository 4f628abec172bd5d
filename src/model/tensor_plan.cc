#include "src/model/tensor_plan.h"

#include <string>
#include <string_view>

#include "src/base/check.h"

namespace baton {
namespace {

// Looks up tensors and counts those used, so that left-over tensors can be reported.
class TensorFinder {
 public:
  explicit TensorFinder(const GgufFile& file) : file_(file), used_(file.tensors().size(), false) {}

  // A matrix [n, k] of any supported type.
  absl::StatusOr<const GgufTensor*> Matrix(std::string_view name, uint64_t n, uint64_t k) {
    BATON_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name));
    if (tensor->type->support != GgufTypeSupport::kSupported) return Unsupported(*tensor);
    if (tensor->num_dims != 2 || tensor->dims[0] != k || tensor->dims[1] != n) {
      return InvalidArgument("tensor \"{}\" is {}, the model needs [{}, {}]", name,
                             tensor->DimsText(), k, n);
    }
    return tensor;
  }

  // A vector [n] of F32.
  absl::StatusOr<const GgufTensor*> Vector(std::string_view name, uint64_t n) {
    BATON_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name));
    if (tensor->type->id != static_cast<uint32_t>(GgmlType::kF32)) {
      return Unimplemented("tensor \"{}\" has type {}, only F32 is supported here", name,
                           tensor->type->name);
    }
    if (tensor->num_elements() != n || tensor->dims[0] != n) {
      return InvalidArgument("tensor \"{}\" is {}, the model needs [{}]", name, tensor->DimsText(),
                             n);
    }
    return tensor;
  }

  bool Has(std::string_view name) const { return file_.FindTensor(name) != nullptr; }

  // Unimplemented naming the first tensor that nothing asked for.
  absl::Status CheckAllUsed() const {
    for (size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      return Unimplemented("tensor {} is not part of a {} model that is supported",
                           QuotedForMessage(file_.tensors()[i].name), "llama");
    }
    return OkStatus();
  }

 private:
  absl::StatusOr<const GgufTensor*> Find(std::string_view name) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return NotFound("tensor \"{}\" is missing", name);
    used_[static_cast<size_t>(tensor - file_.tensors().data())] = true;
    return tensor;
  }

  static absl::Status Unsupported(const GgufTensor& tensor) {
    return Unimplemented(
        "tensor \"{}\" has type {}, which is not supported yet (F32, F16, BF16, Q4_0, Q4_1 and "
        "Q8_0 "
        "are)",
        tensor.name, tensor.type->name);
  }

  const GgufFile& file_;
  std::vector<bool> used_;  // by index of file_.tensors()
};

absl::StatusOr<LayerTensors> PlanLayer(TensorFinder& finder, const ModelConfig& config,
                                       uint32_t layer) {
  const auto name = [layer](std::string_view part) {
    return fmt::format("blk.{}.{}.weight", layer, part);
  };
  const uint32_t hidden = config.hidden_size;
  LayerTensors out;
  BATON_ASSIGN_OR_RETURN(out.attn_norm, finder.Vector(name("attn_norm"), hidden));
  BATON_ASSIGN_OR_RETURN(out.q, finder.Matrix(name("attn_q"), config.q_size(), hidden));
  BATON_ASSIGN_OR_RETURN(out.k, finder.Matrix(name("attn_k"), config.kv_size(), hidden));
  BATON_ASSIGN_OR_RETURN(out.v, finder.Matrix(name("attn_v"), config.kv_size(), hidden));
  BATON_ASSIGN_OR_RETURN(out.attn_output,
                         finder.Matrix(name("attn_output"), hidden, config.q_size()));
  BATON_ASSIGN_OR_RETURN(out.ffn_norm, finder.Vector(name("ffn_norm"), hidden));
  BATON_ASSIGN_OR_RETURN(out.gate, finder.Matrix(name("ffn_gate"), config.ffn_size, hidden));
  BATON_ASSIGN_OR_RETURN(out.up, finder.Matrix(name("ffn_up"), config.ffn_size, hidden));
  BATON_ASSIGN_OR_RETURN(out.down, finder.Matrix(name("ffn_down"), hidden, config.ffn_size));
  return out;
}

}  // namespace

absl::StatusOr<TensorPlan> PlanTensors(const GgufFile& file, const ModelConfig& config) {
  TensorFinder finder(file);
  TensorPlan plan;
  BATON_ASSIGN_OR_RETURN(plan.token_embd,
                         finder.Matrix("token_embd.weight", config.vocab_size, config.hidden_size));
  BATON_ASSIGN_OR_RETURN(plan.output_norm, finder.Vector("output_norm.weight", config.hidden_size));
  plan.output = plan.token_embd;
  if (!config.tied_output) {
    BATON_ASSIGN_OR_RETURN(plan.output,
                           finder.Matrix("output.weight", config.vocab_size, config.hidden_size));
  }
  if (config.has_rope_factors) {
    BATON_ASSIGN_OR_RETURN(plan.rope_factors,
                           finder.Vector("rope_freqs.weight", config.rope_dims / 2));
  }
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    BATON_ASSIGN_OR_RETURN(LayerTensors tensors, PlanLayer(finder, config, layer));
    plan.layers.push_back(tensors);
  }
  BATON_RETURN_IF_ERROR(finder.CheckAllUsed());
  return plan;
}

WeightType WeightTypeOf(const GgufTensor& tensor) {
  switch (static_cast<GgmlType>(tensor.type->id)) {
    case GgmlType::kF32:
      return WeightType::kF32;
    case GgmlType::kF16:
      return WeightType::kF16;
    case GgmlType::kBf16:
      return WeightType::kBf16;
    case GgmlType::kQ4_0:
      return WeightType::kQ4_0;
    case GgmlType::kQ4_1:
      return WeightType::kQ4_1;
    case GgmlType::kQ8_0:
      return WeightType::kQ8_0;
  }
  // PlanTensors lets supported types through only.
  BATON_CHECK(false, "tensor type {} has no kernel", tensor.type->id);
  return WeightType::kF32;
}

}  // namespace baton
