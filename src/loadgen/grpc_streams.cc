#include "src/loadgen/grpc_streams.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "grpcpp/grpcpp.h"

#include "baton/v1/inference.grpc.pb.h"
#include "src/base/clock.h"
#include "src/base/host_port.h"

namespace baton::loadgen {
namespace {

// gRPC rounds its deadlines up to milliseconds, twice: the last of a wait is made of short sleeps,
// and a deadline that has to be over lies well in the past.
constexpr int64_t kExactUs = 3000;
constexpr int64_t kNapUs = 50;
constexpr int64_t kPastUs = -1'000'000;

// Takes the facts that both kinds of answers have in common.
template <typename Chunk>
void TakeFacts(const Chunk& chunk, AnswerFacts& facts) {
  if (chunk.has_usage()) {
    facts.prompt_tokens = chunk.usage().prompt_tokens();
    facts.completion_tokens = chunk.usage().completion_tokens();
  }
  if (!chunk.has_timings()) return;
  const v1::Timings& timings = chunk.timings();
  facts.cached_tokens = timings.cached_tokens();
  facts.stages = StageTimes{timings.queue_ms(), timings.prefill_ms(), timings.kv_wait_ms(),
                            timings.first_step_ms(), timings.decode_ms()};
}

std::string TextOf(const v1::ChatCompletionChunk& chunk) {
  if (chunk.choices().empty()) return "";
  const v1::ChatDelta& delta = chunk.choices(0).delta();
  return delta.reasoning_content() + delta.content();
}
std::string TextOf(const v1::CompletionChunk& chunk) {
  return chunk.choices().empty() ? "" : chunk.choices(0).text();
}

// One call in flight; its address is the tag of its one outstanding operation.
class Call {
 public:
  Call(uint64_t id, grpc::Channel& channel) : id_(id), channel_(channel) {}
  virtual ~Call() = default;
  // An operation ended. True while another one is outstanding.
  virtual bool Proceed(bool ok, StreamSink& sink) = 0;
  void Cancel() {
    cancelled_ = true;
    client_.TryCancel();
  }
  uint64_t id() const { return id_; }

 protected:
  StreamEnd MakeEnd(AnswerFacts facts) const {
    StreamEnd end;
    end.at_us = SystemClock().NowUs();
    end.facts = std::move(facts);
    if (status_.ok()) return end;
    // UNAVAILABLE is also what a server that is there answers when it is full.
    const bool gone = status_.error_code() == grpc::StatusCode::UNAVAILABLE &&
                      channel_.GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY;
    if (any_chunk_) {
      end.outcome = gone ? RequestOutcome::kBrokeOff : RequestOutcome::kServerError;
    } else {
      end.outcome = gone ? RequestOutcome::kConnectFailed : RequestOutcome::kHttpError;
    }
    end.error = fmt::format("gRPC status {}: {}", static_cast<int>(status_.error_code()),
                            status_.error_message());
    return end;
  }

  void* tag() { return static_cast<Call*>(this); }

  const uint64_t id_;
  grpc::Channel& channel_;
  bool cancelled_ = false;
  bool any_chunk_ = false;
  grpc::ClientContext client_;
  grpc::Status status_;
};

// A call whose stream has chunks of this type.
template <typename Chunk>
class StreamCall final : public Call {
 public:
  using Reader = std::unique_ptr<grpc::ClientAsyncReader<Chunk>>;

  using Call::Call;
  // `start` makes the reader with this call's ClientContext; the first operation is StartCall.
  template <typename StartFn>
  void Begin(const StartFn& start) {
    reader_ = start(&client_);
    reader_->StartCall(tag());
  }

  bool Proceed(bool ok, StreamSink& sink) override {
    if (finishing_) {
      if (!cancelled_) sink.OnEnd(id_, MakeEnd(std::move(facts_)));
      return false;
    }
    if (ok && reading_) Take(sink);
    if (ok) {
      reading_ = true;
      reader_->Read(&chunk_, tag());
    } else {
      finishing_ = true;
      reader_->Finish(&status_, tag());
    }
    return true;
  }

 private:
  void Take(StreamSink& sink) {
    any_chunk_ = true;
    TakeFacts(chunk_, facts_);
    // One chunk is one token, also while its text is held back; only the last may carry none.
    const std::string text = TextOf(chunk_);
    if (!cancelled_ && chunk_.token_index() == next_token_) {
      ++next_token_;
      sink.OnText(id_, SystemClock().NowUs(), text);
    }
    chunk_.Clear();
  }

  Reader reader_;
  Chunk chunk_;
  AnswerFacts facts_;
  uint32_t next_token_ = 0;
  bool reading_ = false;
  bool finishing_ = false;
};

// The backend.
class GrpcBackend final : public StreamBackend {
 public:
  GrpcBackend(std::shared_ptr<grpc::Channel> channel, const HttpTarget& target)
      : model_(target.model),
        api_key_(target.api_key),
        channel_(std::move(channel)),
        chat_(v1::ChatService::NewStub(channel_)),
        completion_(v1::CompletionService::NewStub(channel_)) {}

