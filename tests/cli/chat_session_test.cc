#include "src/cli/chat_session.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "gtest/gtest.h"

#include "src/base/unique_fd.h"
#include "tests/test_seed.h"

namespace baton::cli {
namespace {

// A server on loopback that gives one fixed answer to one request and closes.
class OneAnswer {
 public:
  // `last` ends a request, or stands in its last bytes.
  explicit OneAnswer(std::string answer, std::string last = "\"stream_options\"")
      : answer_(std::move(answer)), last_(std::move(last)) {
    listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener_.get(), raw, size), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener_.get(), raw, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~OneAnswer() { thread_.join(); }

  ChatOptions Options() const {
    ChatOptions options;
    options.url = *ParseHttpUrl("http://127.0.0.1:" + std::to_string(port_));
    return options;
  }

 private:
  void Serve() {
    const UniqueFd connection(::accept(listener_.get(), nullptr, nullptr));
    // The whole request is read first: closing with bytes unread would reset the connection.
    std::string request;
    char piece[4096];
    while (request.find(last_) == std::string::npos) {
      const ssize_t n = ::recv(connection.get(), piece, sizeof(piece), 0);
      if (n <= 0) return;
      request.append(piece, static_cast<size_t>(n));
    }
    std::string_view rest = answer_;
    while (!rest.empty()) {
      const ssize_t n = ::send(connection.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      rest.remove_prefix(static_cast<size_t>(n));
    }
  }

  const std::string answer_;
  const std::string last_;
  UniqueFd listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

StatusOr<AnswerStats> AskServerThatSays(const std::string& status, const std::string& body,
                                        std::string* text = nullptr) {
  const OneAnswer server("HTTP/1.1 " + status + "\r\nConnection: close\r\n\r\n" + body);
  ChatSession session(server.Options());
  return session.Ask("hi", [text](std::string_view piece) {
    if (text != nullptr) text->append(piece);
  });
}

TEST(ChatSessionTest, ErrorsOfOtherServersAreShownWhateverTheirShape) {
  const struct {
    std::string status;
    std::string body;
    std::string expected;
  } cases[] = {
      {"200 OK", "data: {\"error\":\"out of luck\"}\n\n", "out of luck"},
      {"200 OK", "data: {\"error\":{\"message\":\"out of luck\"}}\n\n", "out of luck"},
      {"200 OK", "data: {\"error\":{\"message\":null}}\n\n", "the server failed"},
      {"200 OK", "data: {\"error\":[1]}\n\n", "the server failed"},
      {"200 OK", "data: [1]\n\n", "no JSON object"},
      {"500 No", "{\"error\":\"out of luck\"}", "500: out of luck"},
      {"500 No", "{\"error\":{\"message\":7}}", "500: {"},
      {"500 No", "out of luck", "500: out of luck"},
      {"500 No", "out\x1b[2Jof\nluck\r\n", "500: out?[2Jof?luck"},
      // Cut within the second half of a character of two bytes.
      {"500 No", std::string(199, 'a') + "\xC3\xA9tail", "a\uFFFD"},
  };
  for (const auto& c : cases) {
    const StatusOr<AnswerStats> stats = AskServerThatSays(c.status, c.body);
    ASSERT_FALSE(stats.ok()) << c.body;
    EXPECT_NE(stats.status().message().find(c.expected), absl::string_view::npos)
        << stats.status() << " for " << c.body;
    EXPECT_NE(stats.status().message().back(), '?') << stats.status();
    EXPECT_EQ(stats.status().message().find("tail"), absl::string_view::npos) << stats.status();
  }
}

TEST(ChatSessionTest, ThoughtsAreNotPartOfTheAnswer) {
  const auto event = [](const std::string& delta) {
    return "data: {\"choices\":[{\"delta\":" + delta + "}]}\n\n";
  };
  const OneAnswer server("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" +
                         event("{\"role\":\"assistant\",\"content\":\"\"}") +
                         event("{\"reasoning_content\":\"Hm\"}") +
                         event("{\"reasoning_content\":\".\",\"content\":\"Ye\"}") +
                         event("{\"content\":\"s\"}") + "data: [DONE]\n\n");
  ChatOptions options = server.Options();
  std::string thoughts;
  std::string text;
  options.on_thought = [&thoughts](std::string_view piece) { thoughts.append(piece); };
  ChatSession session(options);
  const auto stats = session.Ask("hi", [&text](std::string_view piece) { text.append(piece); });
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(thoughts, "Hm.");
  EXPECT_EQ(text, "Yes");
  EXPECT_GT(stats->ttft_ms, 0) << "a thought is the first text";
}

TEST(ChatSessionTest, AServerThatMakesNoPromptsSaysWhy) {
  const struct {
    std::string status;
    std::string body;
    std::string expected;
  } cases[] = {
      {"400 No", R"({"error":{"param":"messages","message":"no chat\ntemplate"}})",
       "no chat?template"},
      {"400 No", R"({"error":{"param":"model","message":"name one of a, b"}})", ""},
      {"400 No", R"({"error":"bad"})", ""},
      {"401 No", R"({"error":{"param":"messages","message":"a key is missing"}})", ""},
      {"404 No", "no such page", ""},
      {"200 OK", R"({"prompt":"<user>Hello"})", ""},
  };
  for (const auto& c : cases) {
    const OneAnswer server("HTTP/1.1 " + c.status + "\r\nConnection: close\r\n\r\n" + c.body,
                           "\"role\":\"user\"}]");
    EXPECT_EQ(ChatSession(server.Options()).WhyNoChats(10'000), c.expected) << c.body;
  }
  ChatOptions away;
  away.url = *ParseHttpUrl("http://127.0.0.1:1");
  EXPECT_EQ(ChatSession(away).WhyNoChats(10'000), "");
}

TEST(ChatSessionTest, ARefusalIsOneSentenceWithItsWayOut) {
  const struct {
    std::string status;
    std::string body;
    std::string expected;
  } cases[] = {
      {"404 No", R"({"error":{"param":"model","message":"'model': not served. There is 'm'."}})",
       "the server answered 404: 'model': not served. There is 'm'; --model NAME chooses one"},
      {"401 No", R"({"error":{"message":"No API key was given."}})",
       "the server answered 401: No API key was given; --api-key-env NAME names the variable that "
       "holds the key"},
      {"400 No", R"({"error":{"param":"seed","message":"It is wrong."}})",
       "the server answered 400: It is wrong."},
  };
  for (const auto& c : cases) {
    const Status refused = AskServerThatSays(c.status, c.body).status();
    EXPECT_EQ(std::string(refused.message()), c.expected);
  }
}

TEST(ChatSessionTest, TheServersAccountIsKeptAndSummed) {
  const OneAnswer server(
      "HTTP/1.1 200 OK\r\nX-Request-Id: r-7\r\nConnection: close\r\n\r\n"
      "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"
      "data: {\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,"
      "\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":8}},"
      "\"timings\":{\"path\":\"local\",\"prefill_worker\":\"decode-0\","
      "\"decode_worker\":\"decode-0\",\"prefill_ms\":30,"
      "\"decode_ms\":10,\"kv_bytes\":64}}\n\ndata: [DONE]\n\n");
  ChatSession session(server.Options());
  ASSERT_TRUE(session.Ask("hi", [](std::string_view /*piece*/) {}).ok());
  ASSERT_TRUE(session.last().has_value());
  const AnswerStats& last = *session.last();
  EXPECT_EQ(last.request_id, "r-7");
  EXPECT_EQ(last.model, "m");
  EXPECT_NE(last.usage_json.find("\"cached_tokens\":8"), std::string::npos) << last.usage_json;
  EXPECT_EQ(session.totals().num_answers, 1);
  EXPECT_EQ(session.totals().prompt_tokens, 9);
  EXPECT_EQ(session.totals().cached_tokens, 8);
  EXPECT_EQ(session.totals().completion_tokens, 4);
  EXPECT_EQ(session.totals().kv_bytes, 64);
  const std::string stages = DescribeStages(last);
  EXPECT_NE(stages.find("request r-7: path local, decode-0, 8 of 9"), std::string::npos) << stages;
  EXPECT_NE(stages.find("30.0 ms  " + std::string(30, '#') + "\n"), std::string::npos) << stages;
}

TEST(ChatSessionTest, AnInterruptEndsAnAnswerThatNeverPauses) {
  std::string body;
  for (int i = 0; i < 200'000; ++i) {
    body += "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
  }
  const OneAnswer server("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body +
                         "data: [DONE]\n\n");
  ChatOptions options = server.Options();
  size_t num_pieces = 0;
  options.is_interrupted = [&num_pieces] { return num_pieces >= 10; };
  ChatSession session(options);
  const auto stats = session.Ask("hi", [&](std::string_view /*piece*/) { ++num_pieces; });
  EXPECT_TRUE(absl::IsCancelled(stats.status())) << stats.status();
  EXPECT_LT(num_pieces, 20'000u) << "at most what one read brought";
  ASSERT_EQ(session.messages().size(), 2u) << "what came stays in the conversation";
  EXPECT_EQ(session.messages()[1].content.size(), num_pieces);
}

TEST(ChatSessionTest, MembersOfOtherTypesCountAsMissing) {
  std::string text;
  const StatusOr<AnswerStats> stats = AskServerThatSays(
      "200 OK",
      "data: {\"choices\":[7,null,{\"delta\":null},{\"delta\":\"x\"},"
      "{\"delta\":{\"content\":\"hello\"},\"finish_reason\":3}],\"error\":null}\n\n"
      "data: {\"choices\":{},\"usage\":{\"prompt_tokens\":null,\"completion_tokens\":\"4\"},"
      "\"timings\":{\"path\":null,\"kv_bytes\":null,\"queue_ms\":\"1\",\"decode_ms\":2}}\n\n"
      "data: [DONE]\n\n",
      &text);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(text, "hello");
  EXPECT_EQ(stats->finish_reason, "");
  EXPECT_EQ(stats->completion_tokens, 0);
  EXPECT_EQ(stats->kv_bytes, 0);
  EXPECT_EQ(stats->decode_ms, 2.0);
}

TEST(ChatSessionTest, AnEventWithoutEndIsRefused) {
  const StatusOr<AnswerStats> stats = AskServerThatSays(
      "200 OK", "data: " + std::string(EventStreamParser::kMaxLineBytes + (1 << 20), 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(stats.status())) << stats.status();
}

TEST(EventStreamParserTest, AnySplitGivesTheSameEvents) {
  const std::string stream =
      "data: {\"a\":1}\n\n: comment\n\ndata:no space\r\n\r\nevent: x\ndata: \n\ndata: [DONE]\n\n";
  const std::vector<std::string> expected = {"{\"a\":1}", "no space", "", "[DONE]"};
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    EventStreamParser parser;
    std::vector<std::string> events;
    size_t begin = 0;
    while (begin < stream.size()) {
      const size_t size = std::min<size_t>(1 + random() % 9, stream.size() - begin);
      ASSERT_TRUE(parser
                      .Push(std::string_view(stream).substr(begin, size),
                            [&events](std::string_view data) { events.emplace_back(data); })
                      .ok());
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

// The second token comes with the first step; of a tiny model nothing may be left after it.
TEST(DescribeAnswerTest, TheRateCountsTheFirstStepAndIsLeftOutWhereThereIsNone) {
  AnswerStats stats;
  stats.completion_tokens = 2;
  stats.first_step_ms = 4;
  EXPECT_NE(DescribeAnswer(stats).find("| 250.0 tok/s |"), std::string::npos)
      << DescribeAnswer(stats);
  stats.first_step_ms = 0;
  EXPECT_EQ(DescribeAnswer(stats).find("tok/s"), std::string::npos);
  stats.completion_tokens = 1;
  stats.decode_ms = 5;
  EXPECT_EQ(DescribeAnswer(stats).find("tok/s"), std::string::npos);
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
}  // namespace baton::cli
