// Decode steps that a device recorded: which there are, and which one computes a batch.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/log.h"
#include "src/model/device_model.h"
#include "src/model/device_rank.h"

namespace baton::model {

using device::DeviceGraph;
using device::LaunchGate;
using kernels::AttentionSpan;
using kv::KvView;

namespace {

// Every number of rows up to 16: one more row of padding would read more experts, or take a larger
// tile. Then multiples of 8, the rows of a tile.
constexpr uint32_t NextPaddedRows(uint32_t rows) {
  constexpr uint32_t kExact = 16;
  constexpr uint32_t kTile = 8;
  return rows < kExact ? rows + 1 : rows + kTile;
}

}  // namespace

Status DeviceModel::Prepare(const KvView& kv) {
  BATON_RETURN_IF_ERROR(CheckRanksOf(kv));
  graphs_.clear();
  recorded_kv_ = kv.BaseOfRank(0);
  options_.device->MakeCurrent();
  const uint32_t max_rows = std::min({options_.max_rows, options_.max_logit_rows, kMaxPaddedRows});
  graphs_.reserve(std::size(kPaddedGrids) * kMaxPaddedRows);
  for (uint32_t rows = 1; rows <= max_rows; rows = NextPaddedRows(rows)) {
    for (const uint32_t num_ctas : kPaddedGrids) {
      for (const auto& rank : ranks_) rank->batch().PlacePadded(rows, num_ctas);
      absl::StatusOr<std::vector<DeviceGraph>> graphs = DeviceGraph::Record(
          devices_, [&] { return LaunchStep(kv, nullptr, /*wants_tokens=*/true); });
      if (!graphs.ok()) return StopRecording(graphs.status());
      graphs_.push_back({rows, num_ctas, *std::move(graphs)});
    }
  }
  return WaitForAll();
}

Status DeviceModel::StopRecording(const Status& why) {
  graphs_.clear();  // what memory is left others need: kernels and communicators come later
  BATON_LOG_WARN("decode steps are launched kernel by kernel, they cannot be recorded: {}",
                 std::string(why.message()));
  return WaitForAll();
}

uint32_t DeviceModel::PaddedRows(const ModelBatch& batch, const KvView& kv,
                                 const LayerHook* hook) const {
  const bool is_decode = batch.spans.size() == batch.num_rows() &&
                         batch.logit_rows.size() == batch.num_rows() && batch.num_rows() > 0;
  if (!is_decode || hook != nullptr || graphs_.empty() || kv.BaseOfRank(0) != recorded_kv_)
    return 0;
  // No recorded step clears blocks of states.
  const auto begins = [](const AttentionSpan& span) { return span.first_pos == 0; };
  const bool clears =
      layout_.state_blocks > 0 &&
      (!batch.state_copies.empty() || std::any_of(batch.spans.begin(), batch.spans.end(), begins));
  if (clears) return 0;
  const auto fits = [&batch](const StepGraph& graph) { return graph.rows >= batch.num_rows(); };
  const auto found = std::find_if(graphs_.begin(), graphs_.end(), fits);
  return found == graphs_.end() ? 0 : found->rows;
}

Status DeviceModel::LaunchRecorded(uint32_t rows) const {
  const uint32_t num_ctas = ranks_[0]->batch().decode().num_ctas;
  const auto is_it = [&](const StepGraph& graph) {
    return graph.rows == rows && graph.num_ctas == num_ctas;
  };
  const auto found = std::find_if(graphs_.begin(), graphs_.end(), is_it);
  BATON_CHECK(found != graphs_.end(), "no step of {} rows was recorded", rows);
  const LaunchGate::Launch held(options_.gate);
  for (const DeviceGraph& graph : found->graphs) {
    BATON_RETURN_IF_ERROR(graph.Launch());
  }
  return OkStatus();
}

}  // namespace baton::model
