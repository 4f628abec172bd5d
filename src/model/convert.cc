#include "src/model/convert.h"

#include <array>
#include <vector>

#include "src/base/quoted_text.h"
#include "src/model/encode_matrix.h"
#include "src/model/gguf_nvfp4.h"
#include "src/model/hf_folder.h"
#include "src/model/model_config.h"
#include "src/model/partial_file.h"
#include "src/model/weight_checks.h"

namespace baton::model {
namespace {

// Types that can be written: their name here, and general.file_type of llama.cpp's llama_ftype.
struct ConvertType {
  std::string_view name;
  GgmlType type;
  uint32_t file_type;
};
constexpr std::array kTypes = {
    ConvertType{"bf16", GgmlType::kBf16, 32},
    ConvertType{"q8_0", GgmlType::kQ8_0, 7},
    ConvertType{"q4_0", GgmlType::kQ4_0, 2},
    ConvertType{"q4_1", GgmlType::kQ4_1, 3},
};

const GgufTensorType& RowOf(GgmlType type) {
  return *FindGgufTensorType(static_cast<uint32_t>(type));
}

// The type that a tensor gets.
GgmlType TargetOf(const GgufTensor& tensor, GgmlType wanted) {
  // Routers and the taps of convolutions are as small as vectors. Biases of experts are vectors,
  // one below the other; so are those of Mamba-2 that have two dimensions.
  const bool is_small = tensor.num_dims == 1 || tensor.name.ends_with(".bias") ||
                        tensor.name.ends_with("ffn_gate_inp.weight") ||
                        tensor.name.ends_with("ffn_gate_inp_shexp.weight") ||
                        tensor.name.ends_with("shortconv.conv.weight") ||
                        tensor.name.ends_with("ssm_conv1d.weight") ||
                        tensor.name.ends_with(".ssm_a") || tensor.name.ends_with(".ssm_d") ||
                        tensor.name.ends_with("ssm_norm.weight");
  // A scale of NVFP4 would be lost.
  if (is_small && !IsNvfp4(tensor)) {
    return static_cast<GgmlType>(tensor.type->id);
  }
  return tensor.dims[0] % RowOf(wanted).block_elements == 0 ? wanted : GgmlType::kBf16;
}

// The keys of the new file: those of the model but for what describes the old file.
absl::Status AddKeys(const GgufFile& file, const ConvertOptions& options, GgufWriter& writer) {
  for (const GgufEntry& entry : file.entries()) {
    const bool of_the_file = entry.key.starts_with("split.") || entry.key == "general.alignment" ||
                             entry.key == "general.file_type" ||
                             entry.key == "general.quantization_version" ||
                             entry.key == kPackedMatricesKey;
    if (!of_the_file) writer.AddValue(entry.key, entry.value);
  }
  for (const ConvertType& row : kTypes) {
    if (row.type == options.type) writer.AddU32("general.file_type", row.file_type);
  }
  writer.AddU32("general.quantization_version", 2);
  if (options.add_keys) options.add_keys(writer);
  return OkStatus();
}

}  // namespace

absl::StatusOr<GgmlType> ParseConvertType(std::string_view text) {
  for (const ConvertType& row : kTypes) {
    if (row.name == text) return row.type;
  }
  return InvalidArgument("type {} is not one of bf16, q8_0, q4_0, q4_1", QuotedForMessage(text));
}

absl::Status ConvertModel(const GgufFile& file, const ConvertOptions& options,
                          const std::string& path) {
  BATON_RETURN_IF_ERROR(ReadModelConfig(file).status());
  BATON_RETURN_IF_ERROR(CheckVectors(file));
  BATON_RETURN_IF_ERROR(CheckElements(file, *options.pool));
  GgufWriter writer;
  BATON_RETURN_IF_ERROR(AddKeys(file, options, writer));
  for (const GgufTensor& tensor : file.tensors()) {
    const GgmlType type = TargetOf(tensor, options.type);
    const std::span<const uint64_t> dims(tensor.dims.data(), tensor.num_dims);
    writer.AddTensor({tensor.name, dims, static_cast<uint32_t>(type),
                      tensor.num_elements() / tensor.dims[0] * EncodedRowBytes(tensor, type)});
  }
  PartialFile out(path);
  BATON_RETURN_IF_ERROR(out.Open());
  BATON_RETURN_IF_ERROR(out.Write(writer.Header()));
  const std::array<std::byte, GgufWriter::kAlignment> padding = {};
  for (const GgufTensor& tensor : file.tensors()) {
    const GgmlType type = TargetOf(tensor, options.type);
    std::vector<std::byte> encoded;
    std::span<const std::byte> bytes = tensor.data;
    if (static_cast<uint32_t>(type) != tensor.type->id) {
      absl::StatusOr<std::vector<std::byte>> made = EncodeMatrix(tensor, type, *options.pool);
      if (!made.ok()) return WithPrefix(made.status(), "tensor " + tensor.NameText());
      encoded = *std::move(made);
      bytes = encoded;
    }
    BATON_RETURN_IF_ERROR(out.Write(bytes));
    const uint64_t pad = GgufWriter::Padded(bytes.size()) - bytes.size();
    BATON_RETURN_IF_ERROR(out.Write(std::span(padding).first(pad)));
  }
  return out.Finish();
}

}  // namespace baton::model
