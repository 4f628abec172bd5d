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
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "grpcpp/grpcpp.h"

#include "src/api/answer_collector.h"
#include "src/api/api_workers.h"
#include "src/api/build_request.h"
#include "src/api/call_end_limit.h"
#include "src/api/echo_answer.h"
#include "src/api/grpc_call_state.h"
#include "src/api/openai_proto.h"
#include "src/api/read_proto.h"
#include "src/router/submit.h"

namespace baton {

// The status of an error; details go into the trailing metadata baton-error-code,
// baton-error-param, baton-error-n-prompt-tokens and baton-error-n-ctx (a context that is too
// short), and retry-after.
grpc::Status StatusOf(const RequestError& error, grpc::CallbackServerContext* context);
// Where and when the call arrived, its name and its own deadline.
Arrival ArrivalOf(const grpc::CallbackServerContext& context, Endpoint endpoint);
// Builds the request of a message; false: `error`. Refuses messages above kApiMaxMessageBytes.
bool BuildFromMessage(const google::protobuf::Message& message, const Arrival& arrival,
                      const Submitter& submitter, BuiltRequest* built, RequestError* error);

// One unary call: collects the tokens and answers once.
template <typename Request, typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor, public ResponseSink {
 public:
  // Starts the call and returns its reactor, which owns itself.
  static grpc::ServerUnaryReactor* Start(const ApiParts& parts, Endpoint endpoint,
                                         grpc::CallbackServerContext* context,
                                         const Request* request, Response* response) {
    auto call = std::shared_ptr<UnaryCall>(new UnaryCall(parts, context, response));
    call->self_ = call;
    Arrival arrival = ArrivalOf(*context, endpoint);
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

  void OnAccepted(const AnswerName& name) override {
    plan_.Rename(name);
    name_.Tell(plan_.request_id);
  }
  void OnToken(const TokenOutput& token) override { answer_->Add(token); }
  void OnFinished(const GenerateResult& result) override {
    FillResponse(plan_, *answer_, result, response_);
    End(grpc::Status::OK, response_->ByteSizeLong());
  }
  void OnFailed(const RequestError& error) override {
    name_.Tell(plan_.request_id);
    End(StatusOf(error, context_), 0);
  }
  size_t buffered_bytes() const override { return 0; }

 private:
  UnaryCall(const ApiParts& parts, grpc::CallbackServerContext* context, Response* response)
      : parts_(parts),
        context_(context),
        response_(response),
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
    answer_.emplace(plan_, built.request.num_choices);
    auto self = self_;
    const auto uid = SubmitOrEcho(parts_.submitter, std::move(built.request), self);
    if (uid.has_value()) cancellation_.OnSubmitted(parts_.submitter, *uid);
  }

  void Refuse(const RequestError& error, std::string_view request_id) {
    name_.Tell(request_id);
    parts_.submitter->CountAnswered(HttpStatusOf(error.code));
    End(StatusOf(error, context_), 0);
  }

  void End(const grpc::Status& status, size_t num_bytes) {
    end_limit_.Begin(num_bytes);
    this->Finish(status);
  }

  const ApiParts parts_;
  grpc::CallbackServerContext* const context_;
  Response* const response_;
  std::shared_ptr<UnaryCall> self_;  // from Start to OnDone
  AnswerPlan plan_;
  std::optional<AnswerCollector> answer_;
  CallName name_;
  CallCancellation cancellation_;
  CallEndLimit end_limit_;
};

}  // namespace baton

#endif  // BATON_API_GRPC_CALLS_H_
