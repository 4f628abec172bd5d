// gRPC calls that generate: one reactor per call, which is also the sink of its request. Streaming
// ones are in grpc_stream_call.h.
//
// Threads: gRPC's threads start, cancel and acknowledge writes; the API's workers build the
// request; the router's thread delivers tokens. One mutex per call guards what they share.
//
// Life: a call holds itself until gRPC is done with it. It is finished exactly once, by the sink's
// OnFinished or OnFailed (or by a refusal before Submit); a client that goes away cancels the
// request, and the router then ends it through OnFailed. From its end on it has a limit.
#ifndef BATON_API_GRPC_CALLS_H_
#define BATON_API_GRPC_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "google/protobuf/message.h"
#include "grpcpp/grpcpp.h"

#include "src/api/answer_budget.h"
#include "src/api/answer_collector.h"
#include "src/api/answer_sink.h"
#include "src/api/api_workers.h"
#include "src/api/build_request.h"
#include "src/api/call_cancellation.h"
#include "src/api/call_end_limit.h"
#include "src/api/embeddings_proto.h"
#include "src/api/grpc_call_state.h"
#include "src/api/grpc_message.h"
#include "src/api/key_check.h"
#include "src/api/openai_proto.h"
#include "src/api/read_proto.h"
#include "src/router/submit.h"

namespace baton::api {

// The status of an error; details go into the trailing metadata baton-error-code,
// baton-error-param, baton-error-n-prompt-tokens and baton-error-n-ctx (a context that is too
// short), and retry-after; and as google.rpc's messages into grpc-status-details-bin.
grpc::Status StatusOf(const router::RequestError& error, grpc::CallbackServerContext* context);
// The tenant of a call's API key, whose rate-limit fields are then in its initial metadata; null
// where the API asks for no key. A counted call is a request of its tenant. False: `error`.
struct KeyedCall {
  std::string_view method;
  bool is_counted = true;
};
bool CheckKey(const ApiParts& parts, const KeyedCall& call, grpc::CallbackServerContext* context,
              Tenant* tenant, router::RequestError* error);
// Where and when the call arrived, its name and its own deadline.
Arrival ArrivalOf(const grpc::CallbackServerContext& context, Endpoint endpoint);

// The part that unary and streaming calls share: the way from the message to the submitted request,
// and how they are refused, cancelled and let go.
class GenerateCall : public AnswerSink {
 public:
  void OnAccepted(const router::AnswerName& name) override;
  void OnFailed(const router::RequestError& error) override;

 protected:
  GenerateCall(const ApiParts& parts, grpc::CallbackServerContext* context)
      : parts_(parts),
        context_(context),
        name_(context),
        end_limit_(context, parts.slow_client_us) {}

  // Once, first. `self` is this call, which it keeps until Done; `bytes` are read into `message`.
  void Begin(std::shared_ptr<GenerateCall> self, const grpc::ByteBuffer& bytes,
             std::shared_ptr<google::protobuf::Message> message, Endpoint endpoint, bool stream);
  // The reactor's OnCancel and OnDone call these. An answer without room is cancelled too.
  void Cancelled() { cancellation_->OnCancel(parts_.submitter); }
  // This call, from Begin to Done.
  std::shared_ptr<GenerateCall> self() const { return self_; }
  void Done();

  // The requests of plan_ are about to be submitted; they have so many choices together.
  virtual void BeginAnswer(uint32_t num_choices) = 0;
  // The call ends with `status`, after all its messages.
  virtual void End(grpc::Status status) = 0;

  const ApiParts parts_;
  grpc::CallbackServerContext* const context_;
  AnswerPlan plan_;
  CallName name_;
  CallEndLimit end_limit_;
  AnswerRoom room_;  // of a whole answer, until BeginAnswer; of a stream's prompts

 private:
  void Run(const google::protobuf::Message& message, const Arrival& arrival, bool too_late);
  void Refuse(const router::RequestError& error, std::string_view request_id);

  std::shared_ptr<GenerateCall> self_;  // from Begin to Done
  const std::shared_ptr<CallCancellation> cancellation_ = std::make_shared<CallCancellation>();
  Tenant tenant_;  // of the call's API key; null: none is asked for
};

// One unary call: collects the tokens and answers once.
template <typename Request, typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor, public GenerateCall {
 public:
  // Starts the call and returns its reactor, which owns itself.
  static grpc::ServerUnaryReactor* Start(const ApiParts& parts, Endpoint endpoint,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) {
    auto call = std::shared_ptr<UnaryCall>(new UnaryCall(parts, context, response));
    call->Begin(call, *request, std::make_shared<Request>(), endpoint, /*stream=*/false);
    return call.get();
  }

  void OnCancel() override { Cancelled(); }
  void OnDone() override { Done(); }

  void OnToken(const router::TokenOutput& token) override {
    if (!answer_->Add(token)) Cancelled();
  }
  void OnLoggedPrompt(uint32_t prompt,
                      std::shared_ptr<const router::PromptLogprobs> logprobs) override {
    answer_->SetPromptLog(prompt, std::move(logprobs));
  }
  void OnEmbeddedPrompt(uint32_t prompt, std::vector<float> embedding) override {
    answer_->SetEmbedding(prompt, std::move(embedding));
  }
  void OnFinished(const router::GenerateResult& result) override {
    if (answer_->failure()) return GenerateCall::OnFailed(*answer_->failure());
    parts_.workers->Write(answer_->num_bytes(), [this, self = self(), result] {
      Response response;
      FillResponse(plan_, *answer_, result, &response);
      WriteMessage(response, response_);
      End(grpc::Status::OK);
    });
  }
  void OnFailed(const router::RequestError& error) override {
    GenerateCall::OnFailed(answer_->FailureOr(error));
  }
  size_t buffered_bytes() const override { return 0; }
  const router::RequestError* own_failure() const override { return answer_->failure(); }

 private:
  UnaryCall(const ApiParts& parts, grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : GenerateCall(parts, context), response_(response) {}

  void BeginAnswer(uint32_t num_choices) override {
    answer_.emplace(plan_, num_choices);
    answer_->Keep(std::move(room_));
  }
  void End(grpc::Status status) override {
    end_limit_.Begin(status.ok() ? response_->Length() : 0);
    this->Finish(std::move(status));
  }

  grpc::ByteBuffer* const response_;
  std::optional<AnswerCollector> answer_;
};

}  // namespace baton::api

#endif  // BATON_API_GRPC_CALLS_H_
