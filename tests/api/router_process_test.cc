// The whole router process over real sockets, between toy workers and real clients.
#include "src/api/router_process.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "tests/api/router_process_rig.h"

namespace baton::api {

using http::RawClient;
using limits::kMaxPrefixChanges;
using router::kTestEos;
using router::ServedNames;
using router::ServeMode;

namespace {

TEST_F(RouterProcessTest, UnaryChat) {
  JoinPair();
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "my-request");
  v1::ChatCompletionResponse response;
  const grpc::Status status = chat_->ChatCompletion(&context, Chat(5), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.object(), "chat.completion");
  EXPECT_EQ(response.model(), "toy");
  EXPECT_EQ(response.request_id(), "my-request");
  ASSERT_EQ(response.choices_size(), 1);
  EXPECT_EQ(response.choices(0).message().content(), "abcde");
  EXPECT_EQ(response.choices(0).message().role(), "assistant");
  EXPECT_EQ(response.choices(0).finish_reason(), "length");
  EXPECT_EQ(response.usage().prompt_tokens(), 6u);
  EXPECT_EQ(response.usage().completion_tokens(), 5u);
  EXPECT_EQ(response.usage().total_tokens(), 11u);
  EXPECT_EQ(response.timings().path(), "disagg");
  EXPECT_EQ(response.timings().prefill_worker(), "prefill-0");
  EXPECT_EQ(response.timings().kv_bytes(), 1000u);
  EXPECT_EQ(response.timings().transport(), "shm");
  EXPECT_TRUE(response.timings().exact());
}

// The decode worker computes the prompt and tells what its cache held of it.
TEST_F(RouterProcessTest, CachedTokensReachUsageAndTimings) {
  process_->Stop();
  RouterConfig config = TestConfig();
  config.core.mode = ServeMode::kAggregated;
  StartProcess(config);
  decode_ = std::make_unique<ToyWorker>("decode-0", v1::WORKER_ROLE_DECODE);
  decode_->Register(process_->grpc_address());
  ASSERT_TRUE(WaitReady(true));
  grpc::ClientContext context;
  v1::ChatCompletionResponse response;
  const grpc::Status status = chat_->ChatCompletion(&context, Chat(5), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.usage().prompt_tokens(), 6u);
  EXPECT_EQ(response.usage().prompt_tokens_details().cached_tokens(), 3u);
  EXPECT_EQ(response.timings().cached_tokens(), 3u);
  EXPECT_EQ(response.timings().prefix_source(), "pool");
}

TEST_F(RouterProcessTest, LostPrefixEventsAreAskedForAndMalformedOnesEndTheLease) {
  JoinPair();
  const auto wait_for = [](const std::function<bool()>& done) {
    for (int i = 0; i < 200 && !done(); ++i) std::this_thread::sleep_for(milliseconds(25));
    return done();
  };
  ASSERT_TRUE(prefill_->SendPrefix(1, true, 10));
  ASSERT_TRUE(prefill_->SendPrefix(11, false, 2));
  const int asked = prefill_->num_resyncs_asked;  // 0, unless joining took more than a second
  ASSERT_TRUE(prefill_->SendPrefix(14, false, 1));
  EXPECT_TRUE(wait_for([&] { return prefill_->num_resyncs_asked > asked; })) << "13 is missing";
  ASSERT_TRUE(process_->ready());
  ASSERT_TRUE(decode_->SendPrefix(1, true, kMaxPrefixChanges + 1));
  EXPECT_TRUE(WaitReady(false)) << "a worker that breaks the protocol is cut off";
}

TEST_F(RouterProcessTest, StreamHasOneChunkPerToken) {
  JoinPair();
  v1::ChatCompletionRequest request = Chat(30);
  request.add_stop("cdX");  // holds text back, never matches
  request.set_logprobs(true);
  request.set_top_logprobs(2);
  grpc::Status status;
  const auto chunks = Stream(request, &status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(chunks.size(), 30u);
  std::string text;
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    const v1::ChatCompletionChunk& chunk = chunks[i];
    EXPECT_EQ(chunk.token_index(), i);
    EXPECT_EQ(chunk.token_id(), 'a' + i % 26);
    EXPECT_EQ(chunk.id(), chunks[0].id());
    ASSERT_EQ(chunk.choices_size(), 1);
    EXPECT_EQ(chunk.choices(0).delta().role(), i == 0 ? "assistant" : "");
    EXPECT_EQ(chunk.choices(0).logprobs().content_size(), 1);
    EXPECT_EQ(chunk.choices(0).logprobs().content(0).top_logprobs_size(), 2);
    EXPECT_EQ(chunk.choices(0).finish_reason(), i == 29 ? "length" : "");
    EXPECT_EQ(chunk.has_usage(), i == 29);
    EXPECT_EQ(chunk.has_timings(), i == 29);
    EXPECT_GE(chunk.server_times().token_unix_us(), chunk.server_times().received_unix_us());
    EXPECT_GE(chunk.server_times().sent_unix_us(), chunk.server_times().token_unix_us());
    text += chunk.choices(0).delta().content();
  }
  EXPECT_EQ(chunks[2].choices(0).delta().content(), "") << "\"c\" could begin the stop text";
  EXPECT_EQ(text, "abcdefghijklmnopqrstuvwxyzabcd");
  EXPECT_EQ(chunks.back().usage().completion_tokens(), 30u);
}

TEST_F(RouterProcessTest, CompletionsTakeTextOrIds) {
  JoinPair();
  v1::CompletionRequest request;
  request.set_prompt("hi");
  request.set_max_tokens(3);
  request.set_echo(true);
  request.set_n(2);
  grpc::ClientContext context;
  v1::CompletionResponse response;
  ASSERT_TRUE(completion_->Complete(&context, request, &response).ok());
  ASSERT_EQ(response.choices_size(), 2);
  EXPECT_EQ(response.choices(1).index(), 1u);
  EXPECT_EQ(response.choices(1).text(), "hiabc");
  EXPECT_EQ(response.usage().completion_tokens(), 6u);

  v1::CompletionRequest by_ids;
  by_ids.add_prompt_token_ids('x');
  by_ids.set_max_tokens(2);
  grpc::ClientContext stream_context;
  auto reader = completion_->StreamComplete(&stream_context, by_ids);
  std::string text;
  v1::CompletionChunk chunk;
  while (reader->Read(&chunk)) text += chunk.choices(0).text();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, "ab");
  EXPECT_EQ(chunk.usage().prompt_tokens(), 1u);

