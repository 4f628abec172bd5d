// The fields that answers over gRPC carry beside their text, from toy workers through the whole
// router.
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "tests/api/router_process_rig.h"

namespace baton::api {
namespace {

using GrpcAnswerTest = RouterProcessTest;

// Also calls that are refused before there is a request have a name.
TEST_F(GrpcAnswerTest, RefusalsCarryTheRequestId) {
  JoinPair();
  const auto value_of = [](grpc::ClientContext& context, const char* key) {
    const auto& initial = context.GetServerInitialMetadata();
    const auto it = initial.find(key);
    return it == initial.end() ? "" : std::string(it->second.data(), it->second.size());
  };
  const auto id_of = [&](grpc::ClientContext& context) {
    return value_of(context, "x-request-id");
  };
  v1::ChatCompletionRequest out_of_range = Chat(2);
  out_of_range.set_temperature(101);
  v1::ChatCompletionRequest other_model = Chat(2);
  other_model.set_model("other");
  v1::ChatCompletionRequest named = other_model;
  named.set_request_id("from-field");
  struct Case {
    const v1::ChatCompletionRequest& request;
    const char* sent;
    std::string expected;  // "" = a new one
  };
  for (const Case& c : {Case{out_of_range, "mine", "mine"}, Case{other_model, "mine", "mine"},
                        Case{named, "mine", "from-field"}, Case{out_of_range, "not ok", ""}}) {
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", c.sent);
    v1::ChatCompletionResponse response;
    EXPECT_FALSE(chat_->ChatCompletion(&context, c.request, &response).ok());
    grpc::ClientContext stream_context;
    stream_context.AddMetadata("x-request-id", c.sent);
    auto reader = chat_->StreamChatCompletion(&stream_context, c.request);
    EXPECT_FALSE(reader->Finish().ok());
    for (grpc::ClientContext* each : {&context, &stream_context}) {
      const std::string id = id_of(*each);
      EXPECT_TRUE(c.expected.empty() ? id.size() == 32 : id == c.expected) << id;
      EXPECT_EQ(value_of(*each, "x-baton-ignored-fields"),
                c.expected.empty() ? "x-request-id" : "");
    }
  }
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "text-1");
  v1::TokenizeRequest request;
  request.set_model("other");
  v1::TokenizeResponse response;
  EXPECT_FALSE(models_->Tokenize(&context, request, &response).ok());
  EXPECT_EQ(id_of(context), "text-1");
}

TEST_F(GrpcAnswerTest, ThoughtsAreApartInBothKindsOfCalls) {
  JoinPair("I see.</think>Yes.!");
  grpc::ClientContext context;
  v1::ChatCompletionResponse whole;
  v1::ChatCompletionRequest request = Chat(50);
  request.add_stop_token_ids('!');
  ASSERT_TRUE(chat_->ChatCompletion(&context, request, &whole).ok());
  EXPECT_EQ(whole.choices(0).message().reasoning_content(), "I see.");
  EXPECT_EQ(whole.choices(0).message().content(), "Yes.");
  EXPECT_EQ(whole.choices(0).finish_reason(), "stop");
  EXPECT_EQ(whole.choices(0).stop_reason().token_id(), '!');
  EXPECT_EQ(whole.usage().completion_tokens(), 19u);
  EXPECT_EQ(whole.usage().completion_tokens_details().reasoning_tokens(), 14u);

  grpc::Status status;
  request.add_stop("Ye");
  const auto chunks = Stream(request, &status);
  ASSERT_EQ(chunks.size(), 16u) << "to the end of the stop text";
  std::string reasoning;
  for (const auto& chunk : chunks) {
    reasoning += chunk.choices(0).delta().reasoning_content();
    EXPECT_EQ(chunk.choices(0).delta().content(), "") << "the stop text is not part of the answer";
    EXPECT_EQ(chunk.choices(0).has_stop_reason(), chunk.has_usage());
  }
  EXPECT_EQ(reasoning, "I see.");
  EXPECT_EQ(chunks.back().choices(0).stop_reason().text(), "Ye");
  EXPECT_EQ(chunks.back().usage().completion_tokens_details().reasoning_tokens(), 14u);

  request = Chat(8);
  request.set_reasoning_format("none");
  grpc::ClientContext raw_context;
  v1::ChatCompletionResponse raw;
  ASSERT_TRUE(chat_->ChatCompletion(&raw_context, request, &raw).ok());
  EXPECT_EQ(raw.choices(0).message().content(), "I see.</");
  EXPECT_EQ(raw.choices(0).message().reasoning_content(), "");
  EXPECT_TRUE(raw.usage().has_completion_tokens_details());
  EXPECT_EQ(raw.usage().completion_tokens_details().reasoning_tokens(), 0u);
  EXPECT_FALSE(raw.choices(0).has_stop_reason());
}

TEST_F(GrpcAnswerTest, ThoughtsStayInTheContentWhereTheRouterSaysSo) {
  process_->Stop();
  RouterConfig config = TestConfig();
  config.splits_reasoning = false;
  StartProcess(config);
  JoinPair("I see.</think>Yes.!");
  grpc::ClientContext context;
  v1::ChatCompletionResponse response;
  ASSERT_TRUE(chat_->ChatCompletion(&context, Chat(18), &response).ok());
  EXPECT_EQ(response.choices(0).message().content(), "I see.</think>Yes.");
  const std::string body = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":18})";
  EXPECT_NE(HttpPost("/v1/chat/completions", body).find("I see.</think>Yes."), std::string::npos);
  v1::ChatCompletionRequest request = Chat(18);
  request.set_reasoning_format("auto");
  grpc::ClientContext split_context;
  ASSERT_TRUE(chat_->ChatCompletion(&split_context, request, &response).ok());
  EXPECT_EQ(response.choices(0).message().content(), "Yes.");
}

TEST_F(GrpcAnswerTest, BothKindsOfCallsSayThatTheModelCalls) {
  JoinPair(R"(.</think>{"name":"f","arguments":{}}!)");
  v1::ChatCompletionRequest request = Chat(60);
  request.add_tools()->mutable_function()->set_name("f");
  request.add_stop_token_ids('!');
  const auto expect_end = [&](const std::string& finish) {
    grpc::ClientContext context;
    v1::ChatCompletionResponse whole;
    const grpc::Status made = chat_->ChatCompletion(&context, request, &whole);
    ASSERT_TRUE(made.ok()) << made.error_message();
    ASSERT_EQ(whole.choices(0).message().tool_calls_size(), 1) << whole.DebugString();
    EXPECT_EQ(whole.choices(0).finish_reason(), finish);
    grpc::Status status;
    const auto chunks = Stream(request, &status);
    ASSERT_TRUE(status.ok() && !chunks.empty()) << status.error_message();
    EXPECT_EQ(chunks.back().choices(0).finish_reason(), finish);
  };
  expect_end("tool_calls");
  request.add_stop("}");  // the call has no end
  expect_end("stop");
}

TEST_F(GrpcAnswerTest, VariablesThatTheTemplateDoesNotReadAreNamed) {
  JoinPair();
  v1::ChatCompletionRequest request = Chat(2);
  request.set_reasoning_effort("low");
  request.set_documents(R"([{"text":"d"}])");
  grpc::ClientContext context;
  v1::ChatCompletionResponse response;
  ASSERT_TRUE(chat_->ChatCompletion(&context, request, &response).ok());
  const auto& initial = context.GetServerInitialMetadata();
  const auto it = initial.find("x-baton-ignored-fields");
  ASSERT_NE(it, initial.end());
  EXPECT_EQ(std::string(it->second.data(), it->second.size()), "documents, reasoning_effort");
  grpc::ClientContext plain_context;
  ASSERT_TRUE(chat_->ChatCompletion(&plain_context, Chat(2), &response).ok());
  EXPECT_EQ(plain_context.GetServerInitialMetadata().count("x-baton-ignored-fields"), 0u);
}

// A prompt may be told of before the decode worker has reserved: the chunk takes the header along.
TEST_F(GrpcAnswerTest, ProgressMayComeBeforeTheHeader) {
  JoinPair();
  decode_->reserves = false;
  v1::ChatCompletionRequest request = Chat(2);
  request.set_return_progress(true);
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "mine");
  auto reader = chat_->StreamChatCompletion(&context, request);
  v1::ChatCompletionChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  ASSERT_TRUE(chunk.has_prompt_progress());
  EXPECT_EQ(chunk.prompt_progress().processed(), 1u);
  EXPECT_EQ(chunk.choices(0).index(), 0u);
  EXPECT_EQ(context.GetServerInitialMetadata().count("x-request-id"), 1u);
  decode_->reserves = true;
  std::string text;
  uint32_t processed = 1;
  uint32_t num_prompt_tokens = 0;
  while (reader->Read(&chunk)) {
    if (chunk.has_prompt_progress()) processed = chunk.prompt_progress().processed();
    text += chunk.choices(0).delta().content();
    if (chunk.has_usage()) num_prompt_tokens = chunk.usage().prompt_tokens();
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(text, "ab");
  EXPECT_EQ(processed, num_prompt_tokens) << "the end of the prompt is told";
}

TEST_F(GrpcAnswerTest, EchoAloneNeedsNoWorker) {
  JoinPair();
  v1::CompletionRequest request;
  request.set_prompt("hi");
  request.set_max_tokens(0);
  request.set_echo(true);
  request.set_n(2);
  grpc::ClientContext context;
  v1::CompletionResponse whole;
  ASSERT_TRUE(completion_->Complete(&context, request, &whole).ok());
  ASSERT_EQ(whole.choices_size(), 2);
  EXPECT_EQ(whole.choices(1).text(), "hi");
  EXPECT_EQ(whole.choices(1).finish_reason(), "length");
  EXPECT_EQ(whole.usage().prompt_tokens(), 2u);
  EXPECT_EQ(whole.usage().completion_tokens(), 0u);
  grpc::ClientContext stream_context;
  auto reader = completion_->StreamComplete(&stream_context, request);
  std::vector<v1::CompletionChunk> chunks;
  v1::CompletionChunk chunk;
  while (reader->Read(&chunk)) chunks.push_back(chunk);
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_EQ(chunks.size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(chunks[i].choices(0).index(), i);
    EXPECT_EQ(chunks[i].choices(0).text(), "hi");
    EXPECT_EQ(chunks[i].choices(0).finish_reason(), "length");
    EXPECT_EQ(chunks[i].has_usage(), i == 1);
  }
  const std::string metrics = HttpGet(process_->admin_address(), "/metrics");
  EXPECT_NE(metrics.find("code=\"200\"} 2\n"), std::string::npos);
}

}  // namespace
}  // namespace baton::api
