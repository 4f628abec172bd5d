#include "src/api/prompt_fan_in.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "fmt/format.h"

#include "src/api/echo_answer.h"

namespace baton::api {

using router::AnswerName;
using router::DeadlineError;
using router::ErrorCode;
using router::GenerateRequest;
using router::GenerateResult;
using router::IdempotencyKey;
using router::PlainError;
using router::PromptLogprobs;
using router::PromptProgress;
using router::RequestError;
using router::RequestTimings;
using router::ResponseSink;
using router::Submitter;
using router::TokenOutput;

// The sink of one prompt's request.
class PromptFanIn::Part final : public ResponseSink {
 public:
  Part(std::shared_ptr<PromptFanIn> whole, uint32_t prompt)
      : whole_(std::move(whole)), prompt_(prompt) {}

  void OnAccepted(const AnswerName& name) override { whole_->OnAccepted(name); }
  void OnTaken() override { whole_->OnTaken(); }
  void OnPromptLogprobs(std::shared_ptr<const PromptLogprobs> logprobs) override {
    whole_->OnLoggedPrompt(prompt_, std::move(logprobs));
  }
  void OnProgress(const PromptProgress& progress) override {
    whole_->OnPromptProgress(prompt_, progress);
  }
  void OnEmbedding(std::vector<float> embedding) override {
    whole_->OnEmbeddedPrompt(prompt_, std::move(embedding));
  }
  void OnToken(const TokenOutput& token) override { whole_->OnToken(prompt_, token); }
  void OnFinished(const GenerateResult& result) override { whole_->OnFinished(prompt_, result); }
  bool TriesAgain(const RequestError& error) override {
    is_put_back_ = whole_->PutBack(prompt_, error);
    return *is_put_back_;
  }
  void OnFailed(const RequestError& error) override {
    if (!is_put_back_.has_value()) is_put_back_ = whole_->PutBack(prompt_, error);
    if (*is_put_back_) return whole_->SubmitMore();
    whole_->OnFailed(prompt_, error);
  }
  size_t buffered_bytes() const override { return whole_->sink_->buffered_bytes(); }
  const RequestError* own_failure() const override { return whole_->sink_->own_failure(); }

