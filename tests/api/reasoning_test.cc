// Thoughts in answers over HTTP: reasoning_content, whole and streamed, and how to turn it off.
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/api/http_api_rig.h"

namespace baton::api {

using namespace router;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;

namespace {

// Thinks of its own accord; earlier thoughts are taken out of the conversation, as Qwen3 does.
const std::string kThinks =
    "{% for m in messages %}<user>{{ m.content.split('</think>')[-1] }}{% endfor %}<assistant>";
// The template begins the thoughts, as DeepSeek-R1's does.
const std::string kOpens = kThinks + "<think>\n";

class ReasoningTest : public HttpApiTest {
 protected:
  explicit ReasoningTest(bool splits_reasoning = true) : HttpApiTest(splits_reasoning) {
    submitter_.served = {ModelWith(kThinks)};
  }

  // The parts of one choice of a stream, and how many chunks had which.
  struct Streamed {
    std::string reasoning;
    std::string content;
    int num_reasoning = 0;
    int num_content = 0;
  };
  static Streamed Collect(const FakeResponder& responder, const std::string& choice = "0") {
    Streamed all;
    for (const std::string& event : Events(responder.body)) {
      JsonValue root;
      RequestError error;
      if (event == "[DONE]") continue;
      EXPECT_TRUE(ParseJson(event, &root, &error)) << event;
      const JsonValue* first = At(root, {"choices", "0"});
      if (first == nullptr) continue;  // usage
      int64_t index = -1;
      EXPECT_TRUE(At(*first, {"index"})->GetInteger(&index));
      if (std::to_string(index) != choice || At(*first, {"delta", "role"}) != nullptr) continue;
      if (const JsonValue* text = At(*first, {"delta", "reasoning_content"})) {
        all.reasoning += *text->AsString();
        ++all.num_reasoning;
      }
      if (const JsonValue* text = At(*first, {"delta", "content"})) {
        all.content += *text->AsString();
        ++all.num_content;
      }
    }
    return all;
  }
  static std::string Message(const FakeResponder& responder, const std::string& field,
                             const std::string& choice = "0") {
    return Text(responder, {"choices", choice, "message", field});
  }
  static std::string ReasoningTokens(const FakeResponder& responder) {
    return Text(responder, {"usage", "completion_tokens_details", "reasoning_tokens"});
  }
};

const std::string kThought = "<think>\nI see.\n</think>";
const std::string kAnswer = kThought + "\n\nYes.";

TEST_F(ReasoningTest, AWholeAnswerHasItsThoughtsApart) {
  AnswerWith(kAnswer);
  const auto responder = Post(kChatPath, kHello + "}");
  EXPECT_EQ(Message(*responder, "reasoning_content"), "I see.");
  EXPECT_EQ(Message(*responder, "content"), "Yes.");
  EXPECT_EQ(ReasoningTokens(*responder), std::to_string(kThought.size())) << "a token is a byte";
  EXPECT_EQ(Text(*responder, {"usage", "completion_tokens"}), std::to_string(kAnswer.size()));
}

TEST_F(ReasoningTest, AStreamSaysTheSameWithOneChunkPerToken) {
  AnswerWith(kAnswer);
  const auto responder =
      Post(kChatPath, kHello + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  const Streamed all = Collect(*responder);
  EXPECT_EQ(all.reasoning, "I see.");
  EXPECT_EQ(all.content, "Yes.");
  const auto events = Events(responder->body);
  ASSERT_EQ(events.size(), kAnswer.size() + 4) << "opening, finish, usage, [DONE]";
  EXPECT_EQ(all.num_reasoning + all.num_content, static_cast<int>(kAnswer.size()));
  const auto choices = [&events](size_t idx) {
    return events[idx].substr(events[idx].find("\"choices\""));
  };
  EXPECT_EQ(choices(0), R"("choices":[{"index":0,"delta":{"role":"assistant","content":""},)"
                        R"("logprobs":null,"finish_reason":null}],"usage":null})");
  const std::string end = R"(},"logprobs":null,"finish_reason":null}],"usage":null})";
  const std::string begin = R"("choices":[{"index":0,"delta":{)";
  EXPECT_EQ(choices(7), begin + R"("reasoning_content":"")" + end) << "the tag is complete";
  EXPECT_EQ(choices(9), begin + R"("reasoning_content":"I")" + end);
  EXPECT_EQ(choices(kThought.size() - 1), begin + R"("reasoning_content":"")" + end);
  EXPECT_EQ(choices(kThought.size()), begin + R"("content":"")" + end);
  EXPECT_EQ(choices(kAnswer.size()), begin + R"("content":".")" + end);
  EXPECT_NE(events[events.size() - 2].find(R"("completion_tokens_details":{"reasoning_tokens":)" +
                                           std::to_string(kThought.size()) + "}}"),
            std::string::npos)
      << events[events.size() - 2];
}

// A token may hold the end of the thoughts and the beginning of the content.
TEST_F(ReasoningTest, OneTokenMayAddToBothParts) {
  submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
    TokenOutput token;
    for (const char* text : {"<think>a", "b</think> c", "d"}) {
      token.text = text;
      token.is_last = token.index == 2;
      token.finish = token.is_last ? FinishReason::kLength : FinishReason::kNone;
      sink.OnToken(token);
      ++token.index;
    }
    sink.OnFinished(TestResult(1, 3));
  };
  const auto stream = Post(kChatPath, kHello + R"(,"stream":true})");
  EXPECT_NE(stream->body.find(R"("delta":{"reasoning_content":"b","content":"c"})"),
            std::string::npos)
      << stream->body;
  const auto whole = Post(kChatPath, kHello + "}");
  EXPECT_EQ(Message(*whole, "reasoning_content"), "ab");
  EXPECT_EQ(Message(*whole, "content"), "cd");
  EXPECT_EQ(ReasoningTokens(*whole), "2");
}

TEST_F(ReasoningTest, ATemplateMayBeginTheThoughts) {
  submitter_.served = {ModelWith(kOpens)};
  AnswerWith("I see.</think>Yes.");
  const auto whole = Post(kChatPath, kHello + "}");
  EXPECT_EQ(Message(*whole, "reasoning_content"), "I see.");
  EXPECT_EQ(Message(*whole, "content"), "Yes.");
  EXPECT_EQ(ReasoningTokens(*whole), "14");
  const Streamed all = Collect(*Post(kChatPath, kHello + R"(,"stream":true})"));
  EXPECT_EQ(all.reasoning, "I see.");
  EXPECT_EQ(all.content, "Yes.");
}

TEST_F(ReasoningTest, AnAnswerWithoutThoughtsIsContent) {
  AnswerWith("<thin> ice");
  const auto whole = Post(kChatPath, kHello + "}");
  EXPECT_EQ(Message(*whole, "reasoning_content"), "null");
  EXPECT_EQ(Message(*whole, "content"), "<thin> ice");
  EXPECT_EQ(ReasoningTokens(*whole), "0");
  const Streamed all = Collect(*Post(kChatPath, kHello + R"(,"stream":true})"));
  EXPECT_EQ(all.content, "<thin> ice");
  EXPECT_EQ(all.num_reasoning, 0);
}

TEST_F(ReasoningTest, AnAnswerMayBeCutInItsThoughts) {
  const std::string cut = "<think>I see</thi";
  AnswerWith(cut, FinishReason::kLength);
  const auto whole = Post(kChatPath, kHello + "}");
  EXPECT_EQ(Message(*whole, "reasoning_content"), "I see</thi") << "what was held back is text";
  EXPECT_EQ(Message(*whole, "content"), "");
  EXPECT_EQ(Text(*whole, {"choices", "0", "finish_reason"}), "length");
  EXPECT_EQ(ReasoningTokens(*whole), std::to_string(cut.size()));
  const Streamed all = Collect(*Post(kChatPath, kHello + R"(,"stream":true})"));
  EXPECT_EQ(all.reasoning, "I see</thi");
  EXPECT_EQ(all.content, "");
}

TEST_F(ReasoningTest, EachChoiceHasThoughtsOfItsOwn) {
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    ASSERT_EQ(request.num_choices, 3u);
    const std::vector<std::string> answers = {"<think>a</think>b", "c", "<think>d"};
    for (uint32_t i = 0; i < 3; ++i) {
      PlayText(sink, answers[i], i, FinishReason::kLength, i == 2);
    }
    sink.OnFinished(TestResult(1, 26));
  };
  const auto whole = Post(kChatPath, kHello + R"(,"n":3})");
  const std::vector<std::vector<std::string>> expected = {{"a", "b"}, {"null", "c"}, {"d", ""}};
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::string choice = std::to_string(i);
    EXPECT_EQ(Message(*whole, "reasoning_content", choice), expected[i][0]);
    EXPECT_EQ(Message(*whole, "content", choice), expected[i][1]);
  }
  EXPECT_EQ(ReasoningTokens(*whole), "24") << "16 of the first and 8 of the last";
  const auto stream = Post(kChatPath, kHello + R"(,"n":3,"stream":true})");
  EXPECT_EQ(Collect(*stream, "0").reasoning, "a");
  EXPECT_EQ(Collect(*stream, "1").reasoning, "");
  EXPECT_EQ(Collect(*stream, "2").reasoning, "d");
}

