// An HttpResponder that keeps the answer for the test.
#ifndef BATON_TESTS_API_FAKE_RESPONDER_H_
#define BATON_TESTS_API_FAKE_RESPONDER_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "src/http/http_responder.h"

namespace baton::api {

class FakeResponder final : public http::HttpResponder {
 public:
  bool Respond(http::HttpResponse response) override {
    std::lock_guard lock(mutex_);
    if (done_ || streaming_) return false;
    status = response.status;
    headers = std::move(response.headers);
    body = std::move(response.body);
    done_ = true;
    changed_.notify_all();
    return true;
  }
  bool StartStream(int code, const http::HttpHeaders& fields) override {
    std::lock_guard lock(mutex_);
    if (done_ || streaming_) return false;
    streaming_ = true;
    streamed = true;
    status = code;
    headers = fields;
    return true;
  }
  bool Write(std::string_view chunk) override {
    std::lock_guard lock(mutex_);
    body.append(chunk);
    untaken_ += chunk.size();
    return true;
  }
  bool Finish() override {
    std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
    return true;
  }
  bool FinishAndClose() override {
    closes = true;
    return Finish();
  }
  void Abort() override {
    aborted = true;
    Finish();
  }
  void KeepAlive(std::string bytes, int64_t after_ms) override {
    std::lock_guard lock(mutex_);
    filler = std::move(bytes);
    silence_ms = after_ms;
  }
  size_t buffered_bytes() const override {
    std::lock_guard lock(mutex_);
    return buffered + untaken_;
  }
  // The client takes everything as soon as it is waited for.
  http::HttpRoom NotifyBelow(size_t /*limit*/, absl::AnyInvocable<void()> /*callback*/) override {
    std::lock_guard lock(mutex_);
    ++num_pauses;
    untaken_ = 0;
    return http::HttpRoom::kNow;
  }
  void OnClosed(absl::AnyInvocable<void(http::HttpClientGone)> callback) override {
    std::unique_lock lock(mutex_);
    on_closed_ = std::move(callback);
    const bool gone = gone_;
    lock.unlock();
    changed_.notify_all();
    if (gone) on_closed_(http::HttpClientGone::kLeft);
  }

  // The client goes away.
  void Close(http::HttpClientGone how = http::HttpClientGone::kLeft) {
    std::unique_lock lock(mutex_);
    gone_ = true;
    if (on_closed_ == nullptr || done_) return;
    lock.unlock();
    on_closed_(how);
  }
  // Waits for the whole answer.
  bool Wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [this] { return done_; });
  }
  bool WaitOnClosedSet() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20),
                             [this] { return on_closed_ != nullptr; });
  }
  std::string Header(std::string_view name) const {
    return std::string(headers.Find(name).value_or(""));
  }

  int status = 0;
  http::HttpHeaders headers;
  std::string body;
  size_t buffered = 0;    // beside what a stream has written and NotifyBelow has not taken
  bool streamed = false;  // the answer went out in pieces
  int num_pauses = 0;     // times that its writer waited for the client
  bool closes = false;    // the connection ends with the answer
  bool aborted = false;   // nothing was answered
  std::string filler;     // of KeepAlive
  int64_t silence_ms = 0;

 private:
  mutable std::mutex mutex_;
  size_t untaken_ = 0;
  std::condition_variable changed_;
  absl::AnyInvocable<void(http::HttpClientGone)> on_closed_;
  bool streaming_ = false;
  bool done_ = false;
  bool gone_ = false;
};

}  // namespace baton::api

#endif  // BATON_TESTS_API_FAKE_RESPONDER_H_
