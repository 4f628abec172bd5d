// The bytes of a message, whole and as a stream of events, from tokens to text.
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/api/json_value.h"
#include "src/api/json_writer.h"
#include "src/api/messages_json.h"
#include "src/api/openai_json.h"
#include "tests/router/test_model.h"

namespace baton::api {

using router::GenerateResult;
using router::RequestError;
using router::TestModel;
using router::TokenOutput;
using scheduler::FinishReason;

namespace {

AnswerPlan PlanOf(bool splits_reasoning) {
  AnswerPlan plan;
  plan.endpoint = Endpoint::kMessages;
  plan.id = "msg_1";
  plan.request_id = "req-1";
  plan.model = TestModel();
  plan.prompts.front().num_tokens = 12;
  plan.splits_reasoning = splits_reasoning;
  return plan;
}

GenerateResult ResultOf(uint32_t num_tokens) {
  GenerateResult result;
  result.num_prompt_tokens = 12;
  result.num_completion_tokens = num_tokens;
  result.timings.cached_tokens = 8;
  return result;
}

std::string TimingsOf(const GenerateResult& result) {
  JsonWriter json;
  WriteTimings(result.timings, &json);
  return json.Take();
}

std::string Event(const std::string& name, const std::string& members) {
  return "event: " + name + "\ndata: {\"type\":\"" + name + "\"" + members + "}\n\n";
}

std::string Start() {
  return Event(
      "message_start",
      R"(,"message":{"id":"msg_1","type":"message","role":"assistant","model":"toy",)"
      R"("content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":12,)"
      R"("cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}})");
}

std::string BlockStart(int index, const std::string& block) {
  return Event("content_block_start",
               ",\"index\":" + std::to_string(index) + ",\"content_block\":{" + block + "}");
}

std::string Delta(int index, const std::string& delta) {
  return Event("content_block_delta",
               ",\"index\":" + std::to_string(index) + ",\"delta\":{" + delta + "}");
}

std::string BlockStop(int index) {
  return Event("content_block_stop", ",\"index\":" + std::to_string(index));
}

const std::string kTextBlock = R"("type":"text","text":"")";

// Adds one token of the answer to the stream.
void Add(MessagesWriter* writer, const TokenText& text, std::string* out) {
  writer->AddToken(TokenOutput{}, text, out);
}