// vLLM's rule: the list is of all sampled tokens, whichever field their text went to.
TEST_F(ReasoningTest, LogprobsAreOfAllTokens) {
  AnswerWith("<think>a</think>b");
  const auto whole = Post(kChatPath, kHello + R"(,"logprobs":true})");
  EXPECT_EQ(Text(*whole, {"choices", "0", "logprobs", "content", "0", "token"}), "<");
  EXPECT_EQ(Text(*whole, {"choices", "0", "logprobs", "content", "7", "token"}), "a");
  EXPECT_EQ(Text(*whole, {"choices", "0", "logprobs", "content", "16", "token"}), "b");
  EXPECT_EQ(Text(*whole, {"choices", "0", "logprobs", "content", "17", "token"}), "<absent>");
  const auto stream = Post(kChatPath, kHello + R"(,"logprobs":true,"stream":true})");
  EXPECT_NE(stream->body.find(R"("delta":{"reasoning_content":"a"},"logprobs":{"content":[)"
                              R"({"token":"a")"),
            std::string::npos);
}

TEST_F(ReasoningTest, ARequestMayKeepThoughtsInTheContent) {
  AnswerWith(kAnswer);
  const auto whole = Post(kChatPath, kHello + R"(,"reasoning_format":"none"})");
  EXPECT_EQ(Message(*whole, "content"), kAnswer);
  EXPECT_EQ(whole->body.find("reasoning_content"), std::string::npos);
  const auto stream = Post(kChatPath, kHello + R"(,"reasoning_format":"none","stream":true})");
  EXPECT_EQ(Collect(*stream).content, kAnswer);
  EXPECT_EQ(stream->body.find("reasoning_content"), std::string::npos);
  for (const char* format : {"auto", "deepseek"}) {
    const auto split = Post(kChatPath, kHello + R"(,"reasoning_format":")" + format + "\"}");
    EXPECT_EQ(Message(*split, "reasoning_content"), "I see.") << format;
  }
  const auto bad = Post(kChatPath, kHello + R"(,"reasoning_format":"hidden"})");
  EXPECT_EQ(bad->status, 400);
  EXPECT_EQ(Text(*bad, {"error", "param"}), "reasoning_format");
}

