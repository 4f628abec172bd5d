// StreamCall: a gRPC call that generates and streams; grpc_calls.h says how such calls live.
#ifndef BATON_API_GRPC_STREAM_CALL_H_
#define BATON_API_GRPC_STREAM_CALL_H_

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "grpcpp/grpcpp.h"

#include "src/api/answer_text.h"
#include "src/api/grpc_calls.h"
#include "src/api/prompt_logs.h"
#include "src/base/mutex.h"

namespace baton::api {

// One streaming call: one chunk per token; the last one waits for usage and timings.
template <typename Request, typename Chunk>
class StreamCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public GenerateCall {
 public:
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(const ApiParts& parts, Endpoint endpoint,
                                                           grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request) {
    auto call = std::shared_ptr<StreamCall>(new StreamCall(parts, context));
    call->Begin(call, *request, std::make_shared<Request>(), endpoint, /*stream=*/true);
    return call.get();
  }

  void OnCancel() override { Cancelled(); }
  void OnDone() override { Done(); }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    buffered_bytes_ -= queue_.front().ByteSizeLong();
    queue_.pop_front();
    // The stream is broken: no later write would succeed. Lost bytes stay counted, so that a paused
    // answer is not ended as whole before its cancellation is heard of.
    if (!ok) queue_.clear();
    ContinueLocked();
  }

  // The client hears that its call is served before there is a token; pings of HTTP/2 do the rest.
  void OnTaken() override {
    name_.Tell(plan_.request_id);
    MutexLock lock(mutex_);
    if (std::exchange(has_headers_, true) || final_status_.has_value()) return;
    StartSendInitialMetadata();
  }
  void OnToken(const router::TokenOutput& token) override {
    if (failure_.has_value()) return;
    Chunk chunk;
    if (token.index == 0) Open(token.choice, &chunk);
    FillChunk(plan_, token, texts_->Push(token), &chunk);
    router::RequestError error;
    if (token.index == 0 && IsOpeningTooLarge(plan_, chunk.ByteSizeLong(), &error)) {
      failure_ = std::move(error);
      return Cancelled();
    }
    if (token.is_last) {
      last_chunk_ = std::move(chunk);
    } else {
      Push(std::move(chunk));
    }
  }
  void OnLoggedPrompt(uint32_t prompt,
                      std::shared_ptr<const router::PromptLogprobs> logprobs) override {
    prompt_logs_->Set(prompt, std::move(logprobs), self());
  }
  void OnPromptProgress(uint32_t prompt, const router::PromptProgress& progress) override {
    Chunk chunk;
    FillProgress(plan_, prompt * plan_.num_choices, progress, &chunk);
    Push(std::move(chunk));
  }
  void OnPromptFinished(const router::GenerateResult& result) override {
    if (failure_.has_value()) return;
    FillPromptTimings(result.timings, &last_chunk_);
    Push(std::exchange(last_chunk_, {}));
  }
  void OnFinished(const router::GenerateResult& result) override {
    if (failure_.has_value()) return OnFailed(*failure_);
    if (!result.prompts.empty()) {
      const size_t prompt = last_chunk_.choices(0).index() / plan_.num_choices;
      FillPromptTimings(result.prompts[prompt], &last_chunk_);
    }
    FillUsage(result, texts_->num_reasoning_tokens(), last_chunk_.mutable_usage());
    FillTimings(result.timings, last_chunk_.mutable_timings());
    Push(std::move(last_chunk_));
    End(grpc::Status::OK);
  }
  void OnFailed(const router::RequestError& error) override {
    const bool is_own = error.code == router::ErrorCode::kCancelled && failure_.has_value();
    GenerateCall::OnFailed(is_own ? *failure_ : error);
    if (error.code == router::ErrorCode::kSlowClient) CutOff();
  }
  // A large first chunk is waited for as for a slow client.
  size_t buffered_bytes() const override {
    const size_t num_bytes = buffered_bytes_.load(std::memory_order_relaxed);
    return prompt_logs_->is_building() ? num_bytes + router::kPauseBytes + 1 : num_bytes;
  }
  const router::RequestError* own_failure() const override {
    return failure_ ? &*failure_ : nullptr;
  }

 private:
  StreamCall(const ApiParts& parts, grpc::CallbackServerContext* context)
      : GenerateCall(parts, context) {}

  void BeginAnswer(uint32_t num_choices) override {
    texts_.emplace(plan_, num_choices);
    prompt_logs_.emplace(plan_, parts_.workers,
                         [this](uint32_t prompt, const router::PromptLogprobs* log) {
                           Chunk chunk;
                           FillPromptLog(plan_, prompt, log, &chunk);
                           return chunk;
                         });
    prompt_logs_->Keep(std::move(room_));
  }

  // Begins the first chunk of a choice. All choices of a chat have one prompt, which the stream's
  // first chunk tells of.
  void Open(uint32_t choice, Chunk* chunk) {
    const uint32_t prompt = choice / plan_.num_choices;
    if (plan_.endpoint != Endpoint::kChat || !std::exchange(has_begun_, true)) {
      Chunk& log = prompt_logs_->Of(prompt);
      if (prompt_logs_->IsLast(prompt)) {
        *chunk = std::move(log);
      } else {
        *chunk = log;
      }
    }
    prompt_logs_->OnOpened(prompt);
  }

  void Push(Chunk chunk) {
    MutexLock lock(mutex_);
    has_headers_ = true;  // with the first chunk; gRPC ends the process over a second time
    buffered_bytes_ += chunk.ByteSizeLong();
    queue_.push_back(std::move(chunk));
    if (queue_.size() == 1) WriteFrontLocked();
  }

  void End(grpc::Status status) override {
    end_limit_.Begin(buffered_bytes_);  // first: the call may be done once it has its status
    MutexLock lock(mutex_);
    final_status_ = std::move(status);
    if (queue_.empty()) ContinueLocked();
  }

  // The write under way waits for a client that does not read, and the status would wait for
  // it. The client then sees CANCELLED.
  void CutOff() {
    MutexLock lock(mutex_);  // keeps the context: the call cannot be finished meanwhile
    if (!queue_.empty()) context_->TryCancel();
  }

  void WriteFrontLocked() BATON_REQUIRES(mutex_) {
    WriteMessage(queue_.front(), &writing_);
    StartWrite(&writing_);
  }
  void ContinueLocked() BATON_REQUIRES(mutex_) {
    if (!queue_.empty()) {
      WriteFrontLocked();
    } else if (final_status_.has_value()) {
      Finish(*final_status_);
    }
  }

  // The router's thread.
  std::optional<AnswerText> texts_;
  Chunk last_chunk_;
  bool has_begun_ = false;                       // a choice has its first chunk
  std::optional<router::RequestError> failure_;  // why the answer cancelled itself
  std::optional<PromptLogs<Chunk>> prompt_logs_;

  std::atomic<size_t> buffered_bytes_{0};
  Mutex mutex_;
  bool has_headers_ BATON_GUARDED_BY(mutex_) = false;  // the initial metadata is on its way
  std::deque<Chunk> queue_ BATON_GUARDED_BY(mutex_);   // the front one is being written
  grpc::ByteBuffer writing_ BATON_GUARDED_BY(mutex_);  // its bytes
  std::optional<grpc::Status> final_status_ BATON_GUARDED_BY(mutex_);
};

}  // namespace baton::api

#endif  // BATON_API_GRPC_STREAM_CALL_H_