TEST(MessagesStreamTest, AMessageOfThoughtsTextAndCalls) {
  MessagesWriter writer(PlanOf(/*splits_reasoning=*/true), {.max_tokens = 16});
  std::string out;
  writer.Begin(&out);
  Add(&writer, {.reasoning = "hm", .in_reasoning = true}, &out);
  Add(&writer, {.in_reasoning = true}, &out);  // a tag
  Add(&writer, {.reasoning = "!", .content = "I"}, &out);
  Add(&writer, {.content = " look"}, &out);
  const std::vector<ToolCallDelta> first = {{.index = 0, .id = "c1", .name = "f"}};
  const std::vector<ToolCallDelta> more = {{.index = 0, .arguments = "{\"a\":"}};
  const std::vector<ToolCallDelta> next = {{.index = 0, .arguments = "\"\n\"}"},
                                           {.index = 1, .id = "c2", .name = "g"}};
  Add(&writer, {.tool_calls = first, .in_call = true}, &out);
  Add(&writer, {.tool_calls = more, .in_call = true}, &out);
  Add(&writer, {.content = "x", .tool_calls = next, .in_call = true}, &out);
  const GenerateResult result = ResultOf(7);
  writer.EndChoice(0, {.finish = FinishReason::kStop, .num_tokens = 7, .has_calls = true}, &result,
                   &out);
  writer.Finish(result, 3, &out);
  EXPECT_EQ(
      out,
      Start() + BlockStart(0, R"("type":"thinking","thinking":"","signature":"")") +
          Delta(0, R"("type":"thinking_delta","thinking":"hm")") +
          Delta(0, R"("type":"thinking_delta","thinking":"!")") +
          Delta(0, R"("type":"signature_delta","signature":"")") + BlockStop(0) +
          BlockStart(1, kTextBlock) + Delta(1, R"("type":"text_delta","text":"I")") +
          Delta(1, R"("type":"text_delta","text":" look")") + BlockStop(1) +
          BlockStart(2, R"("type":"tool_use","id":"c1","name":"f","input":{})") +
          Delta(2, R"("type":"input_json_delta","partial_json":"{\"a\":")") +
          Delta(2, R"("type":"input_json_delta","partial_json":"\"\n\"}")") + BlockStop(2) +
          BlockStart(3, kTextBlock) + Delta(3, R"("type":"text_delta","text":"x")") + BlockStop(3) +
          BlockStart(4, R"("type":"tool_use","id":"c2","name":"g","input":{})") + BlockStop(4) +
          Event("message_delta", R"(,"delta":{"stop_reason":"tool_use","stop_sequence":null},)"
                                 R"("usage":{"input_tokens":4,"cache_creation_input_tokens":0,)"
                                 R"("cache_read_input_tokens":8,"output_tokens":7,)"
                                 R"("output_tokens_details":{"thinking_tokens":3}},)" +
                                     TimingsOf(result)) +
          Event("message_stop", ""));
}

TEST(MessagesStreamTest, AnAnswerWithoutTextHasNoBlocks) {
  MessagesWriter writer(PlanOf(/*splits_reasoning=*/false), {.max_tokens = 16});
  std::string out;
  writer.Begin(&out);
  Add(&writer, {}, &out);
  const GenerateResult result = ResultOf(1);
  writer.EndChoice(0, {.finish = FinishReason::kStop, .num_tokens = 1}, &result, &out);
  writer.Finish(result, 0, &out);
  EXPECT_EQ(out, Start() +
                     Event("message_delta",
                           R"(,"delta":{"stop_reason":"end_turn","stop_sequence":null},)"
                           R"("usage":{"input_tokens":4,"cache_creation_input_tokens":0,)"
                           R"("cache_read_input_tokens":8,"output_tokens":1},)" +
                               TimingsOf(result)) +
                     Event("message_stop", ""));
}

TEST(MessagesStreamTest, OmittedThoughtsAreAnEmptyBlock) {
  MessagesWriter writer(PlanOf(/*splits_reasoning=*/true),
                        {.max_tokens = 16, .omits_thoughts = true});
  std::string out;
  Add(&writer, {.reasoning = "secret", .in_reasoning = true}, &out);
  Add(&writer, {.content = "a"}, &out);
  EXPECT_EQ(out, BlockStart(0, R"("type":"thinking","thinking":"","signature":"")") +
                     Delta(0, R"("type":"signature_delta","signature":"")") + BlockStop(0) +
                     BlockStart(1, kTextBlock) + Delta(1, R"("type":"text_delta","text":"a")"));
}

// A collected answer with the text `text`, played as one token.
void Collect(AnswerCollector* answer, const std::string& text) {
  TokenOutput token;
  token.token = 'x';
  token.text = text;
  token.finish = FinishReason::kStop;
  token.is_last = true;
  answer->Add(token);
}

std::string WholeOf(const MessagesWriter& writer, const AnswerCollector& answer, size_t num_bytes) {
  const auto whole = writer.Whole(answer, ResultOf(1));
  std::string joined;
  for (std::string piece = whole->Next(num_bytes); !piece.empty(); piece = whole->Next(num_bytes)) {
    joined += piece;
  }
  return joined;
}

TEST(MessagesStreamTest, PiecesOfAnySizeAreTheWholeMessage) {
  for (const std::string& text : {std::string(), std::string("a\"b\n"), std::string(20'000, '\x01'),
                                  std::string(4095, 'x') + "\xe2\x82\xac" + "y"}) {
    MessagesWriter writer(PlanOf(/*splits_reasoning=*/false), {.max_tokens = 16});
    AnswerCollector answer(writer.plan(), 1);
    Collect(&answer, text);
    const std::string whole = WholeOf(writer, answer, size_t{1} << 30);
    JsonValue root;
    RequestError error;
    ASSERT_TRUE(ParseJson(whole, &root, &error)) << whole.substr(0, 200);
    const JsonValue::Array& content = *root.Find("content")->AsArray();
    ASSERT_EQ(content.size(), text.empty() ? 0u : 1u);
    if (!text.empty()) {
      EXPECT_EQ(*content[0].Find("text")->AsString(), text);
    }
    for (const size_t num_bytes : {1, 100, 70'000}) {
      EXPECT_EQ(WholeOf(writer, answer, num_bytes), whole) << num_bytes;
    }
  }
}

TEST(MessagesStreamTest, ArgumentsThatAreNoObjectAreKeptAsText) {
  EXPECT_EQ(ToolInputJson(R"({"a": [1.50]})"), R"({"a": [1.50]})");
  EXPECT_EQ(ToolInputJson(""), "{}");
  EXPECT_EQ(ToolInputJson(R"({"a": )"), R"({"raw_arguments":"{\"a\": "})");
  EXPECT_EQ(ToolInputJson("[1]"), R"({"raw_arguments":"[1]"})");
}

TEST(MessagesStreamTest, EveryErrorHasATypeOfAnthropics) {
  for (int i = 0; i < router::kNumErrorCodes; ++i) {
    const RequestError error = router::PlainError(static_cast<router::ErrorCode>(i));
    JsonValue root;
    RequestError unused;
    ASSERT_TRUE(ParseJson(MessagesErrorJson(error, "r"), &root, &unused));
    EXPECT_EQ(*root.Find("type")->AsString(), "error");
    EXPECT_EQ(*root.Find("request_id")->AsString(), "r");
    const std::string type = *root.Find("error")->Find("type")->AsString();
    const int status = HttpStatusOf(error.code);
    EXPECT_EQ(type == "invalid_request_error", status == 400 || status == 405 || status == 415 ||
                                                   status == 431 || status == 499 || status == 501)
        << status << " " << type;
  }
}

}  // namespace
}  // namespace baton::api