  ~GrpcBackend() override {
    for (auto& [id, call] : calls_) call->Cancel();
    void* tag = nullptr;
    bool ok = false;
    // No operation may be added to a queue that is shut down, so the calls end first.
    while (!calls_.empty() && queue_.Next(&tag, &ok)) {
      Call* call = static_cast<Call*>(tag);
      if (!call->Proceed(ok, quiet_)) Forget(call);
    }
    queue_.Shutdown();
    while (queue_.Next(&tag, &ok)) {
    }
  }

  std::string Encode(std::string_view name, const StreamRequest& request) const override {
    // The first byte says which of the two messages follows.
    return request.api == StreamApi::kChat ? "m" + ChatBytes(name, request)
                                           : "p" + CompletionBytes(name, request);
  }

  void Start(uint64_t id, std::string encoded, StreamSink& sink) override {
    const std::string_view bytes = std::string_view(encoded).substr(1);
    if (encoded[0] == 'm') {
      v1::ChatCompletionRequest request;
      (void)request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
      auto call = std::make_unique<StreamCall<v1::ChatCompletionChunk>>(id, *channel_);
      call->Begin([&](grpc::ClientContext* client) {
        AddKey(client);
        return chat_->PrepareAsyncStreamChatCompletion(client, request, &queue_);
      });
      calls_[id] = std::move(call);
    } else {
      v1::CompletionRequest request;
      (void)request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
      auto call = std::make_unique<StreamCall<v1::CompletionChunk>>(id, *channel_);
      call->Begin([&](grpc::ClientContext* client) {
        AddKey(client);
        return completion_->PrepareAsyncStreamComplete(client, request, &queue_);
      });
      calls_[id] = std::move(call);
    }
    sink.OnSent(id, SystemClock().NowUs());
  }

  void Cancel(uint64_t id) override {
    if (const auto found = calls_.find(id); found != calls_.end()) found->second->Cancel();
  }

  void Poll(int64_t until_us, StreamSink& sink) override {
    while (true) {
      const int64_t left_us = until_us - SystemClock().NowUs();
      const int64_t wait_us = left_us > kExactUs ? left_us - kExactUs : kPastUs;
      void* tag = nullptr;
      bool ok = false;
      const auto deadline = std::chrono::system_clock::now() + std::chrono::microseconds(wait_us);
      const auto got = queue_.AsyncNext(&tag, &ok, deadline);
      if (got == grpc::CompletionQueue::SHUTDOWN) return;
      if (got == grpc::CompletionQueue::GOT_EVENT) {
        Call* call = static_cast<Call*>(tag);
        if (!call->Proceed(ok, sink)) Forget(call);
        // The caller may have something to start after each event.
        return;
      }
      if (left_us <= 0) return;
      if (wait_us == kPastUs) {
        std::this_thread::sleep_for(std::chrono::microseconds(std::min(left_us, kNapUs)));
      }
    }
  }

 private:
  void AddKey(grpc::ClientContext* client) const {
    if (!api_key_.empty()) client->AddMetadata("authorization", "Bearer " + api_key_);
  }
  // Hears what nobody wants to know any more.
  class Quiet final : public StreamSink {
    void OnSent(uint64_t, int64_t) override {}
    void OnText(uint64_t, int64_t, std::string_view) override {}
    void OnLag(int64_t) override {}
    void OnEnd(uint64_t, StreamEnd) override {}
  };

  template <typename Request>
  void FillCommon(std::string_view name, const StreamRequest& from, Request& to) const {
    to.set_model(model_);
    to.set_max_tokens(static_cast<int32_t>(from.max_tokens));
    to.set_temperature(0.0f);
    if (from.ignore_eos) to.set_ignore_eos(true);
    to.set_request_id(std::string(name));
  }

  std::string ChatBytes(std::string_view name, const StreamRequest& request) const {
    v1::ChatCompletionRequest message;
    FillCommon(name, request, message);
    for (const TurnText& turn : request.messages) {
      v1::ChatMessage* added = message.add_messages();
      added->set_role(turn.role);
      added->set_content(turn.content);
    }
    return message.SerializeAsString();
  }

  std::string CompletionBytes(std::string_view name, const StreamRequest& request) const {
    v1::CompletionRequest message;
    FillCommon(name, request, message);
    message.set_prompt(request.prompt);
    for (const uint32_t id : request.token_ids) {
      message.add_prompt_token_ids(static_cast<int32_t>(id));
    }
    return message.SerializeAsString();
  }

  void Forget(Call* call) { calls_.erase(call->id()); }

  const std::string model_;
  const std::string api_key_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::ChatService::Stub> chat_;
  std::unique_ptr<v1::CompletionService::Stub> completion_;
  grpc::CompletionQueue queue_;
  std::unordered_map<uint64_t, std::unique_ptr<Call>> calls_;
  Quiet quiet_;
};

}  // namespace

StatusOr<std::unique_ptr<StreamBackend>> GrpcStreams::Create(const HttpTarget& target) {
  const std::string address = fmt::format("{}:{}", BracketedHost(target.host), target.port);
  auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(5);
  if (!channel->WaitForConnected(deadline)) {
    return Unavailable("no gRPC server answers at {}", address);
  }
  // Sleeps of this thread end within a microsecond instead of 50.
  (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  return std::unique_ptr<StreamBackend>(std::make_unique<GrpcBackend>(std::move(channel), target));
}

}  // namespace baton::loadgen
