#include "src/api/grpc_calls.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"

#include "src/api/embeddings_surface.h"
#include "src/api/error_details.h"
#include "src/api/idempotency_key.h"
#include "src/api/ignored_names.h"
#include "src/api/prompt_fan_in.h"
#include "src/api/read_json.h"
#include "src/base/clock.h"
#include "src/base/limits.h"
#include "src/base/random.h"

namespace baton::api {

using router::AnswerName;
using router::ErrorCode;
using router::ErrorNameOf;
using router::GrpcCodeOf;
using router::HttpStatusOf;
using router::RequestError;
using router::Submitter;

namespace {

// One encoding for one content, without kFieldsOfAttempt: maps in the order of their keys.
std::string CanonicalBytes(const google::protobuf::Message& message) {
  const std::unique_ptr<google::protobuf::Message> content(message.New());
  content->CopyFrom(message);
  for (const std::string_view name : kFieldsOfAttempt) {
    const auto* field = content->GetDescriptor()->FindFieldByName(std::string(name));
    if (field != nullptr) content->GetReflection()->ClearField(content.get(), field);
  }
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);  // its end completes `bytes`
    out.SetSerializationDeterministic(true);
    content->SerializeToCodedStream(&out);
  }
  return bytes;
}

// The client's name for its call; "" = none was given.
std::string GivenRequestId(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find("x-request-id");
  return it == metadata.end() ? "" : std::string(it->second.data(), it->second.size());
}

// Ids of the client's span; none when there is not exactly one that is well formed.
SpanIds GivenTrace(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  if (metadata.count("traceparent") != 1) return {};
  const grpc::string_ref text = metadata.find("traceparent")->second;
  return ParseTraceparent({text.data(), text.size()}).value_or(SpanIds{});
}

// Builds the request of a message; false: `error`.
bool BuildFromMessage(const google::protobuf::Message& message, const Arrival& arrival,
                      const Submitter& submitter, BuiltRequest* built, RequestError* error) {
  ApiParams params;
  if (const auto* embeds =
          google::protobuf::DynamicCastToGenerated<v1::EmbeddingRequest>(&message)) {
    if (!ReadEmbeddingRequest(*embeds, &params, error) ||
        !BuildRequest(params, arrival, submitter, built, error)) {
      *error = NamedAsInput(std::move(*error));
      return false;
    }
  } else if (!ReadProtoParams(message, arrival.endpoint, &params, error) ||
             !BuildRequest(params, arrival, submitter, built, error)) {
    return false;
  }
  if (arrival.idempotency_keys.empty()) return true;
  const std::string bytes = CanonicalBytes(message);
  return SetIdempotencyKey(kIdempotencyKeyMetadata,
                           {arrival.idempotency_keys.begin(), arrival.idempotency_keys.end()},
                           {arrival.stream ? "grpc-stream" : "grpc-unary", bytes}, built, error);
}

}  // namespace

grpc::Status StatusOf(const RequestError& error, grpc::CallbackServerContext* context) {
  context->AddTrailingMetadata("baton-error-code", std::string(ErrorNameOf(error.code)));
  if (!error.param.empty()) context->AddTrailingMetadata("baton-error-param", error.param);
  if (error.code == ErrorCode::kContextLengthExceeded) {
    context->AddTrailingMetadata("baton-error-n-prompt-tokens",
                                 std::to_string(error.num_prompt_tokens));
    context->AddTrailingMetadata("baton-error-n-ctx", std::to_string(error.max_context));
  }
  if (error.retry_after_s > 0) {
    context->AddTrailingMetadata("retry-after", std::to_string(error.retry_after_s));
  }
  const auto code = static_cast<grpc::StatusCode>(GrpcCodeOf(error.code));
  return {code, error.Message(), ErrorDetails(error)};
}

Arrival ArrivalOf(const grpc::CallbackServerContext& context, Endpoint endpoint) {
  Arrival arrival;
  arrival.endpoint = endpoint;
  arrival.now_us = SystemClock().NowUs();
  arrival.wall_unix_ms = SystemClock().WallUnixMs();
  arrival.request_id = GivenRequestId(context);
  arrival.trace = GivenTrace(context);
  const std::string key_name(kIdempotencyKeyMetadata);
  const auto [first_key, end_key] = context.client_metadata().equal_range(key_name);
  for (auto it = first_key; it != end_key; ++it) {
    arrival.idempotency_keys.emplace_back(it->second.data(), it->second.size());
  }
  // Not context.deadline(): its nanoseconds overflow for a deadline in some centuries. One so far
  // away, or infinite, is none.
  constexpr int64_t kLongestS = 1'000'000'000;
  const gpr_timespec left =
      gpr_time_sub(gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_REALTIME),
                   gpr_now(GPR_CLOCK_REALTIME));
  if (left.tv_sec < kLongestS) {
    // A call whose deadline has passed still needs a positive one, to end by it.
    arrival.timeout_us = std::max<int64_t>(1, left.tv_sec * 1'000'000 + left.tv_nsec / 1000);
  }
  return arrival;
}

