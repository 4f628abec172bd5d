#include "src/worker/worker_spans.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"

#include "src/base/random.h"

namespace baton::worker {

using engine::IsTerminal;
using engine::RequestKey;
using engine::RequestState;
using engine::RequestStateName;
using engine::RequestStatus;
using obs::Span;
using obs::SpanLoss;
using obs::SpanMetrics;
using obs::SpanSink;

WorkerSpans::WorkerSpans(std::string worker_id, SpanSink* sink, const SpanMetrics& metrics,
                         const Clock* clock)
    : worker_id_(std::move(worker_id)), sink_(sink), metrics_(metrics), clock_(clock) {}

void WorkerSpans::OnStart(const RequestKey& key, const SpanIds& parent) {
  if (!parent.valid()) return;
  MutexLock lock(mutex_);
  if (live_.size() >= kMaxLive) return metrics_.CountLost(SpanLoss::kQueueFull, 1);
  live_.try_emplace(key, Live{.parent = parent, .started_us = clock_->NowUs()});
}

void WorkerSpans::Forget(const RequestKey& key) {
  MutexLock lock(mutex_);
  live_.erase(key);
}

void WorkerSpans::OnLastToken(const RequestKey& key) {
  MutexLock lock(mutex_);
  const auto found = live_.find(key);
  if (found != live_.end()) found->second.last_token_us = clock_->NowUs();
}

void WorkerSpans::OnStatus(const RequestStatus& status) {
  std::vector<Span> spans;
  {
    MutexLock lock(mutex_);
    const auto found = live_.find(status.key);
    if (found == live_.end()) return;
    const int64_t now_us = clock_->NowUs();
    // Attempts that this attempt took over never end by themselves. An attempt that is refused
    // takes nothing over.
    const bool is_refused = status.state == RequestState::kRejected;
    const auto first = is_refused ? found : live_.lower_bound(RequestKey{status.key.uid, 0});
    for (auto old = first; old != found; ++old) {
      const RequestStatus end{.key = old->first, .state = RequestState::kCancelled};
      std::ranges::move(SpansOf(end, old->second, now_us), std::back_inserter(spans));
    }
    Mark(status, now_us, &found->second);
    auto last = found;
    if (IsTerminal(status.state)) {
      std::ranges::move(SpansOf(status, found->second, now_us), std::back_inserter(spans));
      ++last;
    }
    live_.erase(first, last);
  }
  if (!spans.empty()) sink_->Add(std::move(spans));
}

void WorkerSpans::Mark(const RequestStatus& status, int64_t now_us, Live* live) const {
  switch (status.state) {
    case RequestState::kPrefillStarted:
      live->prefill_us = now_us;
      live->cached_tokens = status.cached_tokens;
      break;
    case RequestState::kPrefillDone:
      live->prefilled_us = now_us;
      break;
    case RequestState::kVerified:
      live->verified_us = now_us;
      live->transfer_us = status.transfer_us;
      live->kv_bytes = status.kv_bytes;
      break;
    case RequestState::kDecodeStarted:
      live->decode_us = now_us;
      break;
    default:
      break;
  }
}

// The part that was under way when it ended badly has the error.
std::vector<Span> WorkerSpans::SpansOf(const RequestStatus& end, const Live& live,
                                       int64_t now_us) const {
  const bool is_good = end.state == RequestState::kFinished;
  std::vector<Span> spans;
  const auto add = [&](std::string_view name, int64_t start_us, int64_t end_us) {
    Span& span = spans.emplace_back();
    span.context = live.parent;
    span.context.span_id = RandomU64() | 1;
    span.parent_id = live.parent.span_id;
    span.name = name;
    // No span starts before the order: another thread times a transfer.
    span.start_us = std::max(live.started_us, start_us);
    span.end_us = std::max(span.start_us, end_us < 0 ? now_us : end_us);
    if (end_us < 0 && end.state == RequestState::kFailed) {
      span.error =
          fmt::format("{}: {}", RequestStateName(end.state), std::string(end.status.message()));
    }
    span.attributes = {{"baton.worker", worker_id_},
                       {"baton.request_uid", end.key.uid.ToHex()},
                       {"baton.attempt", int64_t{end.key.attempt}},
                       {"baton.end", std::string(RequestStateName(end.state))}};
    return &span;
  };
  if (live.prefill_us >= 0) {
    add("worker prefill", live.prefill_us, live.prefilled_us)
        ->attributes.push_back({"baton.cached_tokens", int64_t{live.cached_tokens}});
  }
  if (live.verified_us >= 0 && live.kv_bytes > 0) {
    Span* const span =
        add("worker kv_transfer", live.verified_us - live.transfer_us, live.verified_us);
    span->attributes.push_back({"baton.kv_bytes", static_cast<int64_t>(live.kv_bytes)});
  }
  if (live.decode_us >= 0) add("worker decode", live.decode_us, is_good ? live.last_token_us : -1);
  return spans;
}

}  // namespace baton::worker
