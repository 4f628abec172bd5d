// StreamCall: a gRPC call that generates and streams; grpc_calls.h says how such calls live.
#ifndef BATON_API_GRPC_STREAM_CALL_H_
#define BATON_API_GRPC_STREAM_CALL_H_

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "grpcpp/grpcpp.h"

#include "src/api/answer_text.h"
#include "src/api/grpc_calls.h"

namespace baton {

// One streaming call: one chunk per token; the last one waits for usage and timings.
template <typename Request, typename Chunk>
class StreamCall final : public grpc::ServerWriteReactor<Chunk>, public ResponseSink {
 public:
  static grpc::ServerWriteReactor<Chunk>* Start(const ApiParts& parts, Endpoint endpoint,
                                                grpc::CallbackServerContext* context,
                                                const Request* request) {
    auto call = std::shared_ptr<StreamCall>(new StreamCall(parts, context));
    call->self_ = call;
    Arrival arrival = ArrivalOf(*context, endpoint);
    arrival.stream = true;
    arrival.splits_reasoning = parts.splits_reasoning;
    const bool posted = parts.workers->TryPost(
        request->ByteSizeLong(), [=](bool too_late) { call->Run(*request, arrival, too_late); });
    if (!posted) call->Refuse(parts.workers->Refusal(), "");
    return call.get();
  }

  void OnCancel() override { cancellation_.OnCancel(parts_.submitter); }
  void OnDone() override {
    end_limit_.OnDone();
    self_.reset();  // may destroy this
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    buffered_bytes_ -= queue_.front().ByteSizeLong();
    queue_.pop_front();
    if (!ok) DropQueueLocked();  // the stream is broken: no later write would succeed
    ContinueLocked();
  }

  void OnAccepted(const AnswerName& name) override {
    plan_.Rename(name);
    name_.Tell(plan_.request_id);
  }
  void OnToken(const TokenOutput& token) override {
    Chunk chunk;
    FillChunk(plan_, token, texts_->Push(token), &chunk);
    if (token.is_last) {
      last_chunk_ = std::move(chunk);
    } else {
      Push(std::move(chunk));
    }
  }
  void OnFinished(const GenerateResult& result) override {
    FillUsage(plan_, result, texts_->num_reasoning_tokens(), last_chunk_.mutable_usage());
    FillTimings(result.timings, last_chunk_.mutable_timings());
    Push(std::move(last_chunk_));
    FinishWhenWritten(grpc::Status::OK);
  }
  void OnFailed(const RequestError& error) override {
    name_.Tell(plan_.request_id);
    FinishWhenWritten(StatusOf(error, context_));
    if (error.code == ErrorCode::kSlowClient) CutOff();
  }
  size_t buffered_bytes() const override { return buffered_bytes_.load(std::memory_order_relaxed); }

 private:
  StreamCall(const ApiParts& parts, grpc::CallbackServerContext* context)
      : parts_(parts),
        context_(context),
        name_(context),
        end_limit_(context, parts.slow_client_us) {}

  void Run(const Request& request, const Arrival& arrival, bool too_late) {
    if (too_late) return Refuse(ApiStops(), "");
    BuiltRequest built;
    RequestError error;
    if (!BuildFromMessage(request, arrival, *parts_.submitter, &built, &error)) {
      return Refuse(error, built.plan.request_id);
    }
    plan_ = std::move(built.plan);
    if (built.request.key == nullptr) name_.Tell(plan_.request_id);
    texts_.emplace(plan_, built.request.num_choices);
    auto self = self_;
    const auto uid = SubmitOrEcho(parts_.submitter, std::move(built.request), self);
    if (uid.has_value()) cancellation_.OnSubmitted(parts_.submitter, *uid);
  }

  void Refuse(const RequestError& error, std::string_view request_id) {
    name_.Tell(request_id);
    parts_.submitter->CountAnswered(HttpStatusOf(error.code));
    FinishWhenWritten(StatusOf(error, context_));
  }

  void Push(Chunk chunk) {
    std::lock_guard lock(mutex_);
    buffered_bytes_ += chunk.ByteSizeLong();
    queue_.push_back(std::move(chunk));
    if (queue_.size() == 1) this->StartWrite(&queue_.front());
  }

  void FinishWhenWritten(grpc::Status status) {
    std::lock_guard lock(mutex_);
    final_status_ = std::move(status);
    end_limit_.Begin(buffered_bytes_);
    if (queue_.empty()) ContinueLocked();
  }

  // The write under way waits for a client that does not read, and the status would wait behind
  // it. The client then sees CANCELLED.
  void CutOff() {
    std::lock_guard lock(mutex_);  // keeps the context: the call cannot be finished meanwhile
    if (!queue_.empty()) context_->TryCancel();
  }

  void DropQueueLocked() {
    queue_.clear();
    buffered_bytes_ = 0;
  }

  void ContinueLocked() {
    if (!queue_.empty()) {
      this->StartWrite(&queue_.front());
    } else if (final_status_.has_value()) {
      this->Finish(*final_status_);
    }
  }

  const ApiParts parts_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<StreamCall> self_;  // from Start to OnDone
  AnswerPlan plan_;
  CallName name_;
  CallCancellation cancellation_;
  CallEndLimit end_limit_;

  // The router's thread.
  std::optional<AnswerText> texts_;
  Chunk last_chunk_;

  std::atomic<size_t> buffered_bytes_{0};
  std::mutex mutex_;         // guards what follows
  std::deque<Chunk> queue_;  // the front one is being written
  std::optional<grpc::Status> final_status_;
};

}  // namespace baton

#endif  // BATON_API_GRPC_STREAM_CALL_H_
