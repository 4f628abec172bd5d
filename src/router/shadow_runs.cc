#include "src/router/shadow_runs.h"

#include <algorithm>
#include <optional>

#include "fmt/format.h"

#include "src/base/log.h"
#include "src/base/priority.h"
#include "src/base/random.h"

namespace baton::router {

using obs::BatonMetrics;
using obs::ShadowResult;

ShadowRuns::Told::Told(const TokenOutput& output) : token(output.token), finish(output.finish) {
  if (!output.has_logprob) return;
  logprob = output.logprob;
  top_logprobs = *output.top_logprobs;
}

// A vector of them that has just grown is half empty.
size_t ShadowRuns::Told::bytes() const {
  return 2 * sizeof(Told) + top_logprobs.capacity() * sizeof(TokenLogprob);
}

bool ShadowRuns::Loan::Take(size_t bytes) {
  if (*lent_ + bytes > kMaxBytes) return false;
  *lent_ += bytes;
  bytes_ += bytes;
  return true;
}

// The memory is asked for before anything is copied.
void ShadowRuns::Case::TakeRequest(const GenerateRequest& from) {
  const wire::SamplingParams& sampling = from.sampling;
  size_t bytes = sizeof(Case) + from.request_id.size() + from.tenant.size();
  bytes += from.prompt.size() * sizeof(TokenId);
  bytes += sampling.logit_bias.size() * sizeof(sampling.logit_bias[0]);
  bytes += sampling.stop_token_ids.size() * sizeof(TokenId);
  bytes += from.stop.num_bytes();
  bytes += from.num_choices * sizeof(std::vector<Told>);
  complete = loan.Take(bytes);
  if (!complete) return;
  request = from;
  request.key = nullptr;
  request.reports_progress = false;
  request.priority = kMaxPriority;           // no client waits for a shadow
  request.sampling.prompt_logprobs.reset();  // its tokens are compared
  told.resize(from.num_choices);
}

void ShadowRuns::Case::TakeToken(const TokenOutput& token) {
  if (!complete) return;
  Told kept(token);
  if (!loan.Take(kept.bytes())) return GiveUp();
  told[token.choice].push_back(std::move(kept));
}

void ShadowRuns::Case::GiveUp() {
  complete = false;
  request = GenerateRequest{};
  told = {};
  loan.GiveBack();
}

class ShadowRuns::Witness final : public ResponseSink {
 public:
  Witness(ShadowRuns* runs, Case seen, std::shared_ptr<ResponseSink> sink)
      : runs_(runs), seen_(std::move(seen)), sink_(std::move(sink)) {}

  void OnAccepted(const AnswerName& name) override { sink_->OnAccepted(name); }
  void OnTaken() override { sink_->OnTaken(); }
  void OnPromptLogprobs(std::shared_ptr<const PromptLogprobs> logprobs) override {
    sink_->OnPromptLogprobs(std::move(logprobs));
  }
  void OnProgress(const PromptProgress& progress) override { sink_->OnProgress(progress); }
  void OnToken(const TokenOutput& token) override {
    seen_.TakeToken(token);
    sink_->OnToken(token);
  }
  void OnFinished(const GenerateResult& result) override {
    sink_->OnFinished(result);
    runs_->OnWitnessed(std::move(seen_), result);
  }
  void OnFailed(const RequestError& error) override { sink_->OnFailed(error); }
  size_t buffered_bytes() const override { return sink_->buffered_bytes(); }
  const RequestError* own_failure() const override { return sink_->own_failure(); }
  bool TriesAgain(const RequestError& error) override { return sink_->TriesAgain(error); }

 private:
  ShadowRuns* const runs_;
  Case seen_;
  const std::shared_ptr<ResponseSink> sink_;
};

class ShadowRuns::Check final : public ResponseSink {
 public:
  Check(ShadowRuns* runs, RequestUid uid, Case seen)
      : runs_(runs), uid_(uid), seen_(std::move(seen)), num_equal_(seen_.told.size(), 0) {}

  void OnToken(const TokenOutput& token) override {
    if (differs_) return;
    const std::vector<Told>& client = seen_.told[token.choice];
    size_t& num_equal = num_equal_[token.choice];
    const Told mine(token);
    const bool had_ended = num_equal == client.size();
    if (!had_ended && client[num_equal] == mine) {
      ++num_equal;
      return;
    }
    differs_ = true;
    runs_->OnDifference(seen_, {token.choice, num_equal, had_ended ? nullptr : &client[num_equal],
                                &mine, runs_->WorkerOf(uid_)});
  }
  void OnFinished(const GenerateResult& result) override {
    --runs_->num_running_;
    if (differs_) return;
    for (uint32_t choice = 0; choice < num_equal_.size(); ++choice) {
      const size_t index = num_equal_[choice];
      if (index == seen_.told[choice].size()) continue;
      return runs_->OnDifference(seen_, {choice, index, &seen_.told[choice][index], nullptr,
                                         result.timings.decode_worker});
    }
    runs_->Count(ShadowResult::kEqual);
  }
  void OnFailed(const RequestError& error) override {
    --runs_->num_running_;
    if (differs_) return;
    // It made room for a client, the router leaves, or it took longer than its client would wait.
    const bool gave_way =
        error.code == ErrorCode::kCancelled || error.code == ErrorCode::kQueueFull ||
        error.code == ErrorCode::kDraining || error.code == ErrorCode::kDeadlineExceeded;
    runs_->Count(gave_way ? ShadowResult::kDropped : ShadowResult::kFailed);
  }
  size_t buffered_bytes() const override { return 0; }