bool CheckKey(const ApiParts& parts, const KeyedCall& call, grpc::CallbackServerContext* context,
              Tenant* tenant, RequestError* error) {
  if (parts.keys == nullptr) return true;
  *tenant = TenantOfGrpc(parts.keys, *context, call.method, error);
  if (*tenant == nullptr) return false;
  const Clock& clock = parts.keys->clock();
  const bool is_taken = !call.is_counted || TakeRequest(*tenant, clock, error);
  AddRateFields(*tenant, clock, context);
  return is_taken;
}

bool MetadataFits(const grpc::CallbackServerContext& context) {
  size_t num_bytes = 0;
  for (const auto& [name, value] : context.client_metadata()) {
    num_bytes += name.size() + value.size();
  }
  return num_bytes <= kMaxMetadataBytes;
}

void AddRequestId(std::string_view known, std::vector<std::string> ignored,
                  grpc::CallbackServerContext* context) {
  const std::string given = GivenRequestId(*context);
  std::string name = known.empty() ? given : std::string(known);
  if (!IsUsableRequestId(name)) name = RandomRequestUid().ToHex();
  context->AddInitialMetadata("x-request-id", name);
  if (!given.empty() && !IsUsableRequestId(given)) {
    ignored.resize(std::min(ignored.size(), kMaxIgnoredNames - 1));
    ignored.emplace(ignored.begin(), "x-request-id");
  }
  if (ignored.empty()) return;
  context->AddInitialMetadata("x-baton-ignored-fields", IgnoredNamesText(ignored));
}

void GenerateCall::Begin(std::shared_ptr<GenerateCall> self, const grpc::ByteBuffer& bytes,
                         std::shared_ptr<google::protobuf::Message> message, Endpoint endpoint,
                         bool stream) {
  self_ = self;
  if (!MetadataFits(*context_)) return Refuse(RequestError{ErrorCode::kHeaderTooLarge}, "");
  RequestError error;
  const std::string_view method = endpoint == Endpoint::kChat ? "ChatService" : "CompletionService";
  if (!CheckKey(parts_, {.method = method}, context_, &tenant_, &error)) return Refuse(error, "");
  // Here: the port takes more, for the workers, and what waits is held in memory.
  const size_t num_bytes = bytes.Length();
  if (num_bytes > limits::kMaxBodyBytes) return Refuse(RequestError{ErrorCode::kBodyTooLarge}, "");
  if (!ReadMessage(bytes, message.get(), &error)) return Refuse(error, "");
  Arrival arrival = ArrivalOf(*context_, endpoint);
  if (tenant_ != nullptr) arrival.tenant = tenant_->name();
  arrival.stream = stream;
  arrival.tells_progress = true;
  arrival.splits_reasoning = parts_.splits_reasoning;
  arrival.tool_style = parts_.tool_style;
  arrival.tool_metrics = parts_.tool_metrics;
  auto job = [self = std::move(self), message = std::move(message), arrival](bool too_late) {
    self->Run(*message, arrival, too_late);
  };
  const bool posted = parts_.workers->TryPost(num_bytes, std::move(job));
  if (!posted) Refuse(parts_.workers->Refusal(), "");
}

void GenerateCall::Done() {
  end_limit_.OnDone();
  self_.reset();  // may destroy this
}

void GenerateCall::OnAccepted(const AnswerName& name) {
  plan_.Rename(name);
  name_.Tell(plan_.request_id);
}

void GenerateCall::OnFailed(const RequestError& error) {
  name_.Tell(plan_.request_id);
  End(StatusOf(plan_.embeds ? NamedAsInput(error) : error, context_));
}

void GenerateCall::Run(const google::protobuf::Message& message, const Arrival& arrival,
                       bool too_late) {
  if (too_late) return Refuse(ApiStops(), "");
  BuiltRequest built;
  RequestError error;
  if (!BuildFromMessage(message, arrival, *parts_.submitter, &built, &error) ||
      !ReserveAnswer(built, AnswerForm::kProto, parts_.answers, &room_, &error)) {
    return Refuse(error, built.plan.request_id);
  }
  const Clock& clock = parts_.keys == nullptr ? SystemClock() : parts_.keys->clock();
  TenantPlace place;
  if (!TenantPlace::Take(tenant_, clock, built.num_prompt_tokens(), &place, &error)) {
    return Refuse(error, built.plan.request_id);
  }
  SetKv(tenant_, &built);
  name_.Ignore(std::move(built.unread));
  if (!built.warnings.empty()) context_->AddInitialMetadata("x-baton-warnings", built.warnings);
  plan_ = std::move(built.plan);
  if (built.request.key == nullptr) name_.Tell(plan_.request_id);
  BeginAnswer(built.num_computed());
  const std::shared_ptr<GenerateCall> self = self_;
  auto sink = Metered(std::move(place), built.request.has_tokens(), self);
  SubmitAnswer(parts_.submitter, std::move(built.request), std::move(built.others), std::move(sink),
               cancellation_);
}

void GenerateCall::Refuse(const RequestError& error, std::string_view request_id) {
  name_.Tell(request_id);
  parts_.submitter->CountAnswered(HttpStatusOf(error.code));
  CountAnswered(tenant_, HttpStatusOf(error.code));
  End(StatusOf(error, context_));
}

}  // namespace baton::api
