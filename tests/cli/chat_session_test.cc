#include "src/cli/chat_session.h"

#include <random>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(EventStreamParserTest, AnySplitGivesTheSameEvents) {
  const std::string stream =
      "data: {\"a\":1}\n\n: comment\n\ndata:no space\r\n\r\nevent: x\ndata: \n\ndata: [DONE]\n\n";
  const std::vector<std::string> expected = {"{\"a\":1}", "no space", "", "[DONE]"};
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    EventStreamParser parser;
    std::vector<std::string> events;
    size_t begin = 0;
    while (begin < stream.size()) {
      const size_t size = std::min<size_t>(1 + random() % 9, stream.size() - begin);
      parser.Push(std::string_view(stream).substr(begin, size),
                  [&events](std::string_view data) { events.emplace_back(data); });
      begin += size;
    }
    ASSERT_EQ(events, expected);
  }
}

TEST(DescribeAnswerTest, SaysPathBytesAndTransport) {
  AnswerStats stats;
  stats.completion_tokens = 11;
  stats.decode_ms = 100;
  stats.path = "disagg";
  stats.prefill_worker = "prefill-0";
  stats.decode_worker = "decode-0";
  stats.transport = "shm";
  stats.kv_bytes = 737280;
  const std::string line = DescribeAnswer(stats);
  EXPECT_NE(line.find("100.0 tok/s"), std::string::npos) << line;
  EXPECT_NE(line.find("path=disagg prefill-0 -> decode-0"), std::string::npos) << line;
  EXPECT_NE(line.find("KV 737280 bytes over shm"), std::string::npos) << line;
}

TEST(ChatSessionTest, NoServerIsAnErrorThatNamesTheAddress) {
  ChatOptions options;
  options.url = *ParseHttpUrl("http://127.0.0.1:1");
  ChatSession session(options);
  const StatusOr<AnswerStats> stats = session.Ask("hi", [](std::string_view) {});
  ASSERT_FALSE(stats.ok());
  EXPECT_NE(stats.status().message().find("127.0.0.1:1"), absl::string_view::npos);
}

}  // namespace
}  // namespace baton
