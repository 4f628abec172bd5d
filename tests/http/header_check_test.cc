#include "src/http/header_check.h"

#include <string>
#include <string_view>

#include "gtest/gtest.h"

#include "src/http/http_exchange.h"

namespace baton::http {
namespace {

using State = HeaderScan::State;

HeaderScan Scan(std::string_view data, size_t max_bytes = 1000) {
  size_t scanned = 0;
  return ScanHeader(data, max_bytes, &scanned);
}

TEST(ScanHeaderTest, FindsTheEndHoweverItArrives) {
  const std::string message = "GET / HTTP/1.1\r\nHost: a\r\n\r\nbody";
  const size_t end = message.size() - 4;
  for (size_t step = 1; step <= message.size(); ++step) {
    size_t scanned = 0;
    for (size_t size = step; size < end; size += step) {
      ASSERT_EQ(ScanHeader(message.substr(0, size), 1000, &scanned).state, State::kNeedMore);
    }
    const HeaderScan scan = ScanHeader(message, 1000, &scanned);
    ASSERT_EQ(scan.state, State::kComplete);
    ASSERT_EQ(scan.header_bytes, end);
  }
}

TEST(ScanHeaderTest, SkipsEmptyLinesBeforeTheRequest) {
  EXPECT_EQ(Scan("\r\n\r\n").state, State::kNeedMore);
  EXPECT_EQ(Scan("\r\n\r\n\r\nGET / HTTP/1.1\r\n\r\n").state, State::kComplete);
  EXPECT_EQ(Scan("X\r\n\r\n").state, State::kComplete);
}

TEST(ScanHeaderTest, RefusesWhatHasTwoReadings) {
  for (const std::string_view bad :
       {"GET / HTTP/1.1\nHost: a\n\n", "GET / HTTP/1.1\r\nHost: a\n\r\n", "GET / HTTP/1.1\rX",
        "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "GET / HTTP/1.1\r\nA: b\r\n\tc\r\n\r\n", "\n",
        "GET / HTTP/1.1\r\nA: \x01\r\n\r\n", "GET / HTTP/1.1\r\nA: \x7f\r\n\r\n",
        " GET / HTTP/1.1"}) {
    const HeaderScan scan = Scan(bad);
    EXPECT_EQ(scan.state, State::kRefused) << bad;
    EXPECT_EQ(scan.refusal.status, 400) << bad;
  }
  EXPECT_EQ(Scan(std::string_view("GET /\0 HTTP/1.1", 15)).state, State::kRefused);
  EXPECT_EQ(Scan("GET / HTTP/1.1\r\nA: \xc3\xa9\tb\r\n\r\n").state, State::kComplete);
}

TEST(ScanHeaderTest, ATlsHandshakeIsCalledOne) {
  for (const std::string_view bytes : {"\x16\x03\x01\x02", "\x16"}) {
    EXPECT_NE(Scan(bytes).refusal.message.find("TLS"), std::string_view::npos);
  }
}

TEST(RawFieldTest, IsThatOfACompleteLine) {
  constexpr std::string_view kHeader = "GET / HTTP/1.1\r\nA:  x \r\nB:\r\nC: cut";
  EXPECT_EQ(RawField(kHeader, "a"), "x");
  EXPECT_EQ(RawField(kHeader, "B"), "");
  EXPECT_EQ(RawField(kHeader, "C"), std::nullopt);
}

TEST(RawPathTest, IsThatOfACompleteRequestLine) {
  EXPECT_EQ(RawPath("POST /api/chat?a=b HTTP/1.1\r\nHost"), "/api/chat");
  EXPECT_EQ(RawPath("\r\nGET http://h/v1/messages HTTP/1.1\r\n"), "/v1/messages");
  for (const char* header : {"", "\r\n", "POST /api/chat HTTP/1.1", "POST /api/chat\r\n",
                             "POST\r\n", "POST api/chat HTTP/1.1\r\n"}) {
    EXPECT_EQ(RawPath(header), "") << header;
  }
}

TEST(ScanHeaderTest, EndlessHeaderIs431AtTheLimit) {
  EXPECT_EQ(Scan(std::string(99, 'a'), 100).state, State::kNeedMore);
  const HeaderScan scan = Scan(std::string(100, 'a'), 100);
  EXPECT_EQ(scan.state, State::kRefused);
  EXPECT_EQ(scan.refusal.status, 431);
  EXPECT_EQ(Scan(std::string(8000, '\r').insert(0, "x"), 10'000).refusal.status, 400);
}

// Header fields, the HTTP/1.x minor version and the expected refusal (0 = none).
struct FramingCase {
  HttpHeaders headers;
  int minor_version;
  int status;
};

TEST(CheckFramingTest, OneMeaningOrRefused) {
  const FramingCase cases[] = {
      {{{"Host", "a"}}, 1, 0},
      {{{"Host", ""}}, 1, 0},
      {{{"hOsT", "[::1]:80"}}, 1, 0},
      {{}, 0, 0},
      {{}, 1, 400},
      {{{"Host", "a"}, {"host", "a"}}, 1, 400},
      {{{"Host", "a b"}}, 1, 400},
      {{{"Host", "a/b"}}, 1, 400},
      {{{"Host", "a"}, {"Content-Length", "5"}}, 1, 0},
      {{{"Host", "a"}, {"Content-Length", "5"}, {"Content-Length", "5"}}, 1, 400},
      {{{"Host", "a"}, {"Content-Length", "5, 5"}}, 1, 400},
      {{{"Host", "a"}, {"Content-Length", "-1"}}, 1, 400},
      {{{"Host", "a"}, {"Content-Length", "+1"}}, 1, 400},
      {{{"Host", "a"}, {"Content-Length", "0x1"}}, 1, 400},
      {{{"Host", "a"}, {"Content-Length", ""}}, 1, 400},
      {{{"Host", "a"}, {"Content-Length", "18446744073709551616"}}, 1, 400},
      {{{"Host", "a"}, {"Transfer-Encoding", "Chunked"}}, 1, 0},
      {{{"Host", "a"}, {"Transfer-Encoding", "chunked"}, {"Content-Length", "1"}}, 1, 400},
      {{{"Host", "a"}, {"Transfer-Encoding", "gzip"}}, 1, 501},
      {{{"Host", "a"}, {"Transfer-Encoding", "gzip, chunked"}}, 1, 501},
      {{{"Host", "a"}, {"Transfer-Encoding", "chunked, chunked"}}, 1, 501},
      {{{"Host", "a"}, {"Transfer-Encoding", "chunked"}, {"Transfer-Encoding", "chunked"}}, 1, 501},
      {{{"Host", "a"}, {"Transfer-Encoding", "xchunked"}}, 1, 501},
      {{{"Transfer-Encoding", "chunked"}}, 0, 400},
      {{{"Host", "a"}, {"Expect", "100-Continue"}}, 1, 0},
      {{{"Host", "a"}, {"Expect", "200-ok"}}, 1, 417},
  };
  for (const FramingCase& c : cases) {
    RequestFraming framing;
    const auto refusal = CheckFraming(c.headers, c.minor_version, &framing);
    std::string shown;
    for (const auto& [name, value] : c.headers.fields()) shown += name + ": " + value + "; ";
    EXPECT_EQ(refusal ? refusal->status : 0, c.status) << shown;
  }
}

TEST(CheckFramingTest, KeepAliveFollowsVersionAndConnection) {
  const auto keeps = [](HttpHeaders headers, int minor_version) {
    headers.Add("Host", "a");
    RequestFraming framing;
    EXPECT_FALSE(CheckFraming(headers, minor_version, &framing).has_value());
    return framing.keep_alive;
  };
  EXPECT_TRUE(keeps({}, 1));
  EXPECT_FALSE(keeps({{"Connection", "close"}}, 1));
  EXPECT_FALSE(keeps({{"Connection", "foo , CLOSE"}}, 1));
  EXPECT_FALSE(keeps({}, 0));
  EXPECT_TRUE(keeps({{"Connection", "Keep-Alive"}}, 0));
  EXPECT_FALSE(keeps({{"Connection", "keep-alive"}, {"Connection", "close"}}, 0));
}

TEST(SplitTargetTest, Forms) {
  const auto split = [](std::string_view target) -> std::string {
    const std::optional<TargetParts> parts = SplitTarget(target);
    return parts ? parts->path + "|" + parts->query : "refused";
  };
  EXPECT_EQ(SplitTarget("http://host:1/a?b")->authority, "host:1");
  EXPECT_EQ(SplitTarget("http://host?q")->authority, "host");
  EXPECT_EQ(SplitTarget("/http://host")->authority, "");
  EXPECT_EQ(split("/v1/models"), "/v1/models|");
  EXPECT_EQ(split("/a?b=c?d"), "/a|b=c?d");
  EXPECT_EQ(split("http://host:1/a?b"), "/a|b");
  EXPECT_EQ(split("HTTP://host"), "/|");
  EXPECT_EQ(split("http://host?q"), "/|q");
  EXPECT_EQ(split("*"), "*|");
  EXPECT_EQ(split("host:443"), "refused");
  EXPECT_EQ(split("http:///a"), "refused");
  EXPECT_EQ(split("ftp://a/b"), "refused");
  EXPECT_EQ(split(""), "refused");
}

TEST(HttpDateTest, FixedFormat) { EXPECT_EQ(HttpDate(784111777), "Sun, 06 Nov 1994 08:49:37 GMT"); }

}  // namespace
}  // namespace baton::http
