#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/loadgen/http_reply.h"
#include "src/loadgen/quantity.h"
#include "src/loadgen/sse_parser.h"
#include "src/loadgen/stream_answer.h"
#include "tests/test_seed.h"

namespace baton::loadgen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Events of `text` cut into pieces at random (or in one piece without `random`).
StatusOr<std::vector<std::string>> Events(std::string_view text, TestRandom* random = nullptr) {
  SseParser parser;
  std::vector<std::string> events;
  while (!text.empty()) {
    const size_t take =
        random == nullptr
            ? text.size()
            : random->Between(1, std::min<uint32_t>(7, static_cast<uint32_t>(text.size())));
    BATON_RETURN_IF_ERROR(parser.Push(
        text.substr(0, take), [&events](std::string_view event) { events.emplace_back(event); }));
    text.remove_prefix(take);
  }
  return events;
}

TEST(SseParserTest, FollowsTheStandard) {
  EXPECT_THAT(*Events("data: a\n\ndata:b\r\n\r\ndata: c\r\r"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(*Events("data: one\ndata: two\n\n"), ElementsAre("one\ntwo"));
  EXPECT_THAT(*Events("data\n\ndata:  two spaces\n\n"), ElementsAre("", " two spaces"));
  EXPECT_THAT(*Events("\xEF\xBB\xBF"
                      "data: bom\n\n"),
              ElementsAre("bom"));
  EXPECT_THAT(*Events(": comment\nevent: x\nid: 3\nretry: 5\nfoo: bar\ndata: d\n\n"),
              ElementsAre("d"));
  // An event without an empty line after it is not complete; empty lines alone are no event.
  EXPECT_THAT(*Events("\n\n\ndata: cut\n"), IsEmpty());
}

TEST(SseParserTest, EventsDoNotDependOnTheCuts) {
  const std::string text =
      "\xEF\xBB\xBF"
      ": hello\r\ndata: {\"a\":1}\r\n\r\ndata: x\ndata: y\n\nid: 1\rdata: z\r\rdata: "
      "[DONE]\r\n\r\n";
  const std::vector<std::string> whole = *Events(text);
  ASSERT_EQ(whole.size(), 4u);
  for (const uint64_t seed : TestSeeds(20)) {
    TestRandom random(seed);
    EXPECT_EQ(*Events(text, &random), whole) << "seed " << seed;
  }
}

TEST(SseParserTest, WhatIsNoFieldIsAnError) {
  EXPECT_THAT(std::string(Events("{\"error\":\"overloaded\"}\n").status().message()),
              HasSubstr("no field: '{\"error\""));
  EXPECT_FALSE(Events("data: a\n\n<html>\n").ok());
  EXPECT_FALSE(Events("12: x\n").ok());
  SseParser parser;
  const std::string large(SseParser::kMaxEventBytes + 1, 'x');
  EXPECT_EQ(parser.Push(large, [](std::string_view) {}).code(), StatusCode::kResourceExhausted);
}

TEST(StreamAnswerTest, BytesBehindTheEndDoNotMatterHoweverTheyArrive) {
  const std::string text = "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n";
  for (const bool at_once : {true, false}) {
    StreamAnswer answer;
    answer.Begin(200, "text/event-stream");
    const auto ignore = [](std::string_view) {};
    EXPECT_TRUE(answer.Push(at_once ? text + "<html>\n" : text, ignore).ok());
    EXPECT_TRUE(answer.Push("<html>\n", ignore).ok());
    EXPECT_EQ(answer.Finish(OkStatus()).outcome, RequestOutcome::kOk) << at_once;
  }
}

// An answer and how much of the input it took.
struct Read {
  HttpReply reply;
  std::string body;
  size_t used = 0;
};

StatusOr<Read> ReadReply(std::string_view text, TestRandom* random = nullptr) {
  Read read;
  while (read.used < text.size() && !read.reply.done()) {
    const std::string_view rest = text.substr(read.used);
    const size_t take =
        random == nullptr ? rest.size() : std::min<size_t>(rest.size(), random->Between(1, 9));
    BATON_ASSIGN_OR_RETURN(const size_t used,
                           read.reply.Push(rest.substr(0, take), [&read](std::string_view piece) {
                             read.body += piece;
                             return OkStatus();
                           }));
    read.used += used;
  }
  return read;
}

TEST(HttpReplyTest, ReadsAllThreeFramings) {
  for (const uint64_t seed : TestSeeds(10)) {
    TestRandom random(seed);
    const Read length =
        *ReadReply("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP", &random);
    EXPECT_EQ(length.body, "hello");
    EXPECT_TRUE(length.reply.done() && length.reply.keep_alive());
    EXPECT_EQ(length.used, 43u - 0u);
    const Read chunked = *ReadReply(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nContent-Type: Text/Event-Stream; "
        "charset=utf-8\r\n\r\n5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n",
        &random);
    EXPECT_EQ(chunked.body, "hello0123456789");
    EXPECT_EQ(chunked.reply.content_type(), "text/event-stream");
    EXPECT_TRUE(chunked.reply.done() && chunked.reply.keep_alive());
    Read until_end = *ReadReply("HTTP/1.0 503 Busy\n\nsorry", &random);
    EXPECT_EQ(until_end.body, "sorry");
    EXPECT_EQ(until_end.reply.status(), 503);
    EXPECT_FALSE(until_end.reply.done());
    EXPECT_TRUE(until_end.reply.PushEnd().ok());
    EXPECT_FALSE(until_end.reply.keep_alive());
  }
}

TEST(HttpReplyTest, InterimAnswersAreSkippedAndCloseIsHeard) {
  const Read read = *ReadReply(
      "HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 204 None\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(read.reply.status(), 204);
  EXPECT_TRUE(read.reply.done());
  EXPECT_FALSE(read.reply.keep_alive());
}

TEST(HttpReplyTest, WhatIsNotHttpIsAnError) {
  for (const char* text : {
           "hello\r\n",
           "HTTP/2 200\r\n",
           "HTTP/1.1 2x0 OK\r\n",
           "HTTP/1.1 200 OK\r\nno colon\r\n",
           "HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
       }) {
    EXPECT_EQ(ReadReply(text).status().code(), StatusCode::kDataLoss) << text;
  }
  const std::string long_header = "HTTP/1.1 200 OK\r\nX: " + std::string(70'000, 'x');
  EXPECT_EQ(ReadReply(long_header).status().code(), StatusCode::kDataLoss);
  Read cut = *ReadReply("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel");
  EXPECT_THAT(std::string(cut.reply.PushEnd().message()), HasSubstr("in the middle"));
  HttpReply nothing;
  EXPECT_THAT(std::string(nothing.PushEnd().message()), HasSubstr("before the answer"));
}

TEST(QuantityTest, ReadsUnitsAndRefusesTheRest) {
  EXPECT_EQ(*ParseTimeUs("30ms"), 30'000);
  EXPECT_EQ(*ParseTimeUs("1.5s"), 1'500'000);
  EXPECT_EQ(*ParseTimeUs("2m"), 120'000'000);
  EXPECT_EQ(*ParseTimeUs("0s"), 0);
  for (const char* text : {"", "30", "ms", "-1s", "1 s", "1e400s", "nans", "5d"}) {
    EXPECT_FALSE(ParseTimeUs(text).ok()) << text;
  }
  EXPECT_EQ(*ParseShare("99%"), 0.99);
  EXPECT_EQ(*ParseShare("0.5"), 0.5);
  for (const char* text : {"", "%", "101%", "-1%", "1.5"}) {
    EXPECT_FALSE(ParseShare(text).ok()) << text;
  }
  EXPECT_EQ(FormatUs(830), "830 us");
  EXPECT_EQ(FormatUs(12'300), "12.30 ms");
  EXPECT_EQ(FormatUs(4'560'000), "4.56 s");
}

}  // namespace
}  // namespace baton::loadgen
