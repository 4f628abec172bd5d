#include "src/cli/chat_line.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/regular_file.h"

namespace baton::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Kind = ChatStep::Kind;

class ChatLineTest : public testing::Test {
 protected:
  ChatStep Take(std::string_view line) { return TakeChatLine(line, session_); }

  ChatSession session_{ChatOptions{.url = *ParseHttpUrl("http://127.0.0.1:8080")}};
};

TEST_F(ChatLineTest, AQuestionIsAsked) {
  EXPECT_EQ(Take("  What is 1/2? \n").kind, Kind::kAsk);
  EXPECT_EQ(Take("  What is 1/2? \n").text, "What is 1/2?");
  EXPECT_EQ(Take("//help me").text, "/help me");
  EXPECT_EQ(Take("//help me").kind, Kind::kAsk);
  EXPECT_EQ(Take(" \t\n").kind, Kind::kNothing);
}

TEST_F(ChatLineTest, AnUnknownCommandIsNamedAndNeverAsked) {
  for (const char* line : {"/nosuch", "/etc/passwd what is it", "/", "/HELPP", "/\x01"}) {
    EXPECT_EQ(Take(line).kind, Kind::kComplain) << line;
  }
  EXPECT_THAT(Take("/nosuch now").text, AllOf(HasSubstr("\"/nosuch\""), HasSubstr("/help")));
  EXPECT_THAT(Take("/hlep").text, HasSubstr("did you mean /help?"));
  EXPECT_THAT(Take("/sytem x").text, HasSubstr("did you mean /system?"));
  for (const char* line : {"/", "/x", "/?!"}) {
    EXPECT_THAT(Take(line).text, testing::Not(HasSubstr("/?? "))) << line;
  }
  EXPECT_THAT(Take("/").text, testing::Not(HasSubstr("did you mean")));
}

TEST_F(ChatLineTest, ACommandMayBeInAnyCase) {
  EXPECT_EQ(Take("/EXIT").kind, Kind::kEnd);
  EXPECT_THAT(Take("/Help").text, HasSubstr("at most 100"));
  EXPECT_EQ(Take("/System Be BRIEF").kind, Kind::kSay);
  EXPECT_EQ(session_.options().system, "Be BRIEF");
  EXPECT_THAT(Take("/HLEP").text, AllOf(HasSubstr("\"/HLEP\""), HasSubstr("did you mean /help?")));
}

TEST_F(ChatLineTest, WhatIsNoUtf8IsNamedAndNeverAsked) {
  for (const char* line : {"\xff", "sch\xf6n", "//\xc3", "/system \xed\xa0\x80", "cut \xe2\x82"}) {
    EXPECT_EQ(Take(line).kind, Kind::kComplain) << line;
    EXPECT_THAT(Take(line).text, HasSubstr("is no UTF-8")) << line;
  }
  EXPECT_THAT(Take("sch\xf6n").text, HasSubstr("byte 0xf6 at place 3"));
  EXPECT_EQ(Take("sch\xc3\xb6n").kind, Kind::kAsk);
  EXPECT_EQ(session_.options().system, "");
}

TEST_F(ChatLineTest, TheCommandsOfAChat) {
  for (const char* line : {"/exit", "/quit", "/bye", " /exit "}) {
    EXPECT_EQ(Take(line).kind, Kind::kEnd) << line;
  }
  for (const char* command : {"/help", "/clear", "/system", "/set", "/show", "/exit"}) {
    EXPECT_THAT(Take("/help").text, HasSubstr(command));
  }
  EXPECT_EQ(Take("/system Be brief.  ").kind, Kind::kSay);
  EXPECT_EQ(session_.options().system, "Be brief.");
  EXPECT_THAT(Take("/show").text, HasSubstr("Be brief."));
  EXPECT_EQ(Take("/system").kind, Kind::kSay);
  EXPECT_EQ(session_.options().system, "");
  EXPECT_EQ(Take("/clear").kind, Kind::kSay);
}

