#include "src/model/device_weights.h"

#include <initializer_list>
#include <utility>

#include "src/base/size_text.h"
#include "src/model/pack_tensor.h"
#include "src/model/tensor_part.h"

namespace baton::model {

namespace cuda = kernels::cuda;
using device::DeviceBuffer;

namespace {

// Cuts of tensors whose rows lie below one another in one matrix.
using MatrixCuts = std::initializer_list<TensorCut>;

uint64_t NumMatrices(const TensorCut& cut) { return cut.tensor->dims[2] * cut.tensor->dims[3]; }

// The format in which the cuts can be joined; kBf16 when they have none. Each begins with a tile,
// and so does each of several matrices.
cuda::PackedFormat FormatOf(const MatrixCuts& cuts) {
  const cuda::PackedFormat format = PackedFormatOf(*cuts.begin());
  const TensorCut* const last = cuts.end() - 1;
  for (const TensorCut& cut : cuts) {
    const bool ends = &cut == last && NumMatrices(cut) == 1;
    const bool joins = ends || cut.rows.count % cuda::kPackedRows == 0;
    if (!joins || PackedFormatOf(cut) != format) return cuda::PackedFormat::kBf16;
  }
  return format;
}

// Allocates the weights of a rank and notes what is to be copied there. When the device's memory is
// short the rest is only counted.
class WeightPlacer {
 public:
  // `order`: TensorPlan::head_order.
  WeightPlacer(const DeviceWeightsPart& part, const HeadOrder& order, WeightParts& parts)
      : part_(part), order_(order), shares_(SharesOf(*part.config, part.rank)), parts_(parts) {}

  // An empty one when there is no such tensor.
  absl::StatusOr<DeviceBuffer> PlaceVector(const GgufTensor* tensor) {
    if (tensor == nullptr) return DeviceBuffer();
    BATON_ASSIGN_OR_RETURN(DeviceMatrix vector, Place({WholeOf(tensor)}, {}));
    return std::move(vector.data);
  }

  absl::StatusOr<DeviceMatrix> PlaceMatrix(const MatrixCuts& cuts) {
    WeightForm form;
    if (part_.keeps_packed) form.format = FormatOf(cuts);
    return Place(cuts, form);
  }

  absl::StatusOr<DeviceLayer> PlaceLayer(const LayerTensors& tensors) {
    DeviceLayer out;
    BATON_ASSIGN_OR_RETURN(out.attn_norm, PlaceVector(tensors.attn_norm));
    BATON_RETURN_IF_ERROR(PlaceMixer(tensors, out));
    BATON_ASSIGN_OR_RETURN(out.post_attn_norm, PlaceVector(tensors.post_attn_norm));
    BATON_ASSIGN_OR_RETURN(out.ffn_norm, PlaceVector(tensors.ffn_norm));
    BATON_ASSIGN_OR_RETURN(out.post_ffn_norm, PlaceVector(tensors.post_ffn_norm));
    if (tensors.router != nullptr) {
      BATON_ASSIGN_OR_RETURN(out.router, PlaceMatrix({WholeOf(tensors.router)}));
    }
    BATON_ASSIGN_OR_RETURN(out.choice_bias, PlaceFloats(tensors.choice_bias));
    // A dense layer of a mixture has a width of its own. Such a model is of one rank.
    const uint64_t dense_size = part_.config->dense_ffn_size;
    const bool is_dense = tensors.router == nullptr && dense_size > 0;
    const IndexRange ffn = is_dense ? IndexRange{0, dense_size} : shares_.ffn;
    // For each expert, the rows of its gate come first, then the rows of its up.
    BATON_ASSIGN_OR_RETURN(out.gate_up,
                           PlaceMatrix({CutOf(tensors.gate, ffn), CutOf(tensors.up, ffn)}));
    BATON_ASSIGN_OR_RETURN(out.down, PlaceMatrix({CutColumnsOf(tensors.down, ffn)}));
    return out;
  }

  // ResourceExhausted when the device's memory was short: what all would take, what was placed, and
  // what the device said then.
  absl::Status Shortage() const {
    if (shortage_.ok()) return absl::OkStatus();
    const ModelRank& rank = part_.rank;
    const std::string whose =
        rank.count > 1 ? fmt::format(" of rank {} of {}", rank.index, rank.count) : "";
    return WithPrefix(shortage_, fmt::format("the weights{} take {}, and after {} of them", whose,
                                             FormatSize(needed_bytes_), FormatSize(placed_bytes_)));
  }

 private:
  absl::Status PlaceMixer(const LayerTensors& tensors, DeviceLayer& out) {
    if (tensors.delta_out != nullptr) return PlaceDeltaNet(tensors, out);
    if (tensors.conv_in != nullptr) return PlaceConvolution(tensors, out);
    return order_.has_gates ? PlaceGatedAttention(tensors, out) : PlaceAttention(tensors, out);
  }

