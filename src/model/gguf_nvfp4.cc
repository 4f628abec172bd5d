#include "src/model/gguf_nvfp4.h"

#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "src/base/quoted_text.h"

namespace baton::model {
namespace {

// Block scales and numbers are at most 448 and 6, so weights are finite.
constexpr float kMaxScale = 18446744073709551616.0f;  // 2^64

// The number that all elements of a scale are.
absl::StatusOr<float> ScaleOf(const GgufTensor& tensor, const GgufTensor& weight) {
  const auto bad = [&tensor](std::string_view what) {
    return GgufError(GgufErrorCode::kBadScale,
                     fmt::format("tensor {} {}", QuotedForMessage(tensor.name), what));
  };
  const uint64_t count = tensor.num_elements();
  const bool fits = tensor.type->id == static_cast<uint32_t>(GgmlType::kF32) &&
                    (count == 1 || count == weight.dims[2]);
  if (!fits) {
    return bad(fmt::format("is {} {}, wanted F32, one number or one for each of {} matrices",
                           tensor.type->name, tensor.DimsText(), weight.dims[2]));
  }
  std::vector<float> values(count);
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  for (const float value : values) {
    if (!(value > 0 && value <= kMaxScale)) {
      return bad(fmt::format("has an element {}, wanted a number in (0, 2^64]", value));
    }
    if (value != values[0]) {
      return bad("has another number for each expert, which is not computed; take the folder");
    }
  }
  return values[0];
}

}  // namespace

bool IsNvfp4(const GgufTensor& tensor) {
  return tensor.type->id == static_cast<uint32_t>(GgmlType::kNvfp4);
}

absl::Status TakeNvfp4Scales(std::vector<GgufTensor>& tensors, const TensorLookup& find,
                             std::vector<std::shared_ptr<const void>>& storage) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<bool> leaves(tensors.size());
  std::shared_ptr<std::deque<GgufTensorType>> types;
  for (GgufTensor& tensor : tensors) {
    if (!IsNvfp4(tensor) || !tensor.name.ends_with(kWeight)) continue;
    const std::string module(tensor.name.substr(0, tensor.name.size() - kWeight.size()));
    const GgufTensor* of_activations = find(module + ".input_scale");
    if (of_activations != nullptr) leaves[of_activations - tensors.data()] = true;
    const GgufTensor* scale = find(module + ".scale");
    if (scale == nullptr) continue;
    BATON_ASSIGN_OR_RETURN(const float value, ScaleOf(*scale, tensor));
    if (types == nullptr) types = std::make_shared<std::deque<GgufTensorType>>();
    tensor.type = &types->emplace_back(Nvfp4TensorType(value, /*divides=*/false));
    leaves[scale - tensors.data()] = true;
  }
  size_t kept = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!leaves[i]) tensors[kept++] = tensors[i];
  }
  tensors.resize(kept);
  if (types != nullptr) storage.push_back(std::move(types));
  return absl::OkStatus();
}

}  // namespace baton::model
