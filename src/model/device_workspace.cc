#include "src/model/device_workspace.h"

#include <algorithm>
#include <string_view>

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/exchange_params.h"
#include "kernels/cuda/experts_params.h"
#include "kernels/cuda/gemm_params.h"
#include "kernels/cuda/gemm_segments.h"
#include "kernels/simt/types.h"
#include "src/model/device_shape.h"

namespace baton::model {

namespace cuda = kernels::cuda;
namespace simt = kernels::simt;
using device::Accelerator;
using device::DeviceBuffer;
using device::DeviceEvent;
using device::HostBuffer;
using device::HostStaging;

namespace {

constexpr size_t kBf16Bytes = sizeof(simt::Bf16);
constexpr size_t kWordBytes = sizeof(uint32_t);
// Pinned memory for answers: 13 rows of logits of 152 Ki tokens at once; more cross in turns.
constexpr size_t kAnswerBytes = size_t{8} << 20;

// One buffer to take.
struct Piece {
  DeviceBuffer* buffer;
  size_t size_bytes;
  std::string_view name;
};

Status Take(Accelerator* device, std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    if (piece.size_bytes == 0) continue;
    BATON_ASSIGN_OR_RETURN(*piece.buffer,
                           DeviceBuffer::Create(device, piece.size_bytes, piece.name));
  }
  return OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWorkspace>> DeviceWorkspace::Create(
    const ModelConfig& config, const DeviceWorkspaceSize& size, std::span<const float> rope_factors,
    Accelerator* device) {
  std::unique_ptr<DeviceWorkspace> out(new DeviceWorkspace(size, device));
  BATON_RETURN_IF_ERROR(out->Allocate(config));
  BATON_RETURN_IF_ERROR(out->FillTables(config, rope_factors));
  return out;
}

Status DeviceWorkspace::Allocate(const ModelConfig& config) {
  const size_t rows = size_.batch.max_rows;
  const size_t logit_rows = size_.batch.max_logit_rows;
  const size_t experts_of_row = config.traits->experts ? config.num_experts_used : 1;
  const size_t gated_size =
      std::max<size_t>(experts_of_row * config.ffn_size, config.dense_ffn_size);
  const auto bf16 = [rows](size_t width) { return rows * width * kBf16Bytes; };
  const auto widest = [&config](uint32_t (*size_of)(const ModelConfig&, uint32_t)) {
    uint32_t size = 0;
    for (uint32_t i = 0; i < config.num_layers; ++i) size = std::max(size, size_of(config, i));
    return size;
  };
  const auto mixed_size = [](const ModelConfig& of, uint32_t layer) {
    return of.mixed_size(layer);
  };
  const size_t net_rows = config.num_delta_layers() > 0 ? rows : 0;
  const size_t rope_bytes = size_t{size_.batch.max_context} * config.head_dim * sizeof(float);
  const size_t second = config.has_second_rope() ? 1 : 0;
  const size_t first = size_.rank.index == 0 ? 1 : 0;
  const size_t several = size_.rank.count > 1 ? 1 : 0;
  const size_t sum_bytes = several * rows * config.hidden_size * sizeof(float);
  const Piece pieces[] = {
      {&residual, bf16(config.hidden_size), "residual"},
      {&added, bf16(config.hidden_size), "added"},
      {&normed, bf16(config.hidden_size), "normed"},
      {&squares, cuda::kMaxNormedRows * config.hidden_size / 8 * sizeof(float), "squares"},
      {&zeros_, bf16(config.hidden_size), "zeros"},
      {&qkv, bf16(widest(FirstProductSize)), "qkv"},
      {&q, bf16(config.q_size()), "q"},
      {&attended, bf16(widest(mixed_size)), "attended"},
      {&output_gate, bf16(widest(OutputGateSize)), "gates of outputs"},
      {&delta_gates, net_rows * 2 * config.delta.num_v_heads * sizeof(float), "gates of nets"},
      {&delta_inputs, net_rows * config.delta.num_channels() * sizeof(float), "inputs of nets"},
      {&gate_up, bf16(2 * gated_size), "gate_up"},
      {&gated, bf16(gated_size), "gated"},
      {&logits, first * logit_rows * config.vocab_size * sizeof(float), "logits"},
      {&partial_sums[0], sum_bytes, "parts of sums"},
      {&partial_sums[1], sum_bytes, "parts of sums"},
      {&logit_columns, several * logit_rows * size_.logit_columns * sizeof(float),
       "columns of logits"},
      {&flags, several * sizeof(cuda::ExchangeFlags), "flags of exchanges"},
      {&tokens, logit_rows * kWordBytes, "chosen tokens"},
      {&cos_sin, rope_bytes, "rotary table"},
      {&second_cos_sin, second * rope_bytes, "second rotary table"},
      {&gemm_partials, cuda::kGemmMaxPartialBytes, "partial sums of products"},
      {&gemm_counters, cuda::kGemmCounters * kWordBytes, "counters of products"},
      {&rope_arrivals, cuda::RopeArrivals(config.num_heads, config.num_kv_heads) * kWordBytes,
       "arrivals of heads"},
      {&unpacked, size_.unpacked_bytes, "an unpacked matrix"},
      {&attention_partials, kMaxPartials * cuda::AttentionPartialBytes(config.head_dim),
       "partial sums of attention"},
      {&attention_arrivals, kDecodeCtas * kWordBytes, "arrivals of attention"},
  };
  BATON_RETURN_IF_ERROR(Take(device_, pieces));
  BATON_ASSIGN_OR_RETURN(batch, DeviceBatch::Create(config, size_.batch, device_));
  BATON_ASSIGN_OR_RETURN(
      answers,
      HostStaging::Create(
          device_, std::min(logits.size_bytes() + tokens.size_bytes(), kAnswerBytes), "answers"));
  for (SentTokens& step : sent) {
    if (size_.rank.index > 0) break;
    BATON_ASSIGN_OR_RETURN(step.tokens,
                           HostBuffer::Create(device_, tokens.size_bytes(), "tokens of a step"));
    BATON_ASSIGN_OR_RETURN(step.arrived, DeviceEvent::Create(device_));
  }
  return config.traits->experts ? AllocateExperts(config) : OkStatus();
}

Status DeviceWorkspace::AllocateExperts(const ModelConfig& config) {
  const size_t pairs = size_t{size_.batch.max_rows} * config.num_experts_used;
  const size_t max_tiles = cuda::MaxExpertTiles(pairs, config.num_experts, cuda::kExpertFewRows);
  const Piece pieces[] = {
      {&experts.logits, size_t{size_.batch.max_rows} * config.num_experts * sizeof(float),
       "router logits"},
      {&experts.pairs, pairs * kWordBytes, "experts of rows"},
      {&experts.weights, pairs * sizeof(float), "weights of experts"},
      {&experts.slots, pairs * kWordBytes, "slots of experts"},
      {&experts.slot_rows, pairs * kWordBytes, "rows of slots"},
      {&experts.begins, config.num_experts * kWordBytes, "first slots of experts"},
      {&experts.tiles, max_tiles * sizeof(cuda::ExpertTile), "tiles of experts"},
      {&experts.num_tiles, kWordBytes, "number of tiles of experts"},
      {&experts.arrivals, kWordBytes, "arrivals of experts"},
      {&experts.outputs, pairs * config.hidden_size * kBf16Bytes, "outputs of experts"},
  };
  return Take(device_, pieces);
}

Status DeviceWorkspace::FillTables(const ModelConfig& config, std::span<const float> rope_factors) {
  for (const DeviceBuffer* buffer :
       {&zeros_, &gemm_counters, &rope_arrivals, &attention_arrivals, &experts.arrivals, &flags}) {
    if (buffer->size_bytes() == 0) continue;
    const std::vector<std::byte> zeros(buffer->size_bytes());
    BATON_RETURN_IF_ERROR(device_->CopyIn(buffer->data(), zeros.data(), zeros.size()));
  }
  BATON_RETURN_IF_ERROR(FillRope(config, {rope_factors, /*is_second=*/false}, cos_sin));
  return config.has_second_rope() ? FillRope(config, {{}, /*is_second=*/true}, second_cos_sin)
                                  : OkStatus();
}

Status DeviceWorkspace::FillRope(const ModelConfig& config, const RopeTableKind& kind,
                                 const DeviceBuffer& to) {
  std::vector<float> table(to.size_bytes() / sizeof(float));
  BATON_RETURN_IF_ERROR(FillRopeTable(config, kind, table));
  return device_->CopyIn(to.data(), table.data(), to.size_bytes());
}

}  // namespace baton::model