  by_ids.set_prompt_token_ids(0, 1 << 30);
  grpc::ClientContext refused;
  const grpc::Status status = completion_->Complete(&refused, by_ids, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message().find("'prompt_token_ids' is"), 0u) << status.error_message();
}

// A call that streams cannot rank its choices, whichever API it came by.
TEST_F(RouterProcessTest, StreamRefusesBestOf) {
  JoinPair();
  v1::CompletionRequest request;
  request.set_prompt("x");
  request.set_max_tokens(2);
  request.set_best_of(3);
  {
    grpc::ClientContext context;
    auto reader = completion_->StreamComplete(&context, request);
    v1::CompletionChunk chunk;
    EXPECT_FALSE(reader->Read(&chunk));
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    const auto& trailing = context.GetServerTrailingMetadata();
    ASSERT_EQ(trailing.count("baton-error-param"), 1u) << status.error_message();
    EXPECT_EQ(trailing.find("baton-error-param")->second, "best_of");
  }
  grpc::ClientContext context;
  v1::CompletionResponse response;
  EXPECT_TRUE(completion_->Complete(&context, request, &response).ok());
  EXPECT_EQ(response.choices_size(), 1);
}

// The memory of a stream whose client does not read is given back without waiting for it.
TEST_F(RouterProcessTest, GrpcClientThatDoesNotReadIsCutOff) {
  RestartImpatient();
  constexpr int kTokens = 400;
  constexpr int kChoices = 8;
  const auto stub = StubThatTakesLittle();
  grpc::ClientContext context;
  auto reader = stub->StreamChatCompletion(&context, LongChat(kTokens, kChoices));
  ASSERT_TRUE(WaitMetric("code=\"408\"} 1\n")) << "the router gives the request up";
  v1::ChatCompletionChunk chunk;
  int num_chunks = 0;
  while (reader->Read(&chunk)) ++num_chunks;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_LT(num_chunks, kTokens * kChoices);
}

