#include "src/sim/sim_codec.h"

#include <algorithm>
#include <array>
#include <string>

namespace baton::sim {

using engine::EngineSnapshot;
using engine::RequestKind;
using engine::RequestSpec;
using engine::RequestStatus;
using engine::TokenEvent;
using kv::LinkInfo;
using kv::TransportKind;
using router::LinkKind;
using router::PlacementSpec;
using router::WorkerLoadReport;
using router::WorkerRequestState;
using router::WorkerRequestStatus;
using router::WorkerToken;
using scheduler::SchedulerLoad;

namespace {

// By RequestState, the engine's order.
constexpr std::array<WorkerRequestState, 14> kStates = {
    WorkerRequestState::kUnspecified,    WorkerRequestState::kReserved,
    WorkerRequestState::kPrefillStarted, WorkerRequestState::kPrefillDone,
    WorkerRequestState::kGranted,        WorkerRequestState::kVerified,
    WorkerRequestState::kDecodeStarted,  WorkerRequestState::kFirstStepDone,
    WorkerRequestState::kStranded,       WorkerRequestState::kHandedOff,
    WorkerRequestState::kFinished,       WorkerRequestState::kRejected,
    WorkerRequestState::kFailed,         WorkerRequestState::kCancelled};

LinkKind ToLinkKind(TransportKind kind) {
  switch (kind) {
    case TransportKind::kAuto:
    case TransportKind::kNccl:  // not simulated, nor the next
    case TransportKind::kCudaIpc:
      break;
    case TransportKind::kLocal:
      return LinkKind::kLocal;
    case TransportKind::kShm:
      return LinkKind::kShm;
    case TransportKind::kTcp:
      return LinkKind::kTcp;
  }
  return LinkKind::kUnspecified;
}

}  // namespace

RequestSpec ToEngineSpec(const PlacementSpec& spec, RequestKind kind, Incarnation peer) {
  RequestSpec out;
  out.key = {spec.uid, spec.attempt};
  out.kind = kind;
  out.peer = peer;
  out.tokens.assign(spec.prompt->begin(), spec.prompt->end());
  out.tokens.insert(out.tokens.end(), spec.replayed.begin(), spec.replayed.end());
  out.num_prompt_tokens = static_cast<uint32_t>(spec.prompt->size());
  out.num_choices = spec.num_choices;
  out.sampling = *spec.sampling;
  out.deadline_us = int64_t{spec.deadline_ms} * 1000;
  out.tenant = std::string(spec.tenant);
  out.is_cacheable = spec.is_cacheable;
  out.priority = spec.priority;
  out.reports_progress = spec.reports_progress;
  return out;
}

WorkerToken ToWorkerToken(const TokenEvent& event) {
  WorkerToken token;
  token.uid = event.key.uid;
  token.attempt = event.key.attempt;
  token.choice = event.choice;
  token.index = event.index;
  token.token = event.token;
  token.has_logprob = event.has_logprob;
  token.logprob = event.logprob;
  token.top_logprobs.assign(event.top_logprobs.begin(), event.top_logprobs.end());
  token.finish = event.finish;
  token.step_us = event.step_us;
  token.prompt_pos = event.prompt_pos;
  token.rank = event.rank;
  token.progress = {event.progress.num_tokens, event.progress.num_cached,
                    event.progress.elapsed_us};
  token.embedding.assign(event.embedding.begin(), event.embedding.end());
  token.num_proposed = event.num_proposed;
  token.step_row = event.step_row;
  token.guess_state = event.guess_state;
  return token;
}

WorkerRequestStatus ToWorkerStatus(const RequestStatus& status) {
  WorkerRequestStatus out;
  out.uid = status.key.uid;
  out.attempt = status.key.attempt;
  out.state = kStates[static_cast<size_t>(status.state)];
  out.code = status.status.code();
  out.message = std::string(status.status.message());
  out.failed_part = status.failed_part;
  out.kv_bytes = status.kv_bytes;
  out.kv_total_bytes = status.kv_total_bytes;
  out.transport = ToLinkKind(status.transport);
  out.transfer_seconds = static_cast<float>(static_cast<double>(status.transfer_us) * 1e-6);
  out.retry_after_ms = status.retry_after_ms;
  out.cached_tokens = status.cached_tokens;
  out.retargeted = status.retargeted;
  return out;
}

WorkerLoadReport ToLoadReport(const EngineSnapshot& snapshot, const std::vector<LinkInfo>& links) {
  const SchedulerLoad& scheduler = snapshot.scheduler;
  WorkerLoadReport report;
  report.running = scheduler.num_running;
  report.waiting = scheduler.num_waiting + scheduler.num_prefilling;
  report.backlog_tokens = scheduler.backlog_tokens;
  report.num_blocks = snapshot.blocks.total;
  report.blocks = snapshot.blocks.by_state;
  report.prefill_tokens_per_s = snapshot.prefill_tokens_per_s;
  report.step_us =
      static_cast<uint32_t>(std::clamp<int64_t>(snapshot.decode_step_us, 0, UINT32_MAX));
  report.batch_limit = scheduler.batch_limit;
  for (const LinkInfo& link : links) {
    if (!link.dialled) continue;
    report.links.push_back({link.worker_id, link.peer, ToLinkKind(link.kind), 0, link.up});
  }
  return report;
}

}  // namespace baton::sim