 private:
  ShadowRuns* const runs_;
  const RequestUid uid_;
  const Case seen_;
  std::vector<size_t> num_equal_;  // by choice
  bool differs_ = false;           // and it is counted
};

ShadowRuns::ShadowRuns(double share, RouterCore* core, const BatonMetrics* metrics)
    : share_(share), core_(core), metrics_(metrics) {}

ShadowRuns::~ShadowRuns() = default;

std::shared_ptr<ResponseSink> ShadowRuns::Wrap(RequestUid uid, const GenerateRequest& request,
                                               std::shared_ptr<ResponseSink> sink) {
  if (request.embeds) return sink;  // its tokens would be compared
  due_ += share_;
  if (due_ < 1.0) return sink;
  due_ -= 1.0;
  Case seen{.uid = uid,
            .request = {},
            .loan = Loan(&lent_bytes_),
            .complete = true,
            .told = {},
            .prefill_worker = "",
            .decode_worker = "",
            .waits_since_us = -1};
  seen.TakeRequest(request);
  return std::make_shared<Witness>(this, std::move(seen), std::move(sink));
}

void ShadowRuns::OnWitnessed(Case seen, const GenerateResult& result) {
  // An inexact pair may differ from one worker alone, as its answer has said.
  if (!result.timings.disaggregated || !result.timings.exact) return;
  const std::optional<uint64_t> numerics = core_->NumericsOf(result.timings.decode_worker);
  const bool can_wait = seen.complete && numerics.has_value() && pending_.size() < kMaxPending &&
                        core_->num_queued() == 0;
  if (!can_wait) return Count(ShadowResult::kDropped);
  seen.request.shadow_numerics_id = numerics;
  seen.prefill_worker = result.timings.prefill_worker;
  seen.decode_worker = result.timings.decode_worker;
  pending_.push_back(std::move(seen));
}

void ShadowRuns::Tick(int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  for (Case& seen : pending_) {
    if (seen.waits_since_us < 0) seen.waits_since_us = now_us_;
  }
  while (!pending_.empty()) {
    const bool waits_too_long = now_us_ - pending_.front().waits_since_us >= kWaitUs;
    if (!waits_too_long && core_->num_queued() == 0) break;
    pending_.pop_front();
    Count(ShadowResult::kDropped);
  }
  for (size_t i = 0; i < pending_.size() && num_running_ < kMaxRunning;) {
    if (!core_->HasIdleWorkerFor(pending_[i].request, now_us_)) {
      ++i;
      continue;
    }
    Case seen = std::move(pending_[i]);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    Start(std::move(seen), now_us_);
  }
}

void ShadowRuns::Start(Case seen, int64_t now_us) {
  const RequestUid uid = RandomRequestUid();
  GenerateRequest request = std::move(seen.request);
  seen.request.request_id = request.request_id;  // for the log
  request.request_id = "shadow:" + request.request_id;
  request.received_us = now_us;
  ++num_running_;
  // May end at once.
  core_->Submit(uid, std::move(request), std::make_shared<Check>(this, uid, std::move(seen)),
                now_us);
}

// Where a shadow runs, as /debug/requests says.
std::string ShadowRuns::WorkerOf(RequestUid shadow) const {
  for (const RequestView& view : core_->RequestViews(now_us_)) {
    if (view.uid == shadow) return view.decode_worker;
  }
  return "";
}

void ShadowRuns::OnDifference(const Case& seen, const Difference& difference) {
  Count(ShadowResult::kMismatch);
  const auto describe = [](const Told* told) {
    return told == nullptr ? std::string("none")
                           : fmt::format("{} (finish {}, log-probability {})", told->token,
                                         static_cast<int>(told->finish), told->logprob);
  };
  BATON_LOG_ERROR(
      "request {} ({}) choice {} differs at index {}: the client got token {} from {} and {}, {} "
      "alone computes token {}",
      seen.uid, seen.request.request_id, difference.choice, difference.index,
      describe(difference.client), seen.prefill_worker, seen.decode_worker,
      difference.shadow_worker, describe(difference.shadow));
}

}  // namespace baton::router