  // A head of attn_q has its q, then its gate. The model has one rank (CheckRankCount).
  absl::Status PlaceGatedAttention(const LayerTensors& tensors, DeviceLayer& out) {
    const uint32_t dim = order_.head_dim;
    const auto pick = [this](const GgufTensor* tensor, uint32_t per_head, uint32_t first,
                             bool turns) {
      const auto num_heads = static_cast<uint32_t>(tensor->dims[1] / per_head);
      return PickOf(tensor, PickHeads(order_, {num_heads, per_head, first}, turns));
    };
    BATON_ASSIGN_OR_RETURN(
        out.qkv, PlaceMatrix({pick(tensors.q, 2 * dim, 0, /*turns=*/true),
                              pick(tensors.k, dim, 0, /*turns=*/true), WholeOf(tensors.v)}));
    BATON_ASSIGN_OR_RETURN(out.output_gate,
                           PlaceMatrix({pick(tensors.q, 2 * dim, dim, /*turns=*/false)}));
    BATON_ASSIGN_OR_RETURN(DeviceMatrix q_norm,
                           Place({PickOf(tensors.q_norm, PickNorm(order_))}, {}));
    BATON_ASSIGN_OR_RETURN(DeviceMatrix k_norm,
                           Place({PickOf(tensors.k_norm, PickNorm(order_))}, {}));
    out.q_norm = std::move(q_norm.data);
    out.k_norm = std::move(k_norm.data);
    BATON_ASSIGN_OR_RETURN(out.attn_output, PlaceMatrix({WholeOf(tensors.attn_output)}));
    return absl::OkStatus();
  }

  // The model has one rank (CheckRankCount).
  absl::Status PlaceDeltaNet(const LayerTensors& tensors, DeviceLayer& out) {
    BATON_ASSIGN_OR_RETURN(out.qkv, PlaceMatrix({WholeOf(tensors.delta_qkv)}));
    BATON_ASSIGN_OR_RETURN(out.output_gate, PlaceMatrix({WholeOf(tensors.delta_z)}));
    BATON_ASSIGN_OR_RETURN(
        out.delta_gates, PlaceMatrix({WholeOf(tensors.delta_beta), WholeOf(tensors.delta_decay)}));
    BATON_ASSIGN_OR_RETURN(out.conv_taps, PlaceFloats(tensors.delta_taps));
    BATON_ASSIGN_OR_RETURN(out.delta_rates, PlaceFloats(tensors.delta_rates));
    BATON_ASSIGN_OR_RETURN(out.dt_bias, PlaceFloats(tensors.dt_bias));
    BATON_ASSIGN_OR_RETURN(out.delta_norm, PlaceFloats(tensors.delta_norm));
    BATON_ASSIGN_OR_RETURN(out.attn_output, PlaceMatrix({WholeOf(tensors.delta_out)}));
    return absl::OkStatus();
  }

  absl::Status PlaceAttention(const LayerTensors& tensors, DeviceLayer& out) {
    const auto cut = [&](const GgufTensor* own, uint64_t before, const IndexRange& share) {
      return tensors.qkv == nullptr ? CutOf(own, share)
                                    : CutOf(tensors.qkv, {before + share.first, share.count});
    };
    BATON_ASSIGN_OR_RETURN(
        out.qkv, PlaceMatrix({cut(tensors.q, 0, shares_.q), cut(tensors.k, KRow(), shares_.kv),
                              cut(tensors.v, VRow(), shares_.kv)}));
    BATON_ASSIGN_OR_RETURN(out.qkv_bias, PlaceBias(tensors));
    BATON_ASSIGN_OR_RETURN(out.q_norm, PlaceVector(tensors.q_norm));
    BATON_ASSIGN_OR_RETURN(out.k_norm, PlaceVector(tensors.k_norm));
    BATON_ASSIGN_OR_RETURN(out.attn_output,
                           PlaceMatrix({CutColumnsOf(tensors.attn_output, shares_.q)}));
    return absl::OkStatus();
  }

  // The model has one rank (CheckRankCount).
  absl::Status PlaceConvolution(const LayerTensors& tensors, DeviceLayer& out) {
    BATON_ASSIGN_OR_RETURN(out.qkv, PlaceMatrix({WholeOf(tensors.conv_in)}));
    BATON_ASSIGN_OR_RETURN(out.conv_taps, PlaceFloats(tensors.conv_taps));
    BATON_ASSIGN_OR_RETURN(out.attn_output, PlaceMatrix({WholeOf(tensors.conv_out)}));
    return absl::OkStatus();
  }

  // As the file has them; an empty one when there is no such tensor.
  absl::StatusOr<DeviceBuffer> PlaceFloats(const GgufTensor* tensor) {
    if (tensor == nullptr) return DeviceBuffer();
    BATON_ASSIGN_OR_RETURN(DeviceMatrix floats, Place({WholeOf(tensor)}, {.is_float = true}));
    return std::move(floats.data);
  }

