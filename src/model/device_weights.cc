#include "src/model/device_weights.h"

#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "kernels/math.h"
#include "src/model/encode_matrix.h"
#include "src/model/pack_tensor.h"

namespace baton {
namespace {

absl::StatusOr<DeviceBuffer> CopyToDevice(Accelerator* device, std::span<const std::byte> bytes,
                                          std::string_view name) {
  BATON_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Create(device, bytes.size(), name));
  BATON_RETURN_IF_ERROR(device->CopyIn(buffer.data(), bytes.data(), bytes.size()));
  return buffer;
}

// Tensors whose rows lie below one another in one matrix; none of them null.
using MatrixParts = std::initializer_list<const GgufTensor*>;

uint32_t RowsOf(const GgufTensor& tensor) {
  return static_cast<uint32_t>(tensor.num_elements() / tensor.dims[0]);
}

// The format in which the parts can be joined; kBf16 when they have none.
cuda::PackedFormat FormatOf(const MatrixParts& parts) {
  const GgufTensor* const first = *parts.begin();
  const GgufTensor* const last = *(parts.end() - 1);
  for (const GgufTensor* part : parts) {
    const bool joins = part == last || RowsOf(*part) % cuda::kPackedRows == 0;
    if (!joins || PackedFormatOf(*part) != PackedFormatOf(*first)) return cuda::PackedFormat::kBf16;
  }
  return PackedFormatOf(*first);
}

// The same of parts that are all experts in turn, each of which is to be whole tiles.
cuda::PackedFormat FormatOfExperts(const MatrixParts& parts) {
  const bool is_whole = (*parts.begin())->dims[1] % cuda::kPackedRows == 0;
  return is_whole ? FormatOf(parts) : cuda::PackedFormat::kBf16;
}

// One part as it lies on the device.
absl::StatusOr<std::vector<std::byte>> RowsFor(cuda::PackedFormat format, const GgufTensor& part,
                                               ThreadPool& pool) {
  if (format == cuda::PackedFormat::kBf16) return EncodeMatrix(part, GgmlType::kBf16, pool);
  const auto k = static_cast<uint32_t>(part.dims[0]);
  std::vector<std::byte> out(cuda::PackedBytes(format, RowsOf(part), k));
  BATON_RETURN_IF_ERROR(PackTensor(part, pool, out));
  return out;
}

size_t BytesFor(cuda::PackedFormat format, const GgufTensor& part) {
  if (format == cuda::PackedFormat::kBf16) return part.num_elements() * sizeof(uint16_t);
  return cuda::PackedBytes(format, RowsOf(part), static_cast<uint32_t>(part.dims[0]));
}

// Where weights go, and how.
struct Loader {
  bool keeps_packed;
  Accelerator* device;
  ThreadPool& pool;
};

absl::StatusOr<DeviceMatrix> LoadMatrix(const MatrixParts& parts, const Loader& loader) {
  DeviceMatrix out;
  if (loader.keeps_packed) out.format = FormatOf(parts);
  size_t total = 0;
  for (const GgufTensor* part : parts) total += BytesFor(out.format, *part);
  const std::string name((*parts.begin())->name);
  BATON_ASSIGN_OR_RETURN(out.data, DeviceBuffer::Create(loader.device, total, name));
  size_t done = 0;
  for (const GgufTensor* part : parts) {
    const absl::StatusOr<std::vector<std::byte>> rows = RowsFor(out.format, *part, loader.pool);
    if (!rows.ok()) {
      return WithPrefix(rows.status(), fmt::format("tensor \"{}\"", part->name));
    }
    BATON_RETURN_IF_ERROR(
        loader.device->CopyIn(out.data.data() + done, rows->data(), rows->size()));
    done += rows->size();
  }
  return out;
}

// Of each expert the rows of its gate, then those of its up: the experts of both tensors in turn.
absl::StatusOr<DeviceMatrix> LoadGateUpOfExperts(const LayerTensors& tensors,
                                                 const Loader& loader) {
  DeviceMatrix out;
  if (loader.keeps_packed) out.format = FormatOfExperts({tensors.gate, tensors.up});
  const size_t num_experts = tensors.gate->dims[2];
  const size_t part_bytes = BytesFor(out.format, *tensors.gate) / num_experts;
  BATON_ASSIGN_OR_RETURN(out.data, DeviceBuffer::Create(loader.device, 2 * num_experts * part_bytes,
                                                        tensors.gate->name));
  size_t place = 0;
  for (const GgufTensor* tensor : {tensors.gate, tensors.up}) {
    const absl::StatusOr<std::vector<std::byte>> rows = RowsFor(out.format, *tensor, loader.pool);
    if (!rows.ok()) {
      return WithPrefix(rows.status(), fmt::format("tensor \"{}\"", tensor->name));
    }
    for (size_t expert = 0; expert < num_experts; ++expert) {
      BATON_RETURN_IF_ERROR(
          loader.device->CopyIn(out.data.data() + (2 * expert + place) * part_bytes,
                                rows->data() + expert * part_bytes, part_bytes));
    }
    ++place;
  }
  return out;
}

absl::StatusOr<DeviceMatrix> LoadDownOfExperts(const GgufTensor& tensor, const Loader& loader) {
  const bool is_packed = FormatOfExperts({&tensor}) != cuda::PackedFormat::kBf16;
  return LoadMatrix({&tensor}, {loader.keeps_packed && is_packed, loader.device, loader.pool});
}

absl::StatusOr<DeviceBuffer> LoadVector(const GgufTensor* tensor, Accelerator* device) {
  if (tensor == nullptr) return DeviceBuffer();
  std::vector<uint16_t> rounded;
  for (const float value : FloatsOf(*tensor)) rounded.push_back(Bf16FromFloat(value));
  return CopyToDevice(device, std::as_bytes(std::span(rounded)), tensor->name);
}

absl::StatusOr<DeviceBuffer> LoadBias(const LayerTensors& tensors, Accelerator* device) {
  if (tensors.q_bias == nullptr) return DeviceBuffer();
  const std::vector<float> values = QkvBiasOf(tensors);
  return CopyToDevice(device, std::as_bytes(std::span(values)), tensors.q_bias->name);
}

absl::StatusOr<DeviceLayer> LoadLayer(const LayerTensors& tensors, const Loader& loader) {
  Accelerator* const device = loader.device;
  DeviceLayer out;
  BATON_ASSIGN_OR_RETURN(out.attn_norm, LoadVector(tensors.attn_norm, device));
  BATON_ASSIGN_OR_RETURN(out.qkv, LoadMatrix({tensors.q, tensors.k, tensors.v}, loader));
  BATON_ASSIGN_OR_RETURN(out.qkv_bias, LoadBias(tensors, device));
  BATON_ASSIGN_OR_RETURN(out.q_norm, LoadVector(tensors.q_norm, device));
  BATON_ASSIGN_OR_RETURN(out.k_norm, LoadVector(tensors.k_norm, device));
  BATON_ASSIGN_OR_RETURN(out.attn_output, LoadMatrix({tensors.attn_output}, loader));
  BATON_ASSIGN_OR_RETURN(out.post_attn_norm, LoadVector(tensors.post_attn_norm, device));
  BATON_ASSIGN_OR_RETURN(out.ffn_norm, LoadVector(tensors.ffn_norm, device));
  BATON_ASSIGN_OR_RETURN(out.post_ffn_norm, LoadVector(tensors.post_ffn_norm, device));
  if (tensors.router == nullptr) {
    BATON_ASSIGN_OR_RETURN(out.gate_up, LoadMatrix({tensors.gate, tensors.up}, loader));
    BATON_ASSIGN_OR_RETURN(out.down, LoadMatrix({tensors.down}, loader));
    return out;
  }
  BATON_ASSIGN_OR_RETURN(out.router, LoadMatrix({tensors.router}, loader));
  BATON_ASSIGN_OR_RETURN(out.gate_up, LoadGateUpOfExperts(tensors, loader));
  BATON_ASSIGN_OR_RETURN(out.down, LoadDownOfExperts(*tensors.down, loader));
  return out;
}

// Each matrix of the model.
template <typename Visit>
void ForEachMatrix(const DeviceWeights& weights, const Visit& visit) {
  visit(weights.token_embd);
  visit(weights.output);
  for (const DeviceLayer& layer : weights.layers) {
    for (const DeviceMatrix* matrix :
         {&layer.qkv, &layer.attn_output, &layer.gate_up, &layer.down, &layer.router}) {
      visit(*matrix);
    }
  }
}

}  // namespace

