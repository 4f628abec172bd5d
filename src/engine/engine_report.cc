// Numbers for load reports, metrics and debug pages.
#include <utility>

#include "src/engine/engine_core.h"

namespace baton::engine {

using kv::BlockInfo;
using kv::DestStateName;
using kv::SourceStateName;
using scheduler::BatchPlan;

namespace {

// Weight of the newest step in an average: about the last 16 steps count.
constexpr float kNewest = 1.0f / 16;

void Average(float* average, double value) {
  const float v = static_cast<float>(value);
  *average = *average == 0 ? v : *average + kNewest * (v - *average);
}

}  // namespace

void EngineCore::MeasureStep(const BatchPlan& plan, int64_t elapsed_us) {
  ++numbers_.num_steps;
  numbers_.computed_tokens += plan.shape.prefill_tokens;
  if (parts_.on_step) parts_.on_step(plan.shape, elapsed_us);
  if (elapsed_us <= 0) return;
  const double seconds = static_cast<double>(elapsed_us) * 1e-6;
  if (plan.shape.prefill_tokens == 0) {
    const double bytes = static_cast<double>(parts_.model->bytes_read_per_step()) +
                         static_cast<double>(plan.shape.kv_tokens) *
                             static_cast<double>(kv_view_.layout->BytesPerToken());
    Average(&numbers_.decode_bytes_per_s, bytes / seconds);
  } else if (plan.shape.decode_rows == 0) {
    const double flops = static_cast<double>(parts_.model->flops_per_row()) *
                         static_cast<double>(plan.shape.prefill_tokens);
    Average(&numbers_.prefill_flops_per_s, flops / seconds);
  }
}

void EngineCore::Publish() {
  numbers_.blocks = pool_.Counts();
  numbers_.scheduler = scheduler_.Load();
  if (prefix_index_) numbers_.prefix = prefix_index_->stats();
  numbers_.num_requests = requests_.size();
  numbers_.num_open_transfers = sources_.num_open() + dests_.num_open();
  numbers_.num_sessions = static_cast<uint32_t>(sessions_.size());
  numbers_.draining = draining_;
  numbers_.decode_step_us = scheduler_.cost().decode_step_us();
  numbers_.prefill_tokens_per_s = static_cast<float>(scheduler_.cost().prefill_tokens_per_s());
  numbers_.updated_us = now_us_;
  EngineSnapshot snapshot = numbers_;
  snapshot.stale_events += sources_.stats().stale_messages + dests_.stats().stale_messages;
  snapshot.bad_slices = dests_.stats().bad_slices;
  snapshot.chain_mismatches = dests_.stats().chain_mismatches;
  snapshot.kv_bytes_sent = sources_.stats().bytes_offered;
  snapshot.exported_in_step = sources_.stats().slices_offered_in_step;
  snapshot.transfer_us = sources_.stats().transfer_us;
  snapshot.exposed_us = sources_.stats().exposed_us;
  snapshot_.Publish(snapshot);
}

void EngineCore::AnswerDebug(DebugQuery* query) const {
  std::vector<RequestRow> rows;
  std::vector<BlockInfo> blocks;
  if (query->kind() == DebugQuery::Kind::kBlocks) {
    blocks.reserve(pool_.num_blocks());
    pool_.ForEachBlock([&](const BlockInfo& block) { blocks.push_back(block); });
    return query->Answer({}, std::move(blocks));
  }
  requests_.ForEach([&](const LiveRequest& request) {
    RequestRow& row = rows.emplace_back();
    row.key = request.spec.key;
    row.kind = request.spec.kind;
    row.state = RequestStateName(request.state);
    row.age_us = now_us_ - request.accepted_us;
    row.num_prompt_tokens = request.spec.num_prompt_tokens;
    row.num_choices = request.spec.num_choices;
    row.peer = request.spec.peer;
    for (const Choice& choice : request.choices)
      row.num_output_tokens += choice.sampler.num_output();
  });
  // Hand-offs that outlive their request.
  const auto add = [&](const RequestKey& key, RequestKind kind, std::string_view state) {
    if (FindLive(key) != nullptr) return;
    RequestRow& row = rows.emplace_back();
    row.key = key;
    row.kind = kind;
    row.state = "transfer " + std::string(state);
  };
  sources_.ForEach([&](const SourceTransfer& transfer) {
    add(transfer.key, RequestKind::kSource, SourceStateName(transfer.machine.state()));
  });
  dests_.ForEach([&](const DestTransfer& transfer) {
    if (!transfer.is_bound)
      add(transfer.key, RequestKind::kDest, DestStateName(transfer.machine.state()));
  });
  query->Answer(std::move(rows), {});
}

}  // namespace baton::engine