 private:
  const std::shared_ptr<PromptFanIn> whole_;
  const uint32_t prompt_;
  std::optional<bool> is_put_back_;  // none: nobody has asked yet
};

PromptFanIn::PromptFanIn(Submitter* submitter, std::vector<GenerateRequest> requests,
                         std::shared_ptr<AnswerSink> sink,
                         std::shared_ptr<CallCancellation> cancellation, const Clock& clock)
    : submitter_(submitter),
      sink_(std::move(sink)),
      cancellation_(std::move(cancellation)),
      clock_(clock),
      begin_us_(clock.NowUs()),
      timeout_field_(requests.front().fields.timeout),
      timeout_us_(requests.front().timeout_us),
      num_choices_(requests.front().num_choices),
      num_first_(std::min<size_t>(requests.size(), std::max(kAtOnce / num_choices_, 1u))),
      requests_(std::move(requests)),
      num_processed_(requests_.size(), 0) {
  result_.prompts.resize(requests_.size());
}

void PromptFanIn::Begin() {
  MutexLock lock(mutex_);
  num_places_ = num_first_;
  lock.Unlock();
  SubmitMore();
}

void PromptFanIn::SubmitMore() {
  MutexLock lock(mutex_);
  if (is_submitting_) return;
  is_submitting_ = true;
  while (!has_ended_) {
    if (cancellation_->is_cancelled()) {
      // Requests under way end as cancelled. Without any the answer would have no end.
      if (num_under_way_ > 0) break;
      has_ended_ = true;
      sink_->OnFailed(PlainError(ErrorCode::kCancelled));
      break;
    }
    std::optional<Next> next = TakeNextLocked();
    if (!next) break;
    lock.Unlock();
    const std::optional<RequestUid> uid =
        SubmitOrEcho(submitter_, std::move(next->request),
                     std::make_shared<Part>(shared_from_this(), next->prompt));
    if (uid.has_value()) cancellation_->OnSubmitted(submitter_, *uid);
    lock.Lock();
  }
  is_submitting_ = false;
}

std::optional<PromptFanIn::Next> PromptFanIn::TakeNextLocked() {
  if (num_under_way_ >= num_places_) return std::nullopt;
  Next next;
  if (!put_back_.empty()) {
    next.prompt = put_back_.back();
    put_back_.pop_back();
  } else if (num_begun_ < requests_.size()) {
    next.prompt = static_cast<uint32_t>(num_begun_++);
  } else {
    return std::nullopt;
  }
  ++num_under_way_;
  next.request = requests_[next.prompt];
  if (num_finished_ > 0) ArriveNow(&next.request);  // before that, nothing had to wait
  next.request.skips_forecast = num_waits_alone_ + num_refusals_alone_ > 0;
  return next;
}

void PromptFanIn::ArriveNow(GenerateRequest* request) const {
  const int64_t waited_us = clock_.NowUs() - begin_us_;
  // 0 would be none: a deadline that has passed ends the request at once.
  const auto left_us = [&](int64_t timeout_us) {
    return timeout_us > 0 ? std::max<int64_t>(timeout_us - waited_us, 1) : 0;
  };
  request->received_us += waited_us;
  request->timeout_us = left_us(request->timeout_us);
  if (request->key == nullptr) return;
  auto key = std::make_shared<IdempotencyKey>(*request->key);
  key->timeout_us = left_us(key->timeout_us);
  request->key = std::move(key);
}

RequestError PromptFanIn::ToldError(uint32_t prompt, const RequestError& error) const {
  const bool is_past = error.code == ErrorCode::kDeadlineExceeded && !error.never_started;
  if (is_past && timeout_us_ > 0 && error.param == timeout_field_) {
    return DeadlineError(timeout_field_, timeout_us_);
  }
  RequestError told = error;
  if (told.param == "prompt") told.param = fmt::format("prompt[{}]", prompt);
  return told;
}

bool PromptFanIn::PutBack(uint32_t prompt, const RequestError& error) {
  MutexLock lock(mutex_);
  if (has_ended_ || !TakeTryLocked(prompt, error)) return false;
  --num_under_way_;
  num_places_ = std::max<size_t>(num_under_way_, 1);
  put_back_.push_back(prompt);
  lock.Unlock();
  submitter_->CountPutBack();
  return true;
}

bool PromptFanIn::TakeTryLocked(uint32_t prompt, const RequestError& error) {
  const int64_t now_us = clock_.NowUs();
  const bool is_refused = HttpStatusOf(error.code) == 429 && !requests_[prompt].prompt.empty();
  if (!is_refused || now_us - begin_us_ >= kRoomLimitUs) return false;
  if (num_under_way_ > 1) return true;
  if (num_finished_ == 0) return false;
  // kRateLimited: for its tenant's share. One that was refused at once would only be refused again
  // and again.
  const bool has_waited =
      error.code == ErrorCode::kQueueTimeout || error.code == ErrorCode::kRateLimited;
  const bool may_be_late = has_waited && now_us - finished_us_ < kLateRoomUs;
  uint32_t& num_tries = has_waited ? num_waits_alone_ : num_refusals_alone_;
  if (num_tries >= (may_be_late ? kMostTriesAlone : 1)) return false;
  ++num_tries;
  return true;
}

void PromptFanIn::OnAccepted(const AnswerName& name) {
  MutexLock lock(mutex_);
  if (has_ended_ || is_accepted_) return;
  is_accepted_ = true;
  sink_->OnAccepted(name);
}

void PromptFanIn::OnTaken() {
  MutexLock lock(mutex_);
  if (++num_taken_ == num_first_ && !has_ended_ && !has_begun_) sink_->OnTaken();
}

void PromptFanIn::OnLoggedPrompt(uint32_t prompt, std::shared_ptr<const PromptLogprobs> logprobs) {
  MutexLock lock(mutex_);
  if (has_ended_) return;
  requests_[prompt].sampling.prompt_logprobs.reset();  // another try computes none
  sink_->OnLoggedPrompt(prompt, std::move(logprobs));
}

void PromptFanIn::OnPromptProgress(uint32_t prompt, const PromptProgress& progress) {
  MutexLock lock(mutex_);
  if (has_ended_ || progress.processed <= num_processed_[prompt]) return;
  num_processed_[prompt] = progress.processed;
  sink_->OnPromptProgress(prompt, progress);
}

void PromptFanIn::OnEmbeddedPrompt(uint32_t prompt, std::vector<float> embedding) {
  MutexLock lock(mutex_);
  if (!has_ended_) sink_->OnEmbeddedPrompt(prompt, std::move(embedding));
}

void PromptFanIn::OnToken(uint32_t prompt, const TokenOutput& token) {
  MutexLock lock(mutex_);
  if (has_ended_) return;
  has_begun_ = true;
  if (!requests_[prompt].prompt.empty()) requests_[prompt] = {};  // its first token
  TokenOutput output = token;
  output.choice += prompt * num_choices_;
  sink_->OnToken(output);
}

void PromptFanIn::OnFinished(uint32_t prompt, const GenerateResult& result) {
  MutexLock lock(mutex_);
  if (has_ended_) return;
  --num_under_way_;
  requests_[prompt] = {};
  AddLocked(prompt, result);
  finished_us_ = clock_.NowUs();
  num_waits_alone_ = 0;
  num_refusals_alone_ = 0;
  if (++num_finished_ == requests_.size()) {
    has_ended_ = true;
    return sink_->OnFinished(result_);
  }
  sink_->OnPromptFinished(result);
  num_places_ = std::min(num_places_ + 1, num_first_);
  lock.Unlock();
  SubmitMore();
}

void PromptFanIn::OnFailed(uint32_t prompt, const RequestError& error) {
  MutexLock lock(mutex_);
  if (has_ended_) return;
  --num_under_way_;
  has_ended_ = true;
  cancellation_->OnCancel(submitter_);
  sink_->OnFailed(ToldError(prompt, error));
}

void PromptFanIn::AddLocked(uint32_t prompt, const GenerateResult& result) {
  result_.prompts[prompt] = result.timings;
  result_.num_prompt_tokens += result.num_prompt_tokens;
  result_.num_completion_tokens += result.num_completion_tokens;
  // The times are those of the prompt that ends last; what is counted is the sum.
  RequestTimings sum = result.timings;
  if (num_finished_ > 0) {
    const RequestTimings& before = result_.timings;
    sum.kv_bytes += before.kv_bytes;
    sum.cached_tokens += before.cached_tokens;
    sum.resumes += before.resumes;
    sum.speculated += before.speculated;
    sum.accepted += before.accepted;
    sum.exact = sum.exact && before.exact;
  }
  result_.timings = std::move(sum);
}

bool SubmitAnswer(Submitter* submitter, GenerateRequest request,
                  std::vector<GenerateRequest> others, std::shared_ptr<AnswerSink> sink,
                  std::shared_ptr<CallCancellation> cancellation) {
  const bool computes = request.sampling.max_tokens > 0;
  if (others.empty()) {
    const auto uid = SubmitOrEcho(submitter, std::move(request), std::move(sink));
    if (uid.has_value()) cancellation->OnSubmitted(submitter, *uid);
    return computes;
  }
  others.insert(others.begin(), std::move(request));
  std::make_shared<PromptFanIn>(submitter, std::move(others), std::move(sink),
                                std::move(cancellation))
      ->Begin();
  return computes;
}

}  // namespace baton::api
