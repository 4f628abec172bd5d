#include "src/model/gguf_nvfp4.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>

#include "src/base/quoted_text.h"

namespace baton::model {
namespace {

// Block scales and numbers are at most 448 and 6, so weights are finite.
constexpr float kMaxScale = 18446744073709551616.0f;  // 2^64

bool IsNvfp4(const GgufTensor& tensor) {
  return tensor.type->id == static_cast<uint32_t>(GgmlType::kNvfp4);
}

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

absl::Status TakeNvfp4Scales(std::vector<GgufTensor>& tensors,
                             std::vector<std::shared_ptr<const void>>& storage) {
  constexpr std::string_view kWeight = ".weight";
  std::map<std::string, GgufTensor*> by_scale;  // the matrix that a scale of this name has
  std::set<std::string> of_activations;
  for (GgufTensor& tensor : tensors) {
    if (!IsNvfp4(tensor) || !tensor.name.ends_with(kWeight)) continue;
    const std::string module(tensor.name.substr(0, tensor.name.size() - kWeight.size()));
    by_scale[module + ".scale"] = &tensor;
    of_activations.insert(module + ".input_scale");
  }
  if (by_scale.empty()) return absl::OkStatus();
  const auto types = std::make_shared<std::deque<GgufTensorType>>();
  std::vector<bool> leaves(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string name(tensors[i].name);
    leaves[i] = of_activations.contains(name);
    const auto it = by_scale.find(name);
    if (it == by_scale.end()) continue;
    BATON_ASSIGN_OR_RETURN(const float scale, ScaleOf(tensors[i], *it->second));
    it->second->type = &types->emplace_back(Nvfp4TensorType(scale, /*divides=*/false));
    leaves[i] = true;
  }
  std::vector<GgufTensor> kept;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!leaves[i]) kept.push_back(tensors[i]);
  }
  tensors = std::move(kept);
  storage.push_back(types);
  return absl::OkStatus();
}

}  // namespace baton::model
