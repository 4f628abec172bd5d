// Layers with a gated delta net, and the fixed states that they keep.
#include <cstring>
#include <span>

#include "src/model/delta_config.h"
#include "src/model/model.h"
#include "src/model/model_weights.h"
#include "src/model/model_workspace.h"

namespace baton::model {

using device::TaskRange;
using kernels::AttentionSpan;
using kernels::GatedDeltaArgs;
using kv::KvLayout;
using kv::KvView;

void Model::MixDelta(uint32_t layer, std::span<const AttentionSpan> spans, const KvView& kv) {
  const LayerWeights& weights = weights_->layers[layer];
  GatedDeltaArgs args;
  args.kv = kv;
  args.slice = StateSlice(config_, layer);
  args.offset = StateOffset(config_, layer);
  args.spans = spans;
  args.shape = config_.delta;
  args.input = workspace_->qkv;
  args.taps = weights.conv_taps.data();
  args.rates = weights.delta_rates.data();
  args.dt_bias = weights.dt_bias.data();
  args.norm = weights.delta_norm.data();
  args.eps = config_.rms_epsilon;
  args.out = workspace_->attended;
  ops_->gated_delta(*pool_, args);
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
