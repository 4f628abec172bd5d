#include "src/model/model_weights.h"

#include <algorithm>
#include <cstring>

#include "src/base/hex.h"
#include "src/base/xxh3.h"

namespace baton {
namespace {

// The planner has checked that the tensor is F32.
std::vector<float> CopyVector(const GgufTensor& tensor) {
  std::vector<float> out(tensor.num_elements());
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

size_t VectorBytes(const std::vector<float>& values) { return values.size() * sizeof(float); }

uint32_t RowsOf(const GgufTensor& tensor) { return static_cast<uint32_t>(tensor.dims[1]); }

RawRows RawRowsOf(const GgufTensor& tensor) {
  return {WeightTypeOf(tensor), tensor.data, RowsOf(tensor)};
}

absl::StatusOr<MatrixGroup> PackGroup(std::span<const GgufTensor* const> tensors,
                                      ThreadPool& pool) {
  const uint32_t k = static_cast<uint32_t>(tensors[0]->dims[0]);
  MatrixGroup group;
  for (size_t begin = 0; begin < tensors.size();) {
    std::vector<RawRows> joined;
    size_t end = begin;
    while (end < tensors.size() && tensors[end]->type == tensors[begin]->type) {
      joined.push_back(RawRowsOf(*tensors[end++]));
    }
    absl::StatusOr<PackedMatrix> matrix = PackedMatrix::PackRows(joined, k, pool);
    if (!matrix.ok()) {
      return WithPrefix(matrix.status(), fmt::format("tensor \"{}\"", tensors[begin]->name));
    }
    group.n += matrix->n();
    group.uses_a16 = group.uses_a16 || matrix->uses_a16();
    group.parts.push_back(*std::move(matrix));
    begin = end;
  }
  return group;
}

absl::StatusOr<LayerWeights> LoadLayer(const LayerTensors& tensors, ThreadPool& pool) {
  const GgufTensor* const qkv[] = {tensors.q, tensors.k, tensors.v};
  const GgufTensor* const gate_up[] = {tensors.gate, tensors.up};
  LayerWeights out;
  out.attn_norm = CopyVector(*tensors.attn_norm);
  out.ffn_norm = CopyVector(*tensors.ffn_norm);
  BATON_ASSIGN_OR_RETURN(out.qkv, PackGroup(qkv, pool));
  BATON_ASSIGN_OR_RETURN(out.attn_output, PackGroup({&tensors.attn_output, 1}, pool));
  BATON_ASSIGN_OR_RETURN(out.gate_up, PackGroup(gate_up, pool));
  BATON_ASSIGN_OR_RETURN(out.down, PackGroup({&tensors.down, 1}, pool));
  return out;
}

}  // namespace

size_t MatrixGroup::bytes() const {
  size_t total = 0;
  for (const PackedMatrix& part : parts) total += part.bytes();
  return total;
}

size_t LayerWeights::bytes() const {
  return VectorBytes(attn_norm) + qkv.bytes() + attn_output.bytes() + VectorBytes(ffn_norm) +
         gate_up.bytes() + down.bytes();
}

size_t ModelWeights::bytes() const {
  size_t total = token_embd.bytes() + output.bytes() + VectorBytes(output_norm);
  for (const LayerWeights& layer : layers) total += layer.bytes();
  return total;
}

absl::StatusOr<ModelWeights> LoadWeights(const TensorPlan& plan, ThreadPool& pool) {
  ModelWeights out;
  const GgufTensor& embd = *plan.token_embd;
  BATON_ASSIGN_OR_RETURN(out.token_embd,
                         PackedMatrix::Pack(WeightTypeOf(embd), embd.data, RowsOf(embd),
                                            static_cast<uint32_t>(embd.dims[0]), pool));
  if (plan.output != plan.token_embd) {
    BATON_ASSIGN_OR_RETURN(out.output, PackGroup({&plan.output, 1}, pool));
  }
  out.output_norm = CopyVector(*plan.output_norm);
  if (plan.rope_factors != nullptr) out.rope_factors = CopyVector(*plan.rope_factors);
  out.layers.reserve(plan.layers.size());
  for (const LayerTensors& tensors : plan.layers) {
    BATON_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(tensors, pool));
    out.layers.push_back(std::move(layer));
  }
  return out;
}

std::string HashWeights(const GgufFile& file, const ModelConfig& config) {
  std::vector<const GgufTensor*> tensors;
  for (const GgufTensor& tensor : file.tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->name < b->name; });
  Xxh3Stream hash;
  hash.Update(CanonicalText(config));
  for (const GgufTensor* tensor : tensors) {
    hash.Update(fmt::format("\n{} {} {}\n", tensor->name, tensor->type->name, tensor->DimsText()));
    hash.Update(tensor->data.data(), tensor->data.size());
  }
  const Hash128 digest = hash.Digest128();
  return HexFromU64(digest.hi) + HexFromU64(digest.lo);
}

}  // namespace baton
