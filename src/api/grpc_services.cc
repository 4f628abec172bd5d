#include "src/api/grpc_services.h"

#include <utility>

#include "grpcpp/grpcpp.h"

#include "baton/v1/inference.grpc.pb.h"
#include "src/api/grpc_calls.h"
#include "src/api/grpc_stream_call.h"
#include "src/api/schema.h"
#include "src/base/clock.h"
#include "src/base/limits.h"

namespace baton::api {

using router::ErrorCode;
using router::HttpStatusOf;
using router::ModelInfo;
using router::PlainError;
using router::RequestError;
using text::ChatPrompt;
using text::EncodeOptions;

namespace {

class ChatServiceImpl final : public v1::ChatService::CallbackService {
 public:
  explicit ChatServiceImpl(const ApiParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* ChatCompletion(grpc::CallbackServerContext* context,
                                           const v1::ChatCompletionRequest* request,
                                           v1::ChatCompletionResponse* response) override {
    using Call = UnaryCall<v1::ChatCompletionRequest, v1::ChatCompletionResponse>;
    return Call::Start(parts_, Endpoint::kChat, context, request, response);
  }
  grpc::ServerWriteReactor<v1::ChatCompletionChunk>* StreamChatCompletion(
      grpc::CallbackServerContext* context, const v1::ChatCompletionRequest* request) override {
    using Call = StreamCall<v1::ChatCompletionRequest, v1::ChatCompletionChunk>;
    return Call::Start(parts_, Endpoint::kChat, context, request);
  }

 private:
  const ApiParts parts_;
};

class EmbeddingServiceImpl final : public v1::EmbeddingService::CallbackService {
 public:
  explicit EmbeddingServiceImpl(const ApiParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* CreateEmbedding(grpc::CallbackServerContext* context,
                                            const v1::EmbeddingRequest* request,
                                            v1::EmbeddingResponse* response) override {
    using Call = UnaryCall<v1::EmbeddingRequest, v1::EmbeddingResponse>;
    return Call::Start(parts_, Endpoint::kCompletion, context, request, response);
  }

 private:
  const ApiParts parts_;
};

class CompletionServiceImpl final : public v1::CompletionService::CallbackService {
 public:
  explicit CompletionServiceImpl(const ApiParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* Complete(grpc::CallbackServerContext* context,
                                     const v1::CompletionRequest* request,
                                     v1::CompletionResponse* response) override {
    using Call = UnaryCall<v1::CompletionRequest, v1::CompletionResponse>;
    return Call::Start(parts_, Endpoint::kCompletion, context, request, response);
  }
  grpc::ServerWriteReactor<v1::CompletionChunk>* StreamComplete(
      grpc::CallbackServerContext* context, const v1::CompletionRequest* request) override {
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

// Text functions: they need the model, not the router.
class ModelServiceImpl final : public v1::ModelService::CallbackService {
 public:
  explicit ModelServiceImpl(const ApiParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* /*request*/,
                                       v1::ListModelsResponse* response) override {
    auto* call = new ModelCall(parts_, context);
    if (!MetadataFits(*context)) {
      parts_.submitter->CountAnswered(HttpStatusOf(ErrorCode::kHeaderTooLarge));
      call->End(StatusOf(PlainError(ErrorCode::kHeaderTooLarge), context), 0);
      return call;
    }
    RequestError error;
    if (!CheckKey(parts_, {.method = "ListModels", .is_counted = false}, context, &call->tenant,
                  &error)) {
      parts_.submitter->CountAnswered(HttpStatusOf(error.code));
      call->End(StatusOf(error, context), 0);
      return call;
    }
    CountAnswered(call->tenant, 200);
    FillModels(parts_.submitter->models()->served(), response);
    call->End(grpc::Status::OK, response->ByteSizeLong());
    return call;
  }
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    return Run(
        context, *request, response,
        [request, response](const ModelInfo& model, RequestError* error) {
          std::vector<TokenId> tokens;
          const EncodeOptions options{.add_special = request->add_special(),
                                      .parse_special = request->parse_special()};
          if (!TokenizeText(model, {"content", request->content()}, options, &tokens, error)) {
            return false;
          }
          response->mutable_tokens()->Add(tokens.begin(), tokens.end());
          return true;
        });
  }
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override {
    return Run(context, *request, response,
               [request, response](const ModelInfo& model, RequestError* error) {
                 const std::vector<int64_t> ids(request->tokens().begin(), request->tokens().end());
                 return DetokenizeIds(model, ids, "tokens", response->mutable_content(), error);
               });
  }
  grpc::ServerUnaryReactor* ApplyTemplate(grpc::CallbackServerContext* context,
                                          const v1::ApplyTemplateRequest* request,
                                          v1::ApplyTemplateResponse* response) override {
    return Run(context, *request, response,
               [request, response](const ModelInfo& model, RequestError* error) {
                 ApiParams params;
                 ChatPrompt prompt;
                 // Its fields are those of a chat that the template reads.
                 if (!ReadProtoParams(*request, Endpoint::kChat, &params, error) ||
                     !StoreMessages(std::move(params.messages), &params, error) ||
                     !RenderMessages(model, params, SystemClock().WallUnixMs(), &prompt, error)) {
                   return false;
                 }
                 response->set_prompt(std::move(prompt.text));
                 return true;
               });
  }

 private:
  // Runs `function` on the API's workers with the model that the request names. Request and
  // response live until the reactor has finished.
  template <typename Request, typename Response, typename Function>
  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, const Request& request,
                                const Response* response, Function function) {
    auto* call = new ModelCall(parts_, context);
    const auto refuse = [this, context, call](const RequestError& error) {
      parts_.submitter->CountAnswered(HttpStatusOf(error.code));
      CountAnswered(call->tenant, HttpStatusOf(error.code));
      call->End(StatusOf(error, context), 0);
    };
    if (!MetadataFits(*context)) {
      refuse(PlainError(ErrorCode::kHeaderTooLarge));
      return call;
    }
    RequestError key_error;
    if (!CheckKey(parts_, {.method = "ModelService"}, context, &call->tenant, &key_error)) {
      refuse(key_error);
      return call;
    }
    const size_t num_bytes = request.ByteSizeLong();
    if (num_bytes > limits::kMaxBodyBytes) {
      refuse(PlainError(ErrorCode::kBodyTooLarge));
      return call;
    }
    auto job = [this, refuse, call, response, model_id = request.model(), function](bool too_late) {
      RequestError error = ApiStops();
      const auto model = too_late ? nullptr : ResolveModel(*parts_.submitter, {model_id}, &error);
      const bool ok = model != nullptr && function(*model, &error);
      if (!ok) return refuse(error);
      CountAnswered(call->tenant, 200);
      call->End(grpc::Status::OK, response->ByteSizeLong());
    };
    if (!parts_.workers->TryPost(num_bytes, std::move(job))) refuse(parts_.workers->Refusal());
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