  absl::StatusOr<DeviceBuffer> PlaceBias(const LayerTensors& tensors) {
    if (tensors.q_bias == nullptr && tensors.qkv_bias == nullptr) return DeviceBuffer();
    const auto cut = [&](const GgufTensor* own, uint64_t before, const IndexRange& share) {
      return tensors.qkv_bias == nullptr
                 ? CutColumnsOf(own, share)
                 : CutColumnsOf(tensors.qkv_bias, {before + share.first, share.count});
    };
    BATON_ASSIGN_OR_RETURN(DeviceMatrix bias, Place({cut(tensors.q_bias, 0, shares_.q),
                                                     cut(tensors.k_bias, KRow(), shares_.kv),
                                                     cut(tensors.v_bias, VRow(), shares_.kv)},
                                                    {.is_float = true}));
    return std::move(bias.data);
  }

  // Where k and v begin in a tensor that holds q, k and v.
  uint64_t KRow() const { return part_.config->q_size(); }
  uint64_t VRow() const { return KRow() + part_.config->kv_size(); }

  // All cuts have as many matrices; the first of each lie below one another, then the second ones.
  absl::StatusOr<DeviceMatrix> Place(const MatrixCuts& cuts, const WeightForm& form) {
    const TensorCut& first = *cuts.begin();
    size_t stride = 0;
    for (const TensorCut& cut : cuts) stride += form.Bytes(cut.rows.count, cut.columns.count);
    const size_t bytes = NumMatrices(first) * stride;
    needed_bytes_ += bytes;
    DeviceMatrix out;
    out.format = form.format;
    if (!shortage_.ok()) return out;
    absl::StatusOr<DeviceBuffer> data =
        DeviceBuffer::Create(part_.device, bytes, first.tensor->name);
    if (absl::IsResourceExhausted(data.status())) {
      shortage_ = data.status();
      return out;
    }
    BATON_ASSIGN_OR_RETURN(out.data, std::move(data));
    placed_bytes_ += bytes;
    std::byte* begin = out.data.data();
    for (const TensorCut& cut : cuts) {
      parts_.Add({cut, form, stride, {{part_.device_idx, begin}}});
      begin += form.Bytes(cut.rows.count, cut.columns.count);
    }
    return out;
  }

  const DeviceWeightsPart& part_;
  const HeadOrder& order_;
  const LayerShares shares_;
  WeightParts& parts_;
  size_t needed_bytes_ = 0;
  size_t placed_bytes_ = 0;
  absl::Status shortage_;
};

// Each matrix of the model.
template <typename Visit>
void ForEachMatrix(const DeviceWeights& weights, const Visit& visit) {
  visit(weights.token_embd);
  visit(weights.output);
  for (const DeviceLayer& layer : weights.layers) {
    for (const DeviceMatrix* matrix : {&layer.qkv, &layer.attn_output, &layer.gate_up, &layer.down,
                                       &layer.router, &layer.output_gate, &layer.delta_gates}) {
      visit(*matrix);
    }
  }
}

}  // namespace

absl::StatusOr<DeviceWeights> DeviceWeights::Allocate(const TensorPlan& plan,
                                                      const DeviceWeightsPart& part,
                                                      WeightParts& parts) {
  part.device->MakeCurrent();
  WeightPlacer placer(part, plan.head_order, parts);
  DeviceWeights out;
  BATON_ASSIGN_OR_RETURN(out.token_embd, placer.PlaceMatrix({WholeOf(plan.token_embd)}));
  const IndexRange logits = LogitsOfRank(*part.config, part.rank);
  const bool has_output = part.rank.count > 1 || plan.output != plan.token_embd;
  if (has_output && logits.count > 0) {
    BATON_ASSIGN_OR_RETURN(out.output, placer.PlaceMatrix({CutOf(plan.output, logits)}));
  }
  BATON_ASSIGN_OR_RETURN(out.output_norm, placer.PlaceVector(plan.output_norm));
  out.layers.reserve(plan.layers.size());
  for (const LayerTensors& tensors : plan.layers) {
    BATON_ASSIGN_OR_RETURN(DeviceLayer layer, placer.PlaceLayer(tensors));
    out.layers.push_back(std::move(layer));
  }
  BATON_RETURN_IF_ERROR(placer.Shortage());
  return out;
}

size_t DeviceWeights::bytes() const {
  size_t total = output_norm.size_bytes();
  ForEachMatrix(*this, [&total](const DeviceMatrix& matrix) { total += matrix.size_bytes(); });
  for (const DeviceLayer& layer : layers) {
    for (const DeviceBuffer* buffer :
         {&layer.attn_norm, &layer.ffn_norm, &layer.qkv_bias, &layer.q_norm, &layer.k_norm,
          &layer.post_attn_norm, &layer.post_ffn_norm, &layer.conv_taps, &layer.choice_bias,
          &layer.delta_rates, &layer.dt_bias, &layer.delta_norm}) {
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

}  // namespace baton::model
