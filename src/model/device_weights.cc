#include "src/model/device_weights.h"

#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "kernels/math.h"
#include "src/model/encode_matrix.h"

namespace baton {
namespace {

absl::StatusOr<DeviceBuffer> CopyToDevice(Accelerator* device, std::span<const std::byte> bytes,
                                          std::string_view name) {
  BATON_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Create(device, bytes.size(), name));
  BATON_RETURN_IF_ERROR(device->CopyIn(buffer.data(), bytes.data(), bytes.size()));
  return buffer;
}

// The rows of all parts below one another, in bf16; none of them null.
absl::StatusOr<DeviceBuffer> LoadMatrix(std::initializer_list<const GgufTensor*> parts,
                                        Accelerator* device, ThreadPool& pool) {
  size_t total = 0;
  for (const GgufTensor* part : parts) total += part->num_elements() * sizeof(uint16_t);
  const std::string name((*parts.begin())->name);
  BATON_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Create(device, total, name));
  size_t done = 0;
  for (const GgufTensor* part : parts) {
    absl::StatusOr<std::vector<std::byte>> rows = EncodeMatrix(*part, GgmlType::kBf16, pool);
    if (!rows.ok()) {
      return WithPrefix(rows.status(), fmt::format("tensor \"{}\"", part->name));
    }
    BATON_RETURN_IF_ERROR(device->CopyIn(buffer.data() + done, rows->data(), rows->size()));
    done += rows->size();
  }
  return buffer;
}

// Of each expert the rows of its gate, then those of its up: the experts of both tensors in turn.
absl::StatusOr<DeviceBuffer> LoadGateUpOfExperts(const LayerTensors& tensors, Accelerator* device,
                                                 ThreadPool& pool) {
  const size_t total = 2 * tensors.gate->num_elements() * sizeof(uint16_t);
  BATON_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                         DeviceBuffer::Create(device, total, tensors.gate->name));
  const size_t num_experts = tensors.gate->dims[2];
  const size_t part_bytes = total / num_experts / 2;
  size_t place = 0;
  for (const GgufTensor* tensor : {tensors.gate, tensors.up}) {
    absl::StatusOr<std::vector<std::byte>> rows = EncodeMatrix(*tensor, GgmlType::kBf16, pool);
    if (!rows.ok()) {
      return WithPrefix(rows.status(), fmt::format("tensor \"{}\"", tensor->name));
    }
    for (size_t expert = 0; expert < num_experts; ++expert) {
      BATON_RETURN_IF_ERROR(device->CopyIn(buffer.data() + (2 * expert + place) * part_bytes,
                                           rows->data() + expert * part_bytes, part_bytes));
    }
    ++place;
  }
  return buffer;
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

absl::StatusOr<DeviceLayer> LoadLayer(const LayerTensors& tensors, Accelerator* device,
                                      ThreadPool& pool) {
  DeviceLayer out;
  BATON_ASSIGN_OR_RETURN(out.attn_norm, LoadVector(tensors.attn_norm, device));
  BATON_ASSIGN_OR_RETURN(out.qkv, LoadMatrix({tensors.q, tensors.k, tensors.v}, device, pool));
  BATON_ASSIGN_OR_RETURN(out.qkv_bias, LoadBias(tensors, device));
  BATON_ASSIGN_OR_RETURN(out.q_norm, LoadVector(tensors.q_norm, device));
  BATON_ASSIGN_OR_RETURN(out.k_norm, LoadVector(tensors.k_norm, device));
  BATON_ASSIGN_OR_RETURN(out.attn_output, LoadMatrix({tensors.attn_output}, device, pool));
  BATON_ASSIGN_OR_RETURN(out.post_attn_norm, LoadVector(tensors.post_attn_norm, device));
  BATON_ASSIGN_OR_RETURN(out.ffn_norm, LoadVector(tensors.ffn_norm, device));
  BATON_ASSIGN_OR_RETURN(out.post_ffn_norm, LoadVector(tensors.post_ffn_norm, device));
  if (tensors.router == nullptr) {
    BATON_ASSIGN_OR_RETURN(out.gate_up, LoadMatrix({tensors.gate, tensors.up}, device, pool));
  } else {
    BATON_ASSIGN_OR_RETURN(out.router, LoadMatrix({tensors.router}, device, pool));
    BATON_ASSIGN_OR_RETURN(out.gate_up, LoadGateUpOfExperts(tensors, device, pool));
  }
  BATON_ASSIGN_OR_RETURN(out.down, LoadMatrix({tensors.down}, device, pool));
  return out;
}

}  // namespace

absl::StatusOr<DeviceWeights> DeviceWeights::Load(const TensorPlan& plan, Accelerator* device,
                                                  ThreadPool& pool) {
  DeviceWeights out;
  BATON_ASSIGN_OR_RETURN(out.token_embd, LoadMatrix({plan.token_embd}, device, pool));
  if (plan.output != plan.token_embd) {
    BATON_ASSIGN_OR_RETURN(out.output, LoadMatrix({plan.output}, device, pool));
  }
  BATON_ASSIGN_OR_RETURN(out.output_norm, LoadVector(plan.output_norm, device));
  out.layers.reserve(plan.layers.size());
  for (const LayerTensors& tensors : plan.layers) {
    BATON_ASSIGN_OR_RETURN(DeviceLayer layer, LoadLayer(tensors, device, pool));
    out.layers.push_back(std::move(layer));
  }
  return out;
}

size_t DeviceWeights::bytes() const {
  size_t total = token_embd.size_bytes() + output.size_bytes() + output_norm.size_bytes();
  for (const DeviceLayer& layer : layers) {
    for (const DeviceBuffer* buffer :
         {&layer.attn_norm, &layer.qkv, &layer.attn_output, &layer.ffn_norm, &layer.gate_up,
          &layer.down, &layer.qkv_bias, &layer.q_norm, &layer.k_norm, &layer.router,
          &layer.post_attn_norm, &layer.post_ffn_norm}) {
      total += buffer->size_bytes();
    }
  }
  return total;
}

}  // namespace baton
