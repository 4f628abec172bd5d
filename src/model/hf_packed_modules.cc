#include "src/model/hf_packed_modules.h"

#include <algorithm>
#include <span>

#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"

namespace baton::model {
namespace {

constexpr std::string_view kWeight = ".weight";

// The end of a name says which part a tensor is.
struct PartRow {
  std::string_view suffix;
  const SafetensorsTensor* HfPackedParts::*part;
};
constexpr PartRow kColumnParts[] = {{".qweight", &HfPackedParts::codes},
                                    {".qzeros", &HfPackedParts::zeros},
                                    {".scales", &HfPackedParts::scales},
                                    {".g_idx", &HfPackedParts::group_of}};
constexpr PartRow kRowParts[] = {
    {".weight_packed", &HfPackedParts::codes},       {".weight", &HfPackedParts::codes},
    {".weight_scale", &HfPackedParts::scales},       {".weight_zero_point", &HfPackedParts::zeros},
    {".weight_g_idx", &HfPackedParts::group_of},     {".weight_shape", &HfPackedParts::shape},
    {".weight_global_scale", &HfPackedParts::global}};
constexpr PartRow kModelOptParts[] = {{".weight", &HfPackedParts::codes},
                                      {".weight_scale", &HfPackedParts::scales},
                                      {".weight_scale_2", &HfPackedParts::global}};

std::span<const PartRow> PartsOf(HfQuantMethod method) {
  switch (method) {
    case HfQuantMethod::kAwq:
    case HfQuantMethod::kGptq:
      return kColumnParts;
    case HfQuantMethod::kCompressed:
      return kRowParts;
    case HfQuantMethod::kModelOpt:
      return kModelOptParts;
    default:
      return {};
  }
}

// The row of a tensor's name; null for a tensor that is no part.
const PartRow* RowOf(std::span<const PartRow> rows, const SafetensorsTensor& tensor) {
  for (const PartRow& row : rows) {
    if (!tensor.name.ends_with(row.suffix)) continue;
    // Codes of other types have names of their own, and F8_E4M3 is not packed.
    const bool is_plain = row.suffix == kWeight && tensor.type != SafetensorsType::kI8 &&
                          tensor.type != SafetensorsType::kU8;
    return is_plain ? nullptr : &row;
  }
  return nullptr;
}

// A list of modules must have those in F8_E4M3 too, which are no packed matrices.
absl::Status CheckListed(const HfQuantization& quantization, const SafetensorsTensor& tensor) {
  const bool is_fp8 = tensor.type == SafetensorsType::kF8E4M3 && tensor.name.ends_with(kWeight);
  if (quantization.layers.empty() || !is_fp8) return OkStatus();
  const std::string_view name = tensor.name;
  const auto is_it = [](const HfWeightKind& kind) { return kind.is_float && kind.bits == 8; };
  if (std::ranges::any_of(KindsOf(quantization, name.substr(0, name.size() - kWeight.size())),
                          is_it)) {
    return OkStatus();
  }
  return TensorError(FolderErrorCode::kUnsupportedValue, tensor.name,
                     "F8_E4M3, which quantization_config does not declare");
}

std::string ModuleOf(const PartRow& row, const SafetensorsTensor& tensor) {
  return tensor.name.substr(0, tensor.name.size() - row.suffix.size());
}

}  // namespace

absl::Status HfPackedModules::Join(const HfQuantization& quantization,
                                   std::vector<const SafetensorsTensor*>& taken) {
  const std::span<const PartRow> rows = PartsOf(quantization.method);
  if (rows.empty()) return OkStatus();
  quantization_ = quantization;
  std::map<std::string, HfPackedParts> parts;
  for (const SafetensorsTensor* tensor : taken) {
    BATON_RETURN_IF_ERROR(CheckListed(quantization, *tensor));
    const PartRow* row = RowOf(rows, *tensor);
    if (row == nullptr || row->part != &HfPackedParts::codes) continue;
    const SafetensorsTensor*& codes = parts[ModuleOf(*row, *tensor)].codes;
    if (codes != nullptr) {
      return TensorError(FolderErrorCode::kDuplicateTensor, tensor->name,
                         fmt::format("there is {} too", QuotedForMessage(codes->name)));
    }
    codes = tensor;
  }
  // Parts of no module stay, and are refused by their names.
  std::vector<const SafetensorsTensor*> rest;
  for (const SafetensorsTensor* tensor : taken) {
    const PartRow* row = RowOf(rows, *tensor);
    const auto module = row == nullptr ? parts.end() : parts.find(ModuleOf(*row, *tensor));
    if (module == parts.end()) {
      rest.push_back(tensor);
    } else {
      module->second.*row->part = tensor;
    }
  }
  for (const auto& [module, tensors] : parts) {
    if (SaysPlain(quantization, module)) {
      return TensorError(FolderErrorCode::kUnsupportedValue, tensors.codes->name,
                         "quantization_config says that this module is not quantised");
    }
    BATON_ASSIGN_OR_RETURN(const HfPackedMatrix matrix, HfPackedMatrixOf(tensors, quantization));
    const std::string name = module + std::string(kWeight);
    modules_.emplace(name, matrix);
    tensors_.push_back({name, SafetensorsType::kU8, {matrix.n, matrix.k}, {}});
    rest.push_back(&tensors_.back());
  }
  for (const SafetensorsTensor* tensor : rest) {
    if (tensor->data.empty() || !modules_.contains(tensor->name)) continue;
    return TensorError(FolderErrorCode::kDuplicateTensor, tensor->name, "it is there packed too");
  }
  taken = std::move(rest);
  return OkStatus();
}

const HfPackedMatrix* HfPackedModules::Find(const SafetensorsTensor& tensor) const {
  const auto it = modules_.find(tensor.name);
  return it == modules_.end() ? nullptr : &it->second;
}

bool HfPackedModules::HasModule(std::string_view module) const {
  return modules_.contains(std::string(module) + std::string(kWeight));
}

void HfPackedModules::Count(const HfPackedMatrix& matrix, GgmlType type) {
  const std::string_view name = FindGgufTensorType(static_cast<uint32_t>(type))->name;
  counts_[fmt::format("{} as {}", HfPackedText(matrix), name)] += 1;
}

std::string HfPackedModules::Summary() const {
  std::string out;
  for (const auto& [kind, count] : counts_) {
    out += fmt::format("{} {} of {}", out.empty() ? quantization_.name + ":" : ",", count, kind);
  }
  if (out.empty() || quantization_.unused.empty()) return out;
  return fmt::format("{}; not used: {}", out, fmt::join(quantization_.unused, ", "));
}

}  // namespace baton::model