// Nothing changes for models whose template knows no thoughts, and for plain completions.
TEST_F(ReasoningTest, OnlyModelsThatThinkAreSplit) {
  AnswerWith(kAnswer);
  const auto plain = Post(kCompletionPath, R"({"prompt":"x"})");
  EXPECT_EQ(Text(*plain, {"choices", "0", "text"}), kAnswer);
  EXPECT_EQ(plain->body.find("reasoning_content"), std::string::npos);
  submitter_.served = {TestModel()};
  const auto whole = Post(kChatPath, kHello + "}");
  EXPECT_EQ(Message(*whole, "content"), kAnswer);
  EXPECT_EQ(whole->body.find("reasoning_content"), std::string::npos);
}

class ReasoningOffTest : public ReasoningTest {
 protected:
  ReasoningOffTest() : ReasoningTest(/*splits_reasoning=*/false) {}
};

TEST_F(ReasoningOffTest, TheServersDefaultIsForRequestsThatDoNotSay) {
  AnswerWith(kAnswer);
  const auto whole = Post(kChatPath, kHello + "}");
  EXPECT_EQ(Message(*whole, "content"), kAnswer);
  EXPECT_EQ(whole->body.find("reasoning_content"), std::string::npos);
  const auto split = Post(kChatPath, kHello + R"(,"reasoning_format":"auto"})");
  EXPECT_EQ(Message(*split, "reasoning_content"), "I see.");
  EXPECT_EQ(Message(*split, "content"), "Yes.");
}

}  // namespace
}  // namespace baton::api
