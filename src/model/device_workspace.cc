#include "src/model/device_workspace.h"

#include <algorithm>
#include <string_view>

#include "kernels/cuda/experts_params.h"
#include "kernels/cuda/gemm_segments.h"
#include "kernels/simt/types.h"

namespace baton {
namespace {

constexpr size_t kBf16Bytes = sizeof(simt::Bf16);
constexpr size_t kWordBytes = sizeof(uint32_t);
// Pinned memory for answers: 13 rows of logits of 152 Ki tokens at once; more cross in turns.
constexpr size_t kAnswerBytes = size_t{8} << 20;

// Each of the ctas has at most four splits at a time.
constexpr cuda::AttentionPlanLimits kPlanLimits = {.num_decode_ctas = kDecodeCtas,
                                                   .max_partials = 4 * kDecodeCtas};

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

uint32_t BlocksUsed(const AttentionSpan& span, uint32_t block_size) {
  return (span.first_pos + span.num_rows - 1) / block_size + 1;
}

}  // namespace

DeviceWorkspace::DeviceWorkspace(const ModelConfig& config, const DeviceWorkspaceSize& size,
                                 Accelerator* device)
    : size_(size),
      shape_{.num_heads = config.num_heads, .num_kv_heads = config.num_kv_heads, .window = 0},
      local_shape_{.num_heads = config.num_heads,
                   .num_kv_heads = config.num_kv_heads,
                   .window = config.window},
      has_local_layers_(config.traits->windowed),
      device_(device) {}

absl::StatusOr<std::unique_ptr<DeviceWorkspace>> DeviceWorkspace::Create(
    const ModelConfig& config, const DeviceWorkspaceSize& size, std::span<const float> rope_factors,
    Accelerator* device) {
  std::unique_ptr<DeviceWorkspace> out(new DeviceWorkspace(config, size, device));
  BATON_RETURN_IF_ERROR(out->Allocate(config));
  BATON_RETURN_IF_ERROR(out->FillTables(config, rope_factors));
  return out;
}

Status DeviceWorkspace::Allocate(const ModelConfig& config) {
  const size_t rows = size_.max_rows;
  const size_t experts_of_row = config.traits->experts ? config.num_experts_used : 1;
  const size_t max_blocks = (size_.max_context - 1) / size_.block_size + 1;
  const auto bf16 = [rows](size_t width) { return rows * width * kBf16Bytes; };
  const auto bounds = cuda::BoundAttentionPlan(shape_, kPlanLimits, rows, rows);
  const size_t item_bytes = sizeof(cuda::AttentionItem);
  const size_t rope_bytes = size_t{size_.max_context} * config.head_dim * sizeof(float);
  const size_t local = has_local_layers_ ? 1 : 0;
  const Piece pieces[] = {
      {&residual, bf16(config.hidden_size), "residual"},
      {&added, bf16(config.hidden_size), "added"},
      {&normed, bf16(config.hidden_size), "normed"},
      {&zeros_, bf16(config.hidden_size), "zeros"},
      {&qkv, bf16(config.qkv_size()), "qkv"},
      {&q, bf16(config.q_size()), "q"},
      {&attended, bf16(config.q_size()), "attended"},
      {&gate_up, bf16(2 * experts_of_row * config.ffn_size), "gate_up"},
      {&gated, bf16(experts_of_row * config.ffn_size), "gated"},
      {&logits, size_t{size_.max_logit_rows} * config.vocab_size * sizeof(float), "logits"},
      {&sampling, size_.max_logit_rows * sizeof(RowSampling), "sampling of rows"},
      {&tokens, size_.max_logit_rows * kWordBytes, "chosen tokens"},
      {&cos_sin, rope_bytes, "rotary table"},
      {&local_cos_sin, local * rope_bytes, "rotary table of local layers"},
      {&gemm_partials, cuda::kGemmMaxPartialBytes, "partial sums of products"},
      {&gemm_counters, cuda::kGemmCounters * kWordBytes, "counters of products"},
      {&unpacked, size_.unpacked_bytes, "an unpacked matrix"},
      {&attention_partials, kPlanLimits.max_partials * cuda::AttentionPartialBytes(config.head_dim),
       "partial sums of attention"},
      {&attention_arrivals, kPlanLimits.num_decode_ctas * kWordBytes, "arrivals of attention"},
      {&token_ids, rows * kWordBytes, "token ids"},
      {&positions, rows * kWordBytes, "positions"},
      {&sequences, rows * kWordBytes, "sequences"},
      {&logit_rows, size_.max_logit_rows * kWordBytes, "logit rows"},
      {&block_lists, rows * max_blocks * kWordBytes, "block lists"},
      {&prefill.items, bounds.num_prefill_items * item_bytes, "items of prefill"},
      {&prefill.num_items, kWordBytes, "number of items of prefill"},
      {&decode.items, bounds.num_decode_items * item_bytes, "items of decode"},
      {&decode.num_items, kWordBytes, "number of items of decode"},
      {&local_decode.items, local * bounds.num_decode_items * item_bytes, "items of local layers"},
      {&local_decode.num_items, local * kWordBytes, "number of items of local layers"},
  };
  BATON_RETURN_IF_ERROR(Take(device_, pieces));
  BATON_ASSIGN_OR_RETURN(
      answers,
      HostStaging::Create(
          device_, std::min(logits.size_bytes() + tokens.size_bytes(), kAnswerBytes), "answers"));
  if (config.traits->experts) BATON_RETURN_IF_ERROR(AllocateExperts(config));
  host_.reserve(rows * max_blocks);
  rows_.reserve(rows);
  plan_.prefill.reserve(bounds.num_prefill_items);
  plan_.decode.reserve(bounds.num_decode_items);
  return OkStatus();
}

Status DeviceWorkspace::AllocateExperts(const ModelConfig& config) {
  const size_t pairs = size_t{size_.max_rows} * config.num_experts_used;
  const size_t max_tiles = cuda::MaxExpertTiles(pairs, config.num_experts, cuda::kExpertFewRows);
  const Piece pieces[] = {
      {&experts.logits, size_t{size_.max_rows} * config.num_experts * sizeof(float),
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
       {&zeros_, &gemm_counters, &attention_arrivals, &experts.arrivals}) {
    if (buffer->size_bytes() == 0) continue;
    const std::vector<std::byte> zeros(buffer->size_bytes());
    BATON_RETURN_IF_ERROR(device_->CopyIn(buffer->data(), zeros.data(), zeros.size()));
  }
  BATON_RETURN_IF_ERROR(FillRope(config, {rope_factors, /*is_local=*/false}, cos_sin));
  return has_local_layers_ ? FillRope(config, {{}, /*is_local=*/true}, local_cos_sin) : OkStatus();
}

Status DeviceWorkspace::FillRope(const ModelConfig& config, const RopeTableKind& kind,
                                 const DeviceBuffer& to) {
  std::vector<float> table(to.size_bytes() / sizeof(float));
  BATON_RETURN_IF_ERROR(FillRopeTable(config, kind, table));
  return device_->CopyIn(to.data(), table.data(), to.size_bytes());
}

// ---- The batch.

Status DeviceWorkspace::CopyHost(const DeviceBuffer& to) {
  return device_->CopyIn(to.data(), host_.data(), host_.size() * kWordBytes);
}

Status DeviceWorkspace::SetBatch(const ModelBatch& batch) {
  num_rows = batch.num_rows();
  num_logit_rows = static_cast<uint32_t>(batch.logit_rows.size());
  host_.assign(batch.token_ids.begin(), batch.token_ids.end());
  BATON_RETURN_IF_ERROR(CopyHost(token_ids));
  host_.assign(batch.logit_rows.begin(), batch.logit_rows.end());
  BATON_RETURN_IF_ERROR(CopyHost(logit_rows));
  host_.clear();
  for (const AttentionSpan& span : batch.spans) {
    for (uint32_t r = 0; r < span.num_rows; ++r) host_.push_back(span.first_pos + r);
  }
  BATON_RETURN_IF_ERROR(CopyHost(positions));
  host_.clear();
  max_blocks = 0;
  for (uint32_t i = 0; i < batch.spans.size(); ++i) {
    host_.insert(host_.end(), batch.spans[i].num_rows, i);
    max_blocks = std::max(max_blocks, BlocksUsed(batch.spans[i], size_.block_size));
  }
  BATON_RETURN_IF_ERROR(CopyHost(sequences));
  host_.clear();
  for (const AttentionSpan& span : batch.spans) {
    const std::span<const uint32_t> used = span.kv.blocks.first(BlocksUsed(span, size_.block_size));
    host_.insert(host_.end(), used.begin(), used.end());
    host_.resize(host_.size() + max_blocks - used.size());
  }
  BATON_RETURN_IF_ERROR(CopyHost(block_lists));
  return PlanAttention(batch);
}

Status DeviceWorkspace::PlanAttention(const ModelBatch& batch) {
  rows_.clear();
  for (uint32_t i = 0; i < batch.spans.size(); ++i) {
    const AttentionSpan& span = batch.spans[i];
    rows_.push_back({.sequence = i,
                     .first_row = span.first_row,
                     .num_rows = span.num_rows,
                     .first_position = span.first_pos});
  }
  // Layers follow one another, so both plans may use the same partials.
  if (has_local_layers_) {
    BATON_RETURN_IF_ERROR(cuda::PlanAttention(local_shape_, kPlanLimits, rows_, plan_));
    BATON_RETURN_IF_ERROR(CopyItems(plan_.decode, &local_decode));
  }
  BATON_RETURN_IF_ERROR(cuda::PlanAttention(shape_, kPlanLimits, rows_, plan_));
  BATON_RETURN_IF_ERROR(CopyItems(plan_.prefill, &prefill));
  return CopyItems(plan_.decode, &decode);
}

Status DeviceWorkspace::CopyItems(const std::vector<cuda::AttentionItem>& from, Items* to) {
  to->count = static_cast<uint32_t>(from.size());
  BATON_RETURN_IF_ERROR(
      device_->CopyIn(to->items.data(), from.data(), from.size() * sizeof(cuda::AttentionItem)));
  return device_->CopyIn(to->num_items.data(), &to->count, kWordBytes);
}

}  // namespace baton
