// A Submitter whose router is the test: it keeps what was submitted and plays tokens into the
// sinks.
#ifndef BATON_TESTS_API_FAKE_SUBMITTER_H_
#define BATON_TESTS_API_FAKE_SUBMITTER_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/router/submit.h"
#include "tests/router/test_model.h"

namespace baton::api {

class FakeSubmitter final : public router::Submitter {
 public:
  // One submitted request.
  struct Submitted {
    RequestUid uid;
    router::GenerateRequest request;
    std::shared_ptr<router::ResponseSink> sink;
  };

  FakeSubmitter() { served = {router::TestModel()}; }

  RequestUid Submit(router::GenerateRequest request,
                    std::shared_ptr<router::ResponseSink> sink) override {
    RequestUid uid;
    {
      std::lock_guard lock(mutex_);
      uid = {7, ++last_uid_};
      submitted_.push_back({uid, request, keeps_sinks ? sink : nullptr});
    }
    changed_.notify_all();
    // The answer comes on another thread in life; here the test may give it on this one.
    if (answer) answer(request, *sink);
    return uid;
  }
  void Cancel(RequestUid uid, router::CancelCause cause) override {
    {
      std::lock_guard lock(mutex_);
      cancelled_.push_back(uid);
      last_cause = cause;
    }
    changed_.notify_all();
  }
  void CountAnswered(int http_status) override {
    std::lock_guard lock(mutex_);
    refused_.push_back(http_status);
  }
  void CountEcho(uint32_t num_choices) override {
    std::lock_guard lock(mutex_);
    echoes_.push_back(num_choices);
  }
  void CountPutBack() override {
    std::lock_guard lock(mutex_);
    ++num_put_back_;
  }
  std::shared_ptr<const router::ModelDirectory> models() const override {
    if (directory) return std::make_shared<const router::ModelDirectory>(*directory);
    std::vector<router::KnownModel> known;
    for (const auto& model : served) {
      const std::vector<std::string> id = {model->id};
      known.push_back({model->id, model->names.empty() ? id : model->names, model});
    }
    return std::make_shared<const router::ModelDirectory>(std::move(known));
  }
  bool ready() const override { return is_ready; }
  bool draining() const override { return is_draining; }
  void GetTopology(absl::AnyInvocable<void(const router::Topology&)> done) override {
    done(topology);
  }
  void GetRequests(
      absl::AnyInvocable<void(const std::vector<router::RequestView>&)> done) override {
    done({});
  }

  // Waits for the n-th submission (from 0).
  Submitted WaitSubmitted(size_t idx = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return submitted_.size() > idx; });
    return submitted_.at(idx);
  }
  bool WaitCancelled(RequestUid uid) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      return std::find(cancelled_.begin(), cancelled_.end(), uid) != cancelled_.end();
    });
  }
  size_t num_submitted() {
    std::lock_guard lock(mutex_);
    return submitted_.size();
  }
  size_t num_put_back() {
    std::lock_guard lock(mutex_);
    return num_put_back_;
  }
  // The number of choices of each echo.
  std::vector<uint32_t> echoes() {
    std::lock_guard lock(mutex_);
    return echoes_;
  }
  std::vector<int> refused() {
    std::lock_guard lock(mutex_);
    return refused_;
  }

  std::vector<std::shared_ptr<const router::ModelInfo>> served;
  std::optional<router::ModelDirectory> directory;  // instead of `served`
  router::Topology topology;
  bool is_ready = true;
  bool is_draining = false;
  bool keeps_sinks = true;  // false: a sink lives only as long as its answer
  router::CancelCause last_cause =
      router::CancelCause::kClientLeft;  // of the latest Cancel, after WaitCancelled
  std::function<void(const router::GenerateRequest&, router::ResponseSink&)> answer;

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Submitted> submitted_;
  std::vector<RequestUid> cancelled_;
  std::vector<int> refused_;
  size_t num_put_back_ = 0;
  std::vector<uint32_t> echoes_;
  uint64_t last_uid_ = 0;
};

// Plays `text` byte by byte as one choice, and the end when `ends`.
inline void PlayText(router::ResponseSink& sink, std::string_view text, uint32_t choice = 0,
                     scheduler::FinishReason finish = scheduler::FinishReason::kStop,
                     bool is_last = true) {
  static const std::vector<TokenLogprob> kTop = {{'a', -0.25f}, {'b', -1.5f}};
  for (size_t i = 0; i < text.size(); ++i) {
    const bool end = i + 1 == text.size();
    router::TokenOutput token;
    token.choice = choice;
    token.index = static_cast<uint32_t>(i);
    token.token = static_cast<unsigned char>(text[i]);
    token.text = text.substr(i, 1);
    token.has_logprob = true;
    token.logprob = -0.25f;
    token.top_logprobs = &kTop;
    token.finish = end ? finish : scheduler::FinishReason::kNone;
    token.is_last = end && is_last;
    sink.OnToken(token);
  }
}

inline router::GenerateResult TestResult(uint32_t num_prompt_tokens,
                                         uint32_t num_completion_tokens) {
  router::GenerateResult result;
  result.num_prompt_tokens = num_prompt_tokens;
  result.num_completion_tokens = num_completion_tokens;
  result.timings.disaggregated = true;
  result.timings.prefill_worker = "prefill-0";
  result.timings.decode_worker = "decode-0";
  result.timings.transport = "shm";
  result.timings.kv_bytes = 11796480;
  result.timings.queue_ms = 0.4;
  result.timings.prefill_ms = 61.2;
  result.timings.kv_wait_ms = 0.9;
  result.timings.first_step_ms = 6.1;
  result.timings.decode_ms = 412.0;
  result.timings.cached_tokens = 7;
  return result;
}

}  // namespace baton::api

#endif  // BATON_TESTS_API_FAKE_SUBMITTER_H_