TEST_F(ChatLineTest, SettingsHoldOrAreRefusedWithTheirRange) {
  EXPECT_EQ(Take("/set temperature 0.7").kind, Kind::kSay);
  EXPECT_EQ(session_.options().temperature, 0.7);
  EXPECT_EQ(Take("/set max-tokens 12").kind, Kind::kSay);
  EXPECT_EQ(session_.options().max_tokens, 12);
  EXPECT_EQ(Take("/set seed -1").kind, Kind::kSay);
  for (const char* line : {"/set temperature", "/set temperature 100.1", "/set temperature nan",
                           "/set temperature -1", "/set max-tokens 1.5", "/set max-tokens -1",
                           "/set seed x", "/set seed 99999999999999999999"}) {
    EXPECT_EQ(Take(line).kind, Kind::kComplain) << line;
  }
  EXPECT_EQ(Take("/set temperature 100").kind, Kind::kSay);
  EXPECT_EQ(Take("/set temperature 0.7").kind, Kind::kSay);
  EXPECT_THAT(Take("/set temperature 300").text,
              AllOf(HasSubstr("\"300\""), HasSubstr("[0, 100]")));
  EXPECT_THAT(Take("/set temprature 1").text, HasSubstr("did you mean temperature?"));
  EXPECT_EQ(session_.options().temperature, 0.7);
}

TEST_F(ChatLineTest, SplitNamesThePathOfTheNextQuestions) {
  EXPECT_EQ(Take("/split off").kind, Kind::kSay);
  EXPECT_EQ(session_.options().path, "local");
  EXPECT_THAT(Take("/show").text, HasSubstr("split        off"));
  EXPECT_EQ(Take("/split on").kind, Kind::kSay);
  EXPECT_EQ(session_.options().path, "disagg");
  for (const char* line : {"/split", "/split yes", "/split on off", "/split ON"}) {
    EXPECT_EQ(Take(line).kind, Kind::kComplain) << line;
  }
  EXPECT_EQ(session_.options().path, "disagg");
  EXPECT_EQ(Take("/split auto").kind, Kind::kSay);
  EXPECT_EQ(session_.options().path, "");
}

TEST_F(ChatLineTest, StatsAreSummedAndTheirLineIsASwitch) {
  EXPECT_THAT(Take("/stats").text, HasSubstr("0 answers"));
  EXPECT_EQ(Take("/stats off").kind, Kind::kSay);
  EXPECT_FALSE(session_.options().shows_stats);
  EXPECT_EQ(Take("/stats maybe").kind, Kind::kComplain);
  EXPECT_EQ(Take("/stats on").kind, Kind::kSay);
  EXPECT_TRUE(session_.options().shows_stats);
  EXPECT_EQ(Take("/trace").kind, Kind::kComplain) << "there is no answer yet";
}

TEST_F(ChatLineTest, AServerThatIsAwayHasNoModels) {
  session_.options().url = *ParseHttpUrl("http://127.0.0.1:1");
  session_.options().model = "before";
  for (const char* line : {"/model", "/model other"}) {
    EXPECT_EQ(Take(line).kind, Kind::kComplain) << line;
    EXPECT_THAT(Take(line).text, testing::StartsWith("/model: "));
  }
  EXPECT_EQ(session_.options().model, "before");
}

TEST_F(ChatLineTest, LinesBetweenMarksAreOneQuestion) {
  QuotedQuestion question(&session_);
  EXPECT_FALSE(question.Push("  \"\"\"one").has_value());
  EXPECT_FALSE(question.Push("/exit").has_value());
  EXPECT_TRUE(question.is_open());
  EXPECT_FALSE(question.Push("").has_value());
  const std::optional<ChatStep> step = question.Push("  two\"\"\" ");
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->kind, Kind::kAsk);
  EXPECT_EQ(step->text, "one\n/exit\n\n  two");
  EXPECT_FALSE(question.is_open());

  EXPECT_EQ(question.Push("\"\"\"/show\"\"\"")->text, "/show");
  EXPECT_EQ(question.Push("\"\"\"\"\"\"")->kind, Kind::kNothing);
  EXPECT_EQ(question.Push("/show")->kind, Kind::kSay) << "outside, a command is one";
  EXPECT_EQ(question.Push("\"\"\"a\"\"\" b")->kind, Kind::kComplain);
  EXPECT_FALSE(question.is_open());
  EXPECT_FALSE(question.Push("\"\"\"\xff").has_value());
  EXPECT_THAT(question.Push("\"\"\"")->text, HasSubstr("is no UTF-8"));
}

