#include "src/model/model_rank.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/model/encode_matrix.h"

namespace baton::model {

using device::ThreadPool;

namespace {

// Where parts of the output layer begin: whole tiles of every packed format.
constexpr uint64_t kLogitsStep = 64;

uint64_t NumMatrices(const GgufTensor& tensor) { return tensor.dims[2] * tensor.dims[3]; }

// The part `rank` of `size`, which divides by the count.
IndexRange PartOf(uint64_t size, const ModelRank& rank) {
  const uint64_t part = size / rank.count;
  return {rank.index * part, part};
}

// Columns can be cut at multiples of this number. A row in fp8 with one scale can be cut anywhere.
uint64_t BlockElements(const GgufTensor& tensor) {
  if (tensor.fp8() == nullptr) return tensor.type->block_elements;
  return tensor.fp8()->group < tensor.dims[0] ? tensor.fp8()->group : 1;
}

// The smallest range of whole blocks that holds `columns`.
IndexRange WholeBlocks(const GgufTensor& tensor, const IndexRange& columns) {
  const uint64_t step = BlockElements(tensor);
  const uint64_t first = columns.first / step * step;
  const uint64_t end =
      std::min((columns.first + columns.count + step - 1) / step * step, tensor.dims[0]);
  return {first, end - first};
}

void SetScales(std::span<const float> values, uint32_t group, TensorSlice& out) {
  out.fp8->scales = {values, group};
  out.fp8->type = Fp8TensorType(out.fp8->scales);
  out.tensor.type = &out.fp8->type;
}

// The scales of the slice, which begins and ends with groups unless a row has one.
void TakeScales(const GgufTensor& tensor, const IndexRange& rows, const IndexRange& columns,
                TensorSlice& out) {
  const Fp8Scales& scales = *tensor.fp8();
  const uint64_t row_scales = (tensor.dims[0] - 1) / scales.group + 1;
  const uint64_t first = row_scales == 1 ? 0 : columns.first / scales.group;
  const uint64_t count = row_scales == 1 ? 1 : (columns.count - 1) / scales.group + 1;
  out.fp8 = std::make_unique<TensorSlice::Fp8Part>();
  for (uint64_t matrix = 0; matrix < NumMatrices(tensor); ++matrix) {
    for (uint64_t row = 0; row < rows.count; ++row) {
      const uint64_t at = (matrix * tensor.dims[1] + rows.first + row) * row_scales + first;
      const auto of_row = scales.values.subspan(at, count);
      out.fp8->values.insert(out.fp8->values.end(), of_row.begin(), of_row.end());
    }
  }
  SetScales(out.fp8->values, scales.group, out);
}

}  // namespace

absl::Status CheckRankCount(const ModelConfig& config, uint32_t count) {
  if (count != 1 && count != 2 && count != 4 && count != 8) {
    return InvalidArgument("a model is divided among 1, 2, 4 or 8 ranks, not {}", count);
  }
  if (config.local_head_dim != 0 && count > 1) {
    return Unimplemented("architecture {}: its layers are not divided among {} ranks",
                         config.architecture, count);
  }
  if (count > 1 && config.traits->latent_kv) {
    return Unimplemented(
        "architecture {}: its latent rows, one for all heads, are not divided among {} ranks",
        config.architecture, count);
  }
  if (count > 1 && config.traits->short_convs) {
    return Unimplemented("architecture {}: its convolutions are not divided among {} ranks",
                         config.architecture, count);
  }
  if (count > 1 && config.num_delta_layers() > 0) {
    return Unimplemented("architecture {}: its fixed states are not divided among {} ranks",
                         config.architecture, count);
  }
  const std::pair<std::string_view, uint32_t> sizes[] = {{"heads", config.num_heads},
                                                         {"KV heads", config.num_kv_heads},
                                                         {"ffn size", config.ffn_size}};
  for (const auto& [what, size] : sizes) {
    if (size % count != 0) {
      return InvalidArgument("the model's {}, {}, cannot be divided among {} ranks", what, size,
                             count);
    }
  }
  return OkStatus();
}

ModelConfig ConfigOfRank(const ModelConfig& config, uint32_t count) {
  ModelConfig part = config;
  part.num_heads /= count;
  part.num_kv_heads /= count;
  part.ffn_size /= count;
  return part;
}

IndexRange LogitsOfRank(const ModelConfig& config, const ModelRank& rank) {
  if (rank.count == 1) return {0, config.vocab_size};
  const uint64_t steps = (config.vocab_size + kLogitsStep - 1) / kLogitsStep;
  const uint64_t part = (steps + rank.count - 1) / rank.count * kLogitsStep;
  const uint64_t first = std::min<uint64_t>(rank.index * part, config.vocab_size);
  return {first, std::min<uint64_t>(part, config.vocab_size - first)};
}

TensorCut WholeOf(const GgufTensor* tensor) { return CutOf(tensor, {0, tensor->dims[1]}); }
TensorCut CutOf(const GgufTensor* tensor, const IndexRange& rows) {
  return {tensor, rows, {0, tensor->dims[0]}};
}
TensorCut CutColumnsOf(const GgufTensor* tensor, const IndexRange& columns) {
  return {tensor, {0, tensor->dims[1]}, columns};
}

TensorCut PickOf(const GgufTensor* tensor, std::vector<uint32_t> picked) {
  const uint64_t num_rows = tensor->num_dims == 1 ? 1 : picked.size();
  return {tensor, {0, num_rows}, {0, tensor->dims[0]}, std::move(picked)};
}

bool CutsBlocks(const TensorCut& cut) {
  return WholeBlocks(*cut.tensor, cut.columns) != cut.columns;
}

LayerShares SharesOf(const ModelConfig& config, const ModelRank& rank) {
  return {PartOf(config.q_size(), rank), PartOf(config.kv_size(), rank),
          PartOf(config.ffn_size, rank)};
}

TensorSlice RowsOfTensor(const GgufTensor& tensor, const IndexRange& rows,
                         std::span<const std::byte> bytes) {
  TensorSlice out = {tensor, nullptr, nullptr};
  out.tensor.num_dims = 2;
  out.tensor.dims = {tensor.dims[0], rows.count, 1, 1};
  out.tensor.data = bytes;
  if (tensor.fp8() == nullptr) return out;
  const Fp8Scales& scales = *tensor.fp8();
  const uint64_t row_scales = (tensor.dims[0] - 1) / scales.group + 1;
  out.fp8 = std::make_unique<TensorSlice::Fp8Part>();
  SetScales(scales.values.subspan(rows.first * row_scales, rows.count * row_scales), scales.group,
            out);
  return out;
}

TensorSlice PickRows(const GgufTensor& tensor, std::span<const uint32_t> picked) {
  const bool is_vector = tensor.dims[1] == 1;
  const size_t unit_bytes = tensor.data.size() / tensor.dims[is_vector ? 0 : 1];
  TensorSlice out = {tensor, std::make_unique<std::vector<std::byte>>(), nullptr};
  out.storage->resize(picked.size() * unit_bytes);
  std::byte* to = out.storage->data();
  for (const uint32_t from : picked) {
    std::memcpy(to, tensor.data.data() + from * unit_bytes, unit_bytes);
    to += unit_bytes;
  }
  if (!is_vector) out.tensor.dims[1] = picked.size();
  out.tensor.data = *out.storage;
  if (tensor.fp8() == nullptr) return out;
  const Fp8Scales& scales = *tensor.fp8();
  const uint64_t row_scales = (tensor.dims[0] - 1) / scales.group + 1;
  out.fp8 = std::make_unique<TensorSlice::Fp8Part>();
  for (const uint32_t from : picked) {
    const auto of_row = scales.values.subspan(from * row_scales, row_scales);
    out.fp8->values.insert(out.fp8->values.end(), of_row.begin(), of_row.end());
  }
  SetScales(out.fp8->values, scales.group, out);
  return out;
}

absl::StatusOr<TensorSlice> SliceTensor(const GgufTensor& tensor, const IndexRange& rows,
                                        const IndexRange& columns, ThreadPool& pool) {
  if (columns.count == tensor.dims[0] && NumMatrices(tensor) == 1) {
    const uint64_t row_bytes = tensor.data.size() / tensor.dims[1];
    return RowsOfTensor(tensor, rows,
                        tensor.data.subspan(rows.first * row_bytes, rows.count * row_bytes));
  }
  const IndexRange whole = WholeBlocks(tensor, columns);
  if (whole != columns) {
    // The whole blocks around them in bf16, of which any columns can be taken.
    BATON_ASSIGN_OR_RETURN(TensorSlice wider, SliceTensor(tensor, rows, whole, pool));
    BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> encoded,
                           EncodeMatrix(wider.tensor, GgmlType::kBf16, pool));
    wider.tensor.type = FindGgufTensorType(static_cast<uint32_t>(GgmlType::kBf16));
    wider.tensor.data = encoded;
    return SliceTensor(wider.tensor, {0, rows.count}, {columns.first - whole.first, columns.count},
                       pool);
  }
  TensorSlice out = {tensor, std::make_unique<std::vector<std::byte>>(), nullptr};
  const GgufTensorType& type = *tensor.type;
  const auto bytes_of = [&type](uint64_t elements) {
    return elements / type.block_elements * type.block_bytes;
  };
  const uint64_t row_bytes = bytes_of(tensor.dims[0]);
  const uint64_t part_bytes = bytes_of(columns.count);
  out.storage->resize(NumMatrices(tensor) * rows.count * part_bytes);
  std::byte* to = out.storage->data();
  for (uint64_t matrix = 0; matrix < NumMatrices(tensor); ++matrix) {
    const std::byte* from = tensor.data.data() +
                            (matrix * tensor.dims[1] + rows.first) * row_bytes +
                            bytes_of(columns.first);
    for (uint64_t row = 0; row < rows.count; ++row, from += row_bytes, to += part_bytes) {
      std::memcpy(to, from, part_bytes);
    }
  }
  out.tensor.dims[0] = columns.count;
  out.tensor.dims[1] = rows.count;
  out.tensor.data = *out.storage;
  if (tensor.fp8() != nullptr) TakeScales(tensor, rows, columns, out);
  return out;
}

}  // namespace baton::model
