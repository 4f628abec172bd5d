// Layers with a gated delta net or of Mamba-2, and the fixed states that they keep.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <vector>

#include "src/model/model.h"
#include "src/model/model_weights.h"
#include "src/model/model_workspace.h"
#include "src/model/state_bytes.h"

namespace baton::model {

using device::TaskRange;
using kernels::AttentionSpan;
using kernels::GatedDeltaArgs;
using kv::KvLayout;
using kv::KvView;

void Model::MixDelta(uint32_t layer, const LayerRows& rows, const KvView& kv) {
  const LayerWeights& weights = weights_->layers[layer];
  GatedDeltaArgs args;
  args.kv = kv;
  args.slice = state_map_.places[layer].slice;
  args.offset = state_map_.places[layer].offset;
  args.spans = rows.spans;
  args.shape = config_.delta;
  args.input = workspace_->qkv;
  args.taps = weights.conv_taps.data();
  args.rates = weights.delta_rates.data();
  args.dt_bias = weights.dt_bias.data();
  args.norm = weights.delta_norm.data();
  args.eps = config_.rms_epsilon;
  args.conv_bias = weights.conv_bias.empty() ? nullptr : weights.conv_bias.data();
  args.skips = weights.skips.empty() ? nullptr : weights.skips.data();
  args.out = workspace_->attended;
  if (rows.copies.empty()) return ops_->gated_delta(*pool_, args);
  // No bit depends on where a span is cut. The rows up to each copy are computed, then the rest.
  std::vector<AttentionSpan>& cut = workspace_->cut_spans;
  uint32_t span_idx = 0;
  uint32_t next_row = 0;
  const auto compute_to = [&](uint32_t end_row) {
    const uint32_t first_row = next_row;
    cut.clear();
    while (next_row < end_row) {
      const AttentionSpan& span = rows.spans[span_idx];
      const uint32_t skipped = next_row - span.first_row;
      const uint32_t num_rows = std::min(span.num_rows - skipped, end_row - next_row);
      cut.push_back({span.kv, next_row - first_row, num_rows, span.first_pos + skipped});
      next_row += num_rows;
      if (skipped + num_rows == span.num_rows) ++span_idx;
    }
    if (cut.empty()) return;
    args.spans = cut;
    args.input = workspace_->qkv + size_t{first_row} * config_.delta.input_size();
    args.out = workspace_->attended + size_t{first_row} * config_.delta.value_size();
    ops_->gated_delta(*pool_, args);
  };
  for (StateCopy& copy : rows.copies) {
    const AttentionSpan& span = rows.spans[copy.span];
    compute_to(span.first_row + copy.num_rows);
    CopyState(layer, span, kv, copy);
  }
  compute_to(rows.num_rows);
}

void Model::CopyState(uint32_t layer, const AttentionSpan& span, const KvView& kv,
                      StateCopy& copy) {
  const StateBytes bytes = BytesOf(state_map_.places[layer], config_);
  const size_t slice_bytes = kv.layout->SliceBytes();
  const auto first = static_cast<uint32_t>(bytes.begin / slice_bytes);
  const auto end = static_cast<uint32_t>((bytes.end + slice_bytes - 1) / slice_bytes);
  std::atomic<bool> has_numbers = true;
  pool_->RunRanges(end - first, 1, pool_->num_threads(), [&](TaskRange range, uint32_t) {
    const StateBytes own = {bytes.slice, std::max(bytes.begin, (first + range.begin) * slice_bytes),
                            std::min(bytes.end, (first + range.end) * slice_bytes)};
    ForEachPart(*kv.layout, own, [&](uint32_t block, size_t within, size_t size) {
      const std::byte* from = kv.Piece(span.kv.state[block], bytes.slice, 0, 0) + within;
      std::memcpy(kv.Piece(copy.blocks[block], bytes.slice, 0, 0) + within, from, size);
      if (!HasNumbers(from, size)) has_numbers.store(false, std::memory_order_relaxed);
    });
  });
  copy.has_numbers = copy.has_numbers && has_numbers.load(std::memory_order_relaxed);
}

void Model::ClearUnused(std::span<const StateCopy> copies, const KvView& kv) {
  if (copies.empty()) return;
  const KvLayout& layout = *kv.layout;
  const size_t all_bytes = layout.state_blocks * layout.SliceBytes();
  for (uint32_t slice = 0; slice < layout.num_layers; ++slice) {
    for (const StateCopy& copy : copies) {
      ForEachPart(layout, {slice, state_map_.used_bytes[slice], all_bytes},
                  [&](uint32_t block, size_t within, size_t size) {
                    std::memset(kv.Piece(copy.blocks[block], slice, 0, 0) + within, 0, size);
                  });
    }
  }
}

std::optional<uint32_t> Model::BrokenStateLayer(std::span<const uint32_t> state,
                                                const KvView& kv) const {
  for (uint32_t layer = 0; layer < config_.num_layers && !state.empty(); ++layer) {
    if (!config_.IsDelta(layer)) continue;
    const StateBytes bytes = BytesOf(state_map_.places[layer], config_);
    bool has_numbers = true;
    ForEachPart(*kv.layout, bytes, [&](uint32_t block, size_t within, size_t size) {
      const std::byte* part = kv.Piece(state[block], bytes.slice, 0, 0) + within;
      has_numbers = has_numbers && HasNumbers(part, size);
    });
    if (!has_numbers) return layer;
  }
  return std::nullopt;
}

void Model::ClearStates(std::span<const AttentionSpan> spans, const KvView& kv) {
  const KvLayout& layout = *kv.layout;
  for (const AttentionSpan& span : spans) {
    if (span.first_pos > 0) continue;
    const auto num_blocks = static_cast<uint32_t>(span.kv.state.size());
    pool_->RunRanges(num_blocks, 1, pool_->num_threads(), [&](TaskRange range, uint32_t) {
      for (uint32_t i = range.begin; i < range.end; ++i) {
        std::memset(kv.Piece(span.kv.state[i], 0, 0, 0), 0, layout.BlockBytes());
      }
    });
  }
}

}  // namespace baton::model
