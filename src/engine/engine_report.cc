#include "src/engine/engine_report.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::engine {

using kv::BlockInfo;
using kv::DestStateName;
using kv::SourceStateName;

void EngineReport::Publish() {
  EngineSnapshot& numbers = state_->numbers;
  const scheduler::Scheduler& scheduler = state_->scheduler;
  numbers.blocks = state_->pool.Counts();
  numbers.scheduler = scheduler.Load();
  if (state_->prefix_index) numbers.prefix = state_->prefix_index->stats();
  numbers.num_requests = state_->requests.size();
  numbers.num_open_transfers = hub_->num_open();
  numbers.num_sessions = leases_->size();
  numbers.draining = state_->draining;
  numbers.decode_step_us = scheduler.cost().decode_step_us();
  numbers.prefill_tokens_per_s = static_cast<float>(scheduler.cost().prefill_tokens_per_s());
  numbers.updated_us = state_->now_us;
  EngineSnapshot snapshot = numbers;
  const SourceStats& sources = hub_->sources().stats();
  const DestStats& dests = hub_->dests().stats();
  snapshot.stale_events += sources.stale_messages + dests.stale_messages;
  snapshot.bad_slices = dests.bad_slices;
  snapshot.chain_mismatches = dests.chain_mismatches;
  snapshot.kv_bytes_sent = sources.bytes_offered;
  snapshot.exported_in_step = sources.slices_offered_in_step;
  snapshot.transfer_us = sources.transfer_us;
  snapshot.exposed_us = sources.exposed_us;
  snapshot_.Publish(snapshot);
}

void EngineReport::Answer(DebugQuery* query) const {
  if (query->kind() == DebugQuery::Kind::kRequests) return query->Answer(RequestRows(), {});
  std::vector<BlockInfo> blocks;
  blocks.reserve(state_->pool.num_blocks());
  state_->pool.ForEachBlock([&](const BlockInfo& block) { blocks.push_back(block); });
  query->Answer({}, std::move(blocks));
}

std::vector<RequestRow> EngineReport::RequestRows() const {
  std::vector<RequestRow> rows;
  state_->requests.ForEach([&](const LiveRequest& request) {
    RequestRow& row = rows.emplace_back();
    row.key = request.spec.key;
    row.kind = request.spec.kind;
    row.state = RequestStateName(request.state);
    row.age_us = state_->now_us - request.accepted_us;
    row.num_prompt_tokens = request.spec.num_prompt_tokens;
    row.num_choices = request.spec.num_choices;
    row.peer = request.spec.peer;
    for (const Choice& choice : request.choices)
      row.num_output_tokens += choice.sampler.num_output();
  });
  // Hand-offs that outlive their request.
  const auto add = [&](const RequestKey& key, RequestKind kind, std::string_view state) {
    if (state_->FindLive(key) != nullptr) return;
    RequestRow& row = rows.emplace_back();
    row.key = key;
    row.kind = kind;
    row.state = "transfer " + std::string(state);
  };
  hub_->sources().ForEach([&](const SourceTransfer& transfer) {
    add(transfer.key, RequestKind::kSource, SourceStateName(transfer.machine.state()));
  });
  hub_->dests().ForEach([&](const DestTransfer& transfer) {
    if (!transfer.is_bound)
      add(transfer.key, RequestKind::kDest, DestStateName(transfer.machine.state()));
  });
  return rows;
}

}  // namespace baton::engine
