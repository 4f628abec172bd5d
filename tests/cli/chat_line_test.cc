#include "src/cli/chat_line.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

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

}  // namespace
}  // namespace baton::cli
