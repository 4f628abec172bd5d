#include "src/model/convert.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/ops.h"
#include "src/base/quoted_text.h"
#include "src/model/model_config.h"
#include "src/model/partial_file.h"
#include "src/model/quantize.h"
#include "src/model/tensor_plan.h"

namespace baton {
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
  const bool vector = tensor.num_dims == 1;
  if (vector || tensor.name.ends_with("ffn_gate_inp.weight")) {
    return static_cast<GgmlType>(tensor.type->id);
  }
  return tensor.dims[0] % RowOf(wanted).block_elements == 0 ? wanted : GgmlType::kBf16;
}

uint64_t RowBytes(const GgufTensor& tensor, GgmlType type) {
  const GgufTensorType& row = RowOf(type);
  return tensor.dims[0] / row.block_elements * row.block_bytes;
}

// Rows of one matrix in the new type. Dequantised through the packed form, the one place that knows
// every type's blocks.
absl::StatusOr<std::vector<std::byte>> EncodeMatrix(const GgufTensor& tensor, GgmlType type,
                                                    ThreadPool& pool) {
  const uint32_t k = static_cast<uint32_t>(tensor.dims[0]);
  const uint32_t n = static_cast<uint32_t>(tensor.num_elements() / tensor.dims[0]);
  BATON_ASSIGN_OR_RETURN(const PackedMatrix matrix,
                         PackedMatrix::Pack(WeightTypeOf(tensor), tensor.data, n, k, pool));
  BATON_ASSIGN_OR_RETURN(const Ops* ops, OpsFor(Isa::kAuto));
  const uint64_t row_bytes = RowBytes(tensor, type);
  std::vector<std::byte> out(n * row_bytes);
  constexpr uint32_t kRows = 256;
  std::vector<float> rows(size_t{std::min(kRows, n)} * k);
  std::vector<int32_t> ids;
  for (uint32_t begin = 0; begin < n; begin += kRows) {
    const uint32_t count = std::min(kRows, n - begin);
    ids.clear();
    for (uint32_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(begin + i));
    ops->embed(pool, matrix, ids, rows.data());
    pool.RunRanges(count, 8, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
      for (uint32_t i = range.begin; i < range.end; ++i) {
        EncodeRow(type, std::span(rows).subspan(size_t{i} * k, k),
                  out.data() + (begin + i) * row_bytes);
      }
    });
  }
  return out;
}

// The keys of the new file: those of the model but for what describes the old file.
absl::Status AddKeys(const GgufFile& file, const ConvertOptions& options, GgufWriter& writer) {
  for (const GgufEntry& entry : file.entries()) {
    const bool of_the_file = entry.key.starts_with("split.") || entry.key == "general.alignment" ||
                             entry.key == "general.file_type" ||
                             entry.key == "general.quantization_version";
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
  GgufWriter writer;
  BATON_RETURN_IF_ERROR(AddKeys(file, options, writer));
  for (const GgufTensor& tensor : file.tensors()) {
    const GgmlType type = TargetOf(tensor, options.type);
    const std::span<const uint64_t> dims(tensor.dims.data(), tensor.num_dims);
    writer.AddTensor({tensor.name, dims, static_cast<uint32_t>(type),
                      tensor.num_elements() / tensor.dims[0] * RowBytes(tensor, type)});
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
      BATON_ASSIGN_OR_RETURN(encoded, EncodeMatrix(tensor, type, *options.pool));
      bytes = encoded;
    }
    BATON_RETURN_IF_ERROR(out.Write(bytes));
    const uint64_t pad = GgufWriter::Padded(bytes.size()) - bytes.size();
    BATON_RETURN_IF_ERROR(out.Write(std::span(padding).first(pad)));
  }
  return out.Finish();
}

}  // namespace baton