absl::StatusOr<DeviceWeights> DeviceWeights::Load(const TensorPlan& plan,
                                                  const DeviceWeightsPart& part,
                                                  Accelerator* device, ThreadPool& pool) {
  const Loader loader = {part.keeps_packed, device, pool};
  DeviceWeights out;
  BATON_ASSIGN_OR_RETURN(out.token_embd, LoadMatrix({plan.token_embd}, loader));
  const IndexRange logits = LogitsOfRank(*part.config, part.rank);
  if (part.rank.count > 1) {
    const IndexRange columns = {0, plan.output->dims[0]};
    BATON_ASSIGN_OR_RETURN(const TensorSlice rows,
                           SliceTensor(*plan.output, logits, columns, pool));
    if (logits.count > 0) {
      BATON_ASSIGN_OR_RETURN(out.output, LoadMatrix({&rows.tensor}, loader));
    }
  } else if (plan.output != plan.token_embd) {
    BATON_ASSIGN_OR_RETURN(out.output, LoadMatrix({plan.output}, loader));
  }
  BATON_ASSIGN_OR_RETURN(out.output_norm, LoadVector(plan.output_norm, device));
  out.layers.reserve(plan.layers.size());
  for (const LayerTensors& tensors : plan.layers) {
    if (part.rank.count == 1) {
      BATON_ASSIGN_OR_RETURN(DeviceLayer layer, LoadLayer(tensors, loader));
      out.layers.push_back(std::move(layer));
      continue;
    }
    BATON_ASSIGN_OR_RETURN(const LayerSlice slice,
                           LayerSlice::Create(tensors, *part.config, part.rank, pool));
    BATON_ASSIGN_OR_RETURN(DeviceLayer layer, LoadLayer(slice.tensors(), loader));
    out.layers.push_back(std::move(layer));
  }
  return out;
}

size_t DeviceWeights::bytes() const {
  size_t total = output_norm.size_bytes();
  ForEachMatrix(*this, [&total](const DeviceMatrix& matrix) { total += matrix.size_bytes(); });
  for (const DeviceLayer& layer : layers) {
    for (const DeviceBuffer* buffer :
         {&layer.attn_norm, &layer.ffn_norm, &layer.qkv_bias, &layer.q_norm, &layer.k_norm,
          &layer.post_attn_norm, &layer.post_ffn_norm}) {
      total += buffer->size_bytes();
    }
  }
  return total;
}

size_t DeviceWeights::packed_bytes() const {
  size_t total = 0;
  ForEachMatrix(*this, [&total](const DeviceMatrix& matrix) {
    if (matrix.is_packed()) total += matrix.size_bytes();
  });
  return total;
}

}  // namespace baton