TEST_F(RouterProcessTest, ModelService) {
  JoinPair();
  {
    grpc::ClientContext context;
    v1::ListModelsResponse response;
    ASSERT_TRUE(models_->ListModels(&context, {}, &response).ok());
    ASSERT_EQ(response.data_size(), 1);
    EXPECT_EQ(response.data(0).id(), "toy");
  }
  {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_content("a<eos>");
    request.set_parse_special(true);
    v1::TokenizeResponse response;
    ASSERT_TRUE(models_->Tokenize(&context, request, &response).ok());
    ASSERT_EQ(response.tokens_size(), 2);
    EXPECT_EQ(response.tokens(1), static_cast<uint32_t>(kTestEos));
  }
  {
    grpc::ClientContext context;
    v1::DetokenizeRequest request;
    request.add_tokens('o');
    request.add_tokens('k');
    v1::DetokenizeResponse response;
    ASSERT_TRUE(models_->Detokenize(&context, request, &response).ok());
    EXPECT_EQ(response.content(), "ok");
  }
  {
    // As JSON, whose values are counted.
    grpc::ClientContext context;
    v1::DetokenizeRequest request;
    for (size_t i = 0; i <= limits::kMaxPromptTokens; ++i) request.add_tokens('o');
    v1::DetokenizeResponse response;
    const grpc::Status status = models_->Detokenize(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find("at most 1048576"), std::string::npos);
  }
  {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_content(std::string(9 << 20, 'o'));
    v1::TokenizeResponse response;
    const grpc::Status status = models_->Tokenize(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find("larger than 8 MiB"), std::string::npos);
  }
  {
    grpc::ClientContext context;
    v1::ApplyTemplateRequest request;
    request.add_messages()->set_role("user");
    v1::ApplyTemplateResponse response;
    ASSERT_TRUE(models_->ApplyTemplate(&context, request, &response).ok());
    EXPECT_EQ(response.prompt(), "<user>u:<assistant>");
  }
  {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_model("other");
    v1::TokenizeResponse response;
    EXPECT_EQ(models_->Tokenize(&context, request, &response).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
}

TEST_F(RouterProcessTest, ErrorsHaveTheRightStatus) {
  grpc::Status status;
  Stream(Chat(3), &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << "no workers yet";
  JoinPair();
  struct Case {
    void (*set)(v1::ChatCompletionRequest*);
    grpc::StatusCode code;
    const char* word;
  };
  const Case cases[] = {
      {[](v1::ChatCompletionRequest* r) { r->set_temperature(101); },
       grpc::StatusCode::INVALID_ARGUMENT, "temperature"},
      {[](v1::ChatCompletionRequest* r) { r->set_n(0); }, grpc::StatusCode::INVALID_ARGUMENT,
       "'n'"},
      {[](v1::ChatCompletionRequest* r) { r->clear_messages(); },
       grpc::StatusCode::INVALID_ARGUMENT, "messages"},
      {[](v1::ChatCompletionRequest* r) { r->set_model("other"); }, grpc::StatusCode::NOT_FOUND,
       "model"},
      {[](v1::ChatCompletionRequest* r) { r->set_model("toy:latest"); },
       grpc::StatusCode::NOT_FOUND, "model"},
      {[](v1::ChatCompletionRequest* r) {
         r->mutable_messages(0)->set_content(std::string(1000, 'x'));
       },
       grpc::StatusCode::INVALID_ARGUMENT, "512"},
  };
  for (const Case& c : cases) {
    v1::ChatCompletionRequest request = Chat(3);
    c.set(&request);
    grpc::ClientContext context;
    v1::ChatCompletionResponse response;
    status = chat_->ChatCompletion(&context, request, &response);
    EXPECT_EQ(status.error_code(), c.code) << status.error_message();
    EXPECT_NE(status.error_message().find(c.word), std::string::npos) << status.error_message();
    EXPECT_EQ(context.GetServerTrailingMetadata().count("baton-error-code"), 1u);
    Stream(request, &status);
    EXPECT_EQ(status.error_code(), c.code);
  }
}

TEST_F(RouterProcessTest, WorkerFaultsEndTheCall) {
  process_->Stop();
  RouterConfig config = TestConfig();
  config.core.resume_wait_us = 1'000'000;  // nobody comes to take the last call over
  StartProcess(config);
  JoinPair();
  grpc::Status status;
  decode_->mood = ToyWorker::Mood::kFailAfterTwo;
  const auto chunks = Stream(Chat(9), &status);
  EXPECT_EQ(chunks.size(), 2u);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  for (const auto& chunk : chunks) EXPECT_EQ(chunk.choices(0).finish_reason(), "");
  decode_->mood = ToyWorker::Mood::kReject;
  Stream(Chat(9), &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  decode_->mood = ToyWorker::Mood::kEndless;
  std::vector<v1::ChatCompletionChunk> rest;
  {
    grpc::ClientContext context;
    auto reader = chat_->StreamChatCompletion(&context, Chat(9));
    v1::ChatCompletionChunk chunk;
    while (reader->Read(&chunk)) {
      rest.push_back(chunk);
      if (rest.size() == 2) decode_->Stop();  // it would not have sent more
    }
    status = reader->Finish();
  }
  EXPECT_EQ(rest.size(), 2u);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(WaitReady(false));
}

TEST_F(RouterProcessTest, CancellationReachesBothWorkers) {
  JoinPair();
  decode_->mood = ToyWorker::Mood::kSilent;
  prefill_->mood = ToyWorker::Mood::kSilent;
  {
    grpc::ClientContext context;
    auto reader = chat_->StreamChatCompletion(&context, Chat(9));
    ASSERT_TRUE(decode_->WaitStarts(1) && prefill_->WaitStarts(1));
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(decode_->WaitCancels(1));
  EXPECT_TRUE(prefill_->WaitCancels(1));
  // An HTTP client that closes its connection, or its sending half alone.
  int num_requests = 1;
  for (const bool half : {false, true}) {
    ++num_requests;
    RawClient client(PortOf(process_->http_address()));
    const std::string body =
        fmt::format(R"({{"messages":[{{"role":"user","content":"x"}}],"stream":{}}})", !half);
    client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    ASSERT_TRUE(decode_->WaitStarts(num_requests) && prefill_->WaitStarts(num_requests));
    if (half) {
      client.CloseSending();
      EXPECT_EQ(client.ReceiveAll(), "") << "nothing is generated for it";
    } else {
      client.Close();
    }
    EXPECT_TRUE(decode_->WaitCancels(num_requests));
    EXPECT_TRUE(prefill_->WaitCancels(num_requests));
  }
}

// A health check may send all that it has to say, and then read.
TEST_F(RouterProcessTest, AHalfClosedClientIsAnsweredWhatIsNotGenerated) {
  JoinPair();
  for (const std::string path : {"/health", "/v1/models"}) {
    RawClient client(PortOf(process_->http_address()));
    client.Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.CloseSending();
    EXPECT_EQ(client.ReceiveAll().find("HTTP/1.1 200"), 0u) << path;
  }
}

TEST_F(RouterProcessTest, DeadlinesOfBothKinds) {
  JoinPair();
  decode_->mood = ToyWorker::Mood::kSilent;
  prefill_->mood = ToyWorker::Mood::kSilent;
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + milliseconds(1500));
    v1::ChatCompletionResponse response;
    EXPECT_EQ(chat_->ChatCompletion(&context, Chat(9), &response).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(decode_->WaitCancels(1));
  {
    v1::ChatCompletionRequest request = Chat(9);
    request.set_timeout_ms(200);
    grpc::Status status;
    Stream(request, &status);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  const std::string answer = HttpPost("/v1/completions", R"({"prompt":"x","timeout_ms":100})");
  EXPECT_EQ(answer.find("HTTP/1.1 504"), 0u) << answer;
}

// The bytes that a unary or one-message call of a service without generated code answers.
std::string RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                    const std::string& request, grpc::Status* status) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, method, &queue);
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  next();
  const grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
  next();
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  std::string bytes;
  if (next()) {
    std::vector<grpc::Slice> parts;
    answer.Dump(&parts);
    for (const grpc::Slice& part : parts) bytes.append(part.begin(), part.end());
  }
  call->Finish(status, nullptr);
  next();
  return bytes;
}

// grpc.health.v1: request {1: service}, answer {1: 1 = SERVING, 2 = NOT_SERVING}.
TEST_F(RouterProcessTest, HealthServiceFollowsReadiness) {
  const std::string method = "/grpc.health.v1.Health/Check";
  const auto named = [](const std::string& service) {
    return std::string("\x0a") + static_cast<char>(service.size()) + service;
  };
  const std::vector<std::string> follow = {
      "", named("baton.v1.ChatService"), named("baton.v1.CompletionService"),
      named("baton.v1.EmbeddingService"), named("baton.v1.ModelService")};
  grpc::Status status;
  for (const std::string& request : follow) {
    EXPECT_EQ(RawCall(channel_, method, request, &status), "\x08\x02") << request;
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(RawCall(channel_, method, named("baton.v1.RouterRegistry"), &status), "\x08\x01")
      << "workers join while there is no model";
  JoinPair();
  const auto serving = [&](const std::string& request) {
    for (int i = 0; i < 400; ++i) {
      if (RawCall(channel_, method, request, &status) == "\x08\x01") return true;
      std::this_thread::sleep_for(milliseconds(25));
    }
    return false;
  };
  for (const std::string& request : follow) EXPECT_TRUE(serving(request)) << request;
  for (const char* unknown : {"nope", "baton.v1.chatservice", "baton.v1.ChatService2"}) {
    RawCall(channel_, method, named(unknown), &status);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << unknown;
  }
}

// Request {7: "*"} lists the services by name, in both versions of the protocol.
TEST_F(RouterProcessTest, ReflectionListsTheServices) {
  for (const std::string version : {"v1alpha", "v1"}) {
    grpc::Status status;
    const std::string answer =
        RawCall(channel_, "/grpc.reflection." + version + ".ServerReflection/ServerReflectionInfo",
                "\x3a\x01*", &status);
    EXPECT_TRUE(status.ok()) << version << ": " << status.error_message();
    for (const char* service :
         {"baton.v1.ChatService", "baton.v1.CompletionService", "baton.v1.ModelService",
          "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"}) {
      EXPECT_NE(answer.find(service), std::string::npos) << version << ": " << service;
    }
  }
}

// As tools that know v1 alone ask: one stream, several questions, each file's imports once.
TEST_F(RouterProcessTest, ReflectionAnswersEachQuestionOfAStream) {
  namespace reflection = grpc::reflection::v1;
  const auto stub = reflection::ServerReflection::NewStub(channel_);
  grpc::ClientContext context;
  const auto stream = stub->ServerReflectionInfo(&context);
  const auto ask = [&](auto fill) {
    reflection::ServerReflectionRequest request;
    fill(&request);
    reflection::ServerReflectionResponse response;
    EXPECT_TRUE(stream->Write(request) && stream->Read(&response));
    return response;
  };
  const auto by_symbol =
      ask([](auto* request) { request->set_file_containing_symbol("baton.v1.ChatService"); });
  EXPECT_GE(by_symbol.file_descriptor_response().file_descriptor_proto_size(), 1);
  const auto again = ask(
      [](auto* request) { request->set_file_containing_symbol("baton.v1.ChatCompletionRequest"); });
  EXPECT_EQ(again.file_descriptor_response().file_descriptor_proto_size(), 1);
  const auto by_name =
      ask([](auto* request) { request->set_file_by_filename("baton/v1/inference.proto"); });
  EXPECT_EQ(by_name.file_descriptor_response().file_descriptor_proto_size(), 1);
  for (const char* unknown : {"baton.v1.Nobody", ""}) {
    const auto answer = ask([&](auto* request) { request->set_file_containing_symbol(unknown); });
    EXPECT_EQ(answer.error_response().error_code(), grpc::StatusCode::NOT_FOUND) << unknown;
  }
  const auto numbers = ask(
      [](auto* request) { request->set_all_extension_numbers_of_type("baton.v1.ChatMessage"); });
  EXPECT_EQ(numbers.all_extension_numbers_response().extension_number_size(), 0);
  EXPECT_EQ(ask([](auto*) {}).error_response().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

// One channel may be shared by many clients, as behind Envoy: a large header is its sender's alone.
TEST_F(RouterProcessTest, MetadataIsServedUpTo64KibAndALargerCallFailsAlone) {
  JoinPair();
  grpc::ClientContext beside;
  const auto stream = chat_->StreamChatCompletion(&beside, Chat(2));
  v1::ChatCompletionChunk chunk;
  ASSERT_TRUE(stream->Read(&chunk));
  const auto call = [this](size_t num_bytes) {
    grpc::ClientContext context;
    context.AddMetadata("x-session", std::string(num_bytes, 'a'));
    v1::ChatCompletionResponse response;
    return chat_->ChatCompletion(&context, Chat(2), &response);
  };
  for (const size_t kib : {8, 9, 64}) EXPECT_TRUE(call(kib << 10).ok()) << kib;
  for (const size_t kib : {69, 512, 1000}) {
    const grpc::Status status = call(kib << 10);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << kib;
    EXPECT_NE(status.error_message().find("64 KiB"), std::string::npos) << status.error_message();
  }
  while (stream->Read(&chunk)) {
  }
  EXPECT_TRUE(stream->Finish().ok()) << "the neighbour's stream goes on";
}

// Metadata of answers: the request's name, and what an error is about.
TEST_F(RouterProcessTest, MetadataCarriesRequestIdAndErrorDetails) {
  JoinPair();
  {
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", "my-id");
    v1::ChatCompletionResponse response;
    EXPECT_TRUE(chat_->ChatCompletion(&context, Chat(2), &response).ok());
    const auto& initial = context.GetServerInitialMetadata();
    ASSERT_EQ(initial.count("x-request-id"), 1u);
    EXPECT_EQ(initial.find("x-request-id")->second, "my-id");
    EXPECT_EQ(response.request_id(), "my-id");
  }
  v1::ChatCompletionRequest request = Chat(2);
  request.set_temperature(101);
  grpc::ClientContext context;
  v1::ChatCompletionResponse response;
  const grpc::Status status = chat_->ChatCompletion(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status details;
  google::rpc::BadRequest bad;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(details.details(0).UnpackTo(&bad));
  EXPECT_EQ(bad.field_violations(0).field(), "temperature");
  const auto& trailing = context.GetServerTrailingMetadata();
  ASSERT_EQ(trailing.count("baton-error-code"), 1u);
  EXPECT_EQ(trailing.find("baton-error-code")->second, "invalid_value");
  ASSERT_EQ(trailing.count("baton-error-param"), 1u);
  EXPECT_EQ(trailing.find("baton-error-param")->second, "temperature");
}

TEST_F(RouterProcessTest, ContextLengthErrorHasItsNumbersInTheMetadata) {
  JoinPair();
  v1::CompletionRequest request;
  request.set_prompt(std::string(600, 'x'));
  grpc::ClientContext context;
  v1::CompletionResponse response;
  EXPECT_EQ(completion_->Complete(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  const auto& trailing = context.GetServerTrailingMetadata();
  const auto value = [&trailing](const char* name) {
    const auto it = trailing.find(name);
    return it == trailing.end() ? "<absent>" : std::string(it->second.data(), it->second.size());
  };
  EXPECT_EQ(value("baton-error-code"), "context_length_exceeded");
  EXPECT_EQ(value("baton-error-param"), "prompt");
  EXPECT_EQ(value("baton-error-n-prompt-tokens"), "600");
  EXPECT_EQ(value("baton-error-n-ctx"), "512");
}

TEST_F(RouterProcessTest, RefusalsOfTheServerItselfAreCounted) {
  HttpGet(process_->http_address(), "/v1/chat/completions");
  RawClient broken(PortOf(process_->http_address()));
  broken.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n");
  EXPECT_EQ(broken.ReceiveAll().find("HTTP/1.1 413"), 0u);
  RawClient future(PortOf(process_->http_address()));
  future.Send("GET / HTTP/2.0\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(future.ReceiveAll().find("HTTP/1.1 505"), 0u);
  const std::string metrics = HttpGet(process_->admin_address(), "/metrics");
  for (const char* code :
       {"code=\"400\"} 0\n", "code=\"405\"} 1\n", "code=\"413\"} 1\n", "code=\"505\"} 1\n"}) {
    EXPECT_NE(metrics.find(code), std::string::npos) << code;
  }
}

TEST_F(RouterProcessTest, HttpStreamOverASocket) {
  JoinPair();
  const std::string answer =
      HttpPost("/v1/chat/completions",
               R"({"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":3})");
  EXPECT_EQ(answer.find("HTTP/1.1 200"), 0u);
  EXPECT_NE(answer.find("text/event-stream"), std::string::npos);
  EXPECT_NE(answer.find("data: [DONE]\n\n"), std::string::npos);
  EXPECT_EQ(HttpGet(process_->http_address(), "/metrics").find("HTTP/1.1 404"), 0u);
  EXPECT_EQ(HttpGet(process_->http_address(), "/health").find("HTTP/1.1 200"), 0u);
}

TEST_F(RouterProcessTest, ErrorInMidStreamClosesTheConnection) {
  JoinPair();
  decode_->mood = ToyWorker::Mood::kFailAfterTwo;
  const std::string body =
      R"({"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":9})";
  RawClient client(PortOf(process_->http_address()));
  client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string answer = client.ReceiveAll();
  EXPECT_TRUE(client.ServerClosed());
  EXPECT_EQ(answer.find("HTTP/1.1 200"), 0u);
  EXPECT_NE(answer.find("\r\n\r\n"), std::string::npos);
  const size_t event = answer.find("data: {\"error\":{\"message\":");
  ASSERT_NE(event, std::string::npos) << answer;
  EXPECT_EQ(answer.find("data: ", event + 1), std::string::npos) << "nothing follows the error";
  EXPECT_EQ(answer.find("[DONE]"), std::string::npos);
  EXPECT_EQ(answer.find("\"finish_reason\":\"stop\""), std::string::npos);
  const std::string end = "\r\n0\r\n\r\n";
  EXPECT_EQ(answer.rfind(end), answer.size() - end.size()) << "the client sees the body's end";
}

TEST_F(RouterProcessTest, AdminPortShowsTheRouter) {
  EXPECT_EQ(HttpGet(process_->admin_address(), "/livez").find("HTTP/1.1 200"), 0u);
  EXPECT_EQ(HttpGet(process_->admin_address(), "/readyz").find("HTTP/1.1 503"), 0u);
  JoinPair();
  EXPECT_EQ(HttpGet(process_->admin_address(), "/readyz").find("HTTP/1.1 200"), 0u);
  grpc::Status status;
  Stream(Chat(4), &status);
  v1::ChatCompletionRequest bad = Chat(4);
  bad.set_n(1000);
  Stream(bad, &status);
  const std::string metrics = HttpGet(process_->admin_address(), "/metrics");
  const auto has_value = [&metrics](const std::string& name, const std::string& part,
                                    const std::string& value) {
    size_t at = 0;
    while ((at = metrics.find("\n" + name, at)) != std::string::npos) {
      const std::string line = metrics.substr(at + 1, metrics.find('\n', at + 1) - at - 1);
      if (line.find(part) != std::string::npos) {
        return line.substr(line.rfind(' ') + 1) == value;
      }
      ++at;
    }
    return false;
  };
  EXPECT_TRUE(has_value("baton_requests_total", "code=\"200\"", "1")) << metrics;
  EXPECT_TRUE(has_value("baton_requests_total", "code=\"400\"", "1"));
  EXPECT_TRUE(has_value("baton_generation_tokens_total", "role=\"router\"", "4"));
  EXPECT_TRUE(has_value("baton_requests_total", "model=\"toy\"", "1"));
  decode_->mood = ToyWorker::Mood::kSilent;
  prefill_->mood = ToyWorker::Mood::kSilent;
  grpc::ClientContext context;
  auto reader = chat_->StreamChatCompletion(&context, Chat(4));
  std::string requests;
  for (int i = 0; i < 100 && requests.find("RESERVED") == std::string::npos; ++i) {
    requests = HttpGet(process_->admin_address(), "/debug/requests");
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_NE(requests.find("\"state\":\"RESERVED\""), std::string::npos) << requests;
  EXPECT_NE(requests.find("\"worker\":\"decode-0\""), std::string::npos);
  context.TryCancel();
}

TEST_F(RouterProcessTest, WorkerOfOtherWeightsIsToldWhy) {
  JoinPair();
  ToyWorker other("decode-9", v1::WORKER_ROLE_DECODE);
  other.weights = "weights-b";
  other.Register(process_->grpc_address());
  EXPECT_NE(other.refusal.find("weights_id"), std::string::npos) << other.refusal;
  EXPECT_NE(other.refusal.find("weights-b"), std::string::npos) << other.refusal;
}

TEST_F(RouterProcessTest, ANameThatIsTheIdOfAnotherModelIsDropped) {
  process_->Stop();
  RouterConfig config = TestConfig();
  config.core.served_names = ServedNames::Parse("toy=other,nick").value();
  StartProcess(config);
  decode_ = std::make_unique<ToyWorker>("decode-0", v1::WORKER_ROLE_DECODE);
  decode_->Register(process_->grpc_address());
  ToyWorker second("decode-1", v1::WORKER_ROLE_DECODE);
  second.model = "other";
  second.weights = "weights-b";
  second.Register(process_->grpc_address());
  // Until the second one has joined, "other" names the first, whose row has its id as root.
  std::string other = "root";
  for (int i = 0; i < 400 && other.find("root") != std::string::npos; ++i) {
    std::this_thread::sleep_for(milliseconds(25));
    other = HttpGet(process_->http_address(), "/v1/models/other");
  }
  EXPECT_NE(other.find("\"id\":\"other\""), std::string::npos) << other;
  EXPECT_EQ(other.find("root"), std::string::npos) << other;
  const std::string listed = HttpGet(process_->http_address(), "/v1/models");
  const size_t first = listed.find("\"id\":\"other\"");
  EXPECT_NE(first, std::string::npos) << listed;
  EXPECT_EQ(listed.find("\"id\":\"other\"", first + 1), std::string::npos) << listed;
  EXPECT_NE(listed.find("\"id\":\"nick\""), std::string::npos) << listed;
}

TEST_F(RouterProcessTest, PortInUseIsNamed) {
  for (const char* flag : {"--grpc", "--http", "--admin"}) {
    RouterConfig config = TestConfig();
    if (flag == std::string("--grpc")) config.grpc_address = process_->grpc_address();
    if (flag == std::string("--http")) config.http_address = process_->http_address();
    if (flag == std::string("--admin")) config.admin_address = process_->admin_address();
    const auto second = RouterProcess::Start(config);
    ASSERT_FALSE(second.ok()) << flag;
    EXPECT_NE(second.status().message().find(flag), std::string::npos) << second.status();
  }
  for (const char* address : {"", "nonsense", "127.0.0.1:", "127.0.0.1:99999", ":80x"}) {
    RouterConfig config = TestConfig();
    config.grpc_address = address;
    EXPECT_FALSE(RouterProcess::Start(config).ok()) << address;
  }
}

}  // namespace
}  // namespace baton::api
