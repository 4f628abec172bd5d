#include "src/api/grpc_services.h"

#include <memory>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"

#include "baton/v1/inference.grpc.pb.h"
#include "src/api/grpc_calls.h"
#include "src/api/grpc_message.h"
#include "src/api/grpc_stream_call.h"
#include "src/api/schema.h"
#include "src/base/clock.h"
#include "src/base/limits.h"

namespace baton::api {

using grpc::ByteBuffer;
using router::ErrorCode;
using router::HttpStatusOf;
using router::ModelInfo;
using router::PlainError;
using router::RequestError;
using text::ChatPrompt;
using text::EncodeOptions;

namespace {

// The services take and give bytes, see grpc_message.h.
template <typename Base>
using WithChatCompletion = v1::ChatService::WithRawCallbackMethod_ChatCompletion<Base>;
template <typename Base>
using WithStreamChat = v1::ChatService::WithRawCallbackMethod_StreamChatCompletion<Base>;

class ChatServiceImpl final : public WithChatCompletion<WithStreamChat<v1::ChatService::Service>> {
 public:
  explicit ChatServiceImpl(const ApiParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* ChatCompletion(grpc::CallbackServerContext* context,
                                           const ByteBuffer* request,
                                           ByteBuffer* response) override {
    using Call = UnaryCall<v1::ChatCompletionRequest, v1::ChatCompletionResponse>;
    return Call::Start(parts_, Endpoint::kChat, context, request, response);
  }
  grpc::ServerWriteReactor<ByteBuffer>* StreamChatCompletion(grpc::CallbackServerContext* context,
                                                             const ByteBuffer* request) override {
    using Call = StreamCall<v1::ChatCompletionRequest, v1::ChatCompletionChunk>;
    return Call::Start(parts_, Endpoint::kChat, context, request);
  }

 private:
  const ApiParts parts_;
};

class EmbeddingServiceImpl final
    : public v1::EmbeddingService::WithRawCallbackMethod_CreateEmbedding<
          v1::EmbeddingService::Service> {
 public:
  explicit EmbeddingServiceImpl(const ApiParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* CreateEmbedding(grpc::CallbackServerContext* context,
                                            const ByteBuffer* request,
                                            ByteBuffer* response) override {
    using Call = UnaryCall<v1::EmbeddingRequest, v1::EmbeddingResponse>;
    return Call::Start(parts_, Endpoint::kCompletion, context, request, response);
  }

 private:
  const ApiParts parts_;
};

template <typename Base>
using WithComplete = v1::CompletionService::WithRawCallbackMethod_Complete<Base>;
template <typename Base>
using WithStreamComplete = v1::CompletionService::WithRawCallbackMethod_StreamComplete<Base>;

class CompletionServiceImpl final
    : public WithComplete<WithStreamComplete<v1::CompletionService::Service>> {
 public:
  explicit CompletionServiceImpl(const ApiParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* Complete(grpc::CallbackServerContext* context,
                                     const ByteBuffer* request, ByteBuffer* response) override {
    using Call = UnaryCall<v1::CompletionRequest, v1::CompletionResponse>;
    return Call::Start(parts_, Endpoint::kCompletion, context, request, response);
  }
  grpc::ServerWriteReactor<ByteBuffer>* StreamComplete(grpc::CallbackServerContext* context,
                                                       const ByteBuffer* request) override {
    using Call = StreamCall<v1::CompletionRequest, v1::CompletionChunk>;
    return Call::Start(parts_, Endpoint::kCompletion, context, request);
  }

 private:
  const ApiParts parts_;
};

// A call of ModelService: answered once, and gone when gRPC is done with it.
class ModelCall final : public grpc::ServerUnaryReactor {
 public:
  // Owns itself until OnDone, which follows End.
  ModelCall(const ApiParts& parts, grpc::CallbackServerContext* context)
      : end_limit_(context, parts.slow_client_us) {
    AddRequestId("", {}, context);
  }

  // `num_bytes`: of the answer's message.
  void End(const grpc::Status& status, size_t num_bytes) {
    end_limit_.Begin(num_bytes);
    Finish(status);
  }
  void OnDone() override {
    end_limit_.OnDone();
    delete this;
  }

  Tenant tenant;  // of its API key; null: none is asked for, or it has none

 private:
  ~ModelCall() override = default;

  CallEndLimit end_limit_;
};

template <typename Base>
using WithListModels = v1::ModelService::WithRawCallbackMethod_ListModels<Base>;
template <typename Base>
using WithTokenize = v1::ModelService::WithRawCallbackMethod_Tokenize<Base>;
template <typename Base>
using WithDetokenize = v1::ModelService::WithRawCallbackMethod_Detokenize<Base>;
template <typename Base>
using WithApplyTemplate = v1::ModelService::WithRawCallbackMethod_ApplyTemplate<Base>;

// Text functions: they need the model, not the router.
class ModelServiceImpl final
    : public WithListModels<
          WithTokenize<WithDetokenize<WithApplyTemplate<v1::ModelService::Service>>>> {
 public:
  explicit ModelServiceImpl(const ApiParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const ByteBuffer* request, ByteBuffer* response) override {
    auto* call = new ModelCall(parts_, context);
    v1::ListModelsRequest message;
    if (!Admit({.method = "ListModels", .is_counted = false}, *request, &message, context, call)) {
      return call;
    }
    v1::ListModelsResponse models;
    FillModels(parts_.submitter->models()->served(), &models);
    EndWell(models, call, response);
    return call;
  }
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const ByteBuffer* request, ByteBuffer* response) override {
    return Run<v1::TokenizeRequest, v1::TokenizeResponse>(
        context, *request, response,
        [](const v1::TokenizeRequest& asked, const ModelInfo& model, v1::TokenizeResponse* answer,
           RequestError* error) {
          std::vector<TokenId> tokens;
          const EncodeOptions options{.add_special = asked.add_special(),
                                      .parse_special = asked.parse_special()};
          if (!TokenizeText(model, {"content", asked.content()}, options, &tokens, error)) {
            return false;
          }
          answer->mutable_tokens()->Add(tokens.begin(), tokens.end());
          return true;
        });
  }
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const ByteBuffer* request, ByteBuffer* response) override {
    return Run<v1::DetokenizeRequest, v1::DetokenizeResponse>(
        context, *request, response,
        [](const v1::DetokenizeRequest& asked, const ModelInfo& model,
           v1::DetokenizeResponse* answer, RequestError* error) {
          const std::vector<int64_t> ids(asked.tokens().begin(), asked.tokens().end());
          return DetokenizeIds(model, ids, "tokens", answer->mutable_content(), error);
        });
  }
  grpc::ServerUnaryReactor* ApplyTemplate(grpc::CallbackServerContext* context,
                                          const ByteBuffer* request,
                                          ByteBuffer* response) override {
    return Run<v1::ApplyTemplateRequest, v1::ApplyTemplateResponse>(
        context, *request, response,
        [](const v1::ApplyTemplateRequest& asked, const ModelInfo& model,
           v1::ApplyTemplateResponse* answer, RequestError* error) {
          ApiParams params;
          ChatPrompt prompt;
          // Its fields are those of a chat that the template reads.
          if (!ReadProtoParams(asked, Endpoint::kChat, &params, error) ||
              !StoreMessages(std::move(params.messages), &params, error) ||
              !RenderMessages(model, params, SystemClock().WallUnixMs(), &prompt, error)) {
            return false;
          }
          answer->set_prompt(std::move(prompt.text));
          return true;
        });
  }

 private:
  void Refuse(const RequestError& error, grpc::CallbackServerContext* context,
              ModelCall* call) const {
    parts_.submitter->CountAnswered(HttpStatusOf(error.code));
    CountAnswered(call->tenant, HttpStatusOf(error.code));
    call->End(StatusOf(error, context), 0);
  }
  static void EndWell(const google::protobuf::Message& answer, ModelCall* call,
                      ByteBuffer* response) {
    WriteMessage(answer, response);
    CountAnswered(call->tenant, 200);
    call->End(grpc::Status::OK, response->Length());
  }
  // Looks at metadata and key, and reads `request` into `message`. False: the call has been
  // refused.
  bool Admit(const KeyedCall& keyed, const ByteBuffer& request, google::protobuf::Message* message,
             grpc::CallbackServerContext* context, ModelCall* call) const {
    RequestError error;
    if (!MetadataFits(*context)) {
      error = PlainError(ErrorCode::kHeaderTooLarge);
    } else if (CheckKey(parts_, keyed, context, &call->tenant, &error)) {
      if (request.Length() > limits::kMaxBodyBytes) {
        error = PlainError(ErrorCode::kBodyTooLarge);
      } else if (ReadMessage(request, message, &error)) {
        return true;
      }
    }
    Refuse(error, context, call);
    return false;
  }
  // Runs `function` on the API's workers with the model that the request names. `response` lives
  // until the reactor has finished.
  template <typename Request, typename Response, typename Function>
  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, const ByteBuffer& bytes,
                                ByteBuffer* response, Function function) {
    auto* call = new ModelCall(parts_, context);
    const auto request = std::make_shared<Request>();
    if (!Admit({.method = "ModelService"}, bytes, request.get(), context, call)) return call;
    auto job = [this, context, call, request, response, function](bool too_late) {
      RequestError error = ApiStops();
      const auto model =
          too_late ? nullptr : ResolveModel(*parts_.submitter, {request->model()}, &error);
      Response answer;
      const bool ok = model != nullptr && function(*request, *model, &answer, &error);
      if (!ok) return Refuse(error, context, call);
      EndWell(answer, call, response);
    };
    if (!parts_.workers->TryPost(bytes.Length(), std::move(job))) {
      Refuse(parts_.workers->Refusal(), context, call);
    }
    return call;
  }

  const ApiParts parts_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::Service>> MakeApiServices(const ApiParts& parts) {
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(std::make_unique<ChatServiceImpl>(parts));
  services.push_back(std::make_unique<CompletionServiceImpl>(parts));
  services.push_back(std::make_unique<EmbeddingServiceImpl>(parts));
  services.push_back(std::make_unique<ModelServiceImpl>(parts));
  return services;
}

}  // namespace baton::api