TEST_F(ChatLineTest, AQuestionOfManyLinesHasALimit) {
  QuotedQuestion question(&session_);
  EXPECT_FALSE(question.Push("\"\"\"").has_value());
  const std::string line(QuotedQuestion::kMaxBytes / 4, 'a');
  std::optional<ChatStep> step;
  for (int i = 0; i < 5 && !step.has_value(); ++i) step = question.Push(line);
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->kind, Kind::kComplain);
  EXPECT_EQ(question.Push("hi")->text, "hi") << "what was too long is forgotten";
}

class ChatFileTest : public ChatLineTest {
 protected:
  ChatFileTest() : folder_(::mkdtemp((testing::TempDir() + "/chat_XXXXXX").data())) {}
  ~ChatFileTest() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(File(name)) << text;
  }

  const std::string folder_;
  const std::vector<SessionMessage> talk_ = {{"user", "a\n\"b\""},
                                             {"assistant", "caf\u00e9 \U0001F600"}};
};

TEST_F(ChatFileTest, AConversationIsSavedAndGoesOn) {
  session_.options().system = "Be brief.";
  session_.SetMessages(talk_);
  EXPECT_EQ(Take("/save " + File("talk.json")).kind, Kind::kSay);
  EXPECT_EQ(Take("/save " + File("talk.json")).kind, Kind::kSay) << "its own file is replaced";
  session_.Clear();
  session_.options().system = "";
  EXPECT_THAT(Take("/load " + File("talk.json")).text, testing::StartsWith("2 messages of"));
  EXPECT_EQ(session_.messages(), talk_);
  EXPECT_EQ(session_.options().system, "Be brief.");
}

TEST_F(ChatFileTest, AnotherFileIsNeverReplaced) {
  Write("notes.txt", "mine");
  EXPECT_THAT(Take("/save " + File("notes.txt")).text, HasSubstr("stays as it is"));
  EXPECT_EQ(*ReadRegularFile(File("notes.txt"), 100), "mine");
  EXPECT_EQ(Take("/save").kind, Kind::kComplain);
  EXPECT_EQ(Take("/save " + File("no/such/folder")).kind, Kind::kComplain);
}

TEST_F(ChatFileTest, WhatIsNoConversationChangesNothing) {
  session_.SetMessages(talk_);
  const std::pair<const char*, const char*> cases[] = {
      {"", "is no conversation"},
      {"[]", "is no conversation"},
      {R"({"messages":[]})", "is no conversation"},
      {R"({"baton_chat":2,"messages":[]})", "another release"},
      {R"({"baton_chat":"1","messages":[]})", "another release"},
      {R"({"baton_chat":1})", "\"messages\""},
      {R"({"baton_chat":1,"messages":[7]})", "messages[0]"},
      {R"({"baton_chat":1,"messages":[{"role":"user","content":""},{"role":"tool"}]})",
       "messages[1]: \"role\""},
      {R"({"baton_chat":1,"messages":[{"role":"user"}]})", "messages[0]: \"content\""},
      {R"({"baton_chat":1,"messages":[{"role":"assistant","content":"a"}]})",
       "messages[0]: \"role\" is not \"user\""},
      {R"({"baton_chat":1,"messages":[{"role":"user","content":"a"},{"role":"user",)"
       R"("content":"b"}]})",
       "messages[1]: \"role\" is not \"assistant\""},
      {R"({"baton_chat":1,"messages":[{"role":"user","content":"a"}]})",
       "messages[0] is a question without an answer"},
      {R"({"baton_chat":1,"system":7,"messages":[]})", "\"system\" is no text"},
      {R"({"baton_chat":1,"system":null,"messages":[]})", "\"system\" is no text"},
  };
  for (const auto& [text, expected] : cases) {
    Write("talk.json", text);
    const ChatStep step = Take("/load " + File("talk.json"));
    EXPECT_EQ(step.kind, Kind::kComplain) << text;
    EXPECT_THAT(step.text, HasSubstr(expected)) << text;
  }
  EXPECT_THAT(Take("/load " + File("absent")).text, HasSubstr("no such file"));
  EXPECT_EQ(Take("/load").kind, Kind::kComplain);
  EXPECT_EQ(session_.messages(), talk_);
}

}  // namespace
}  // namespace baton::cli
