#include <signal.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/hex.h"
#include "src/base/host_port.h"
#include "src/base/log.h"
#include "src/base/nearest_name.h"
#include "src/base/percent_text.h"
#include "src/base/quoted_text.h"
#include "src/base/signal_text.h"
#include "src/base/size_text.h"
#include "src/base/trimmed_text.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// A size as text and the bytes it means.
struct SizeCase {
  std::string_view text;
  uint64_t bytes;
};

TEST(SignalTextTest, NamesTheSignal) {
  EXPECT_EQ(SignalText(SIGABRT), "signal 6 (SIGABRT)");
  EXPECT_EQ(SignalText(SIGKILL), "signal 9 (SIGKILL)");
  EXPECT_EQ(SignalText(SIGRTMIN + 6), fmt::format("signal {}", SIGRTMIN + 6));
}

TEST(HostPortTest, ReadsHostAndPort) {
  const struct {
    std::string_view text;
    std::string_view host;
    uint16_t port;
  } cases[] = {{"127.0.0.1:8080", "127.0.0.1", 8080},
               {"node-3.local:0", "node-3.local", 0},
               {"[::1]:65535", "::1", 65535},
               {"h:00080", "h", 80}};
  for (const auto& c : cases) {
    const StatusOr<HostPort> address = ParseHostPort(c.text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->host, c.host);
    EXPECT_EQ(address->port, c.port);
  }
}

TEST(HostPortTest, RefusesEverythingElseByName) {
  for (const std::string_view text :
       {"",       ":",       ":80",     "h",      "1.2.3",  "h:",          "h:x",
        "h:-1",   "h:65536", "h:80x",   "h: 80",  "h:8 0",  "::1:80",      "[::1]",
        "[]:80",  "[::1:80", "::1]:80", "a b:80", "h\n:80", "http://h:80", "/h:80",
        "h/p:80", "h?q:80",  "h#f:80",  "u@h:80", "h,g:80", "h\\g:80"}) {
    const StatusOr<HostPort> address = ParseHostPort(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(address.status().message()).find("'" + std::string(text) + "'"),
              std::string::npos);
  }
}

TEST(HostPortTest, SaysHowTheAddressIsWritten) {
  const std::pair<const char*, const char*> cases[] = {
      {"::1:8080", "an IPv6 host goes into brackets: [::1]:8080"},
      {"fe80::1:80", "an IPv6 host goes into brackets: [fe80::1]:80"},
      {"::1", "an IPv6 host goes into brackets: [::1]:PORT"},
      {"2001:db8::1", "an IPv6 host goes into brackets: [2001:db8::1]:PORT"},
      {"[::1]", "the port is missing: [::1]:PORT"},
      {"localhost", "the port is missing: localhost:PORT"},
      {"8080", "the host is missing, as in 127.0.0.1:8080"},
      {":8080", "the host is missing: 127.0.0.1:8080, or 0.0.0.0:8080 for all addresses"},
      {"*:8080", "for all addresses write 0.0.0.0:8080, or [::]:8080"},
      {"[*]:x", "for all addresses write 0.0.0.0:PORT, or [::]:PORT"},
      {"http://127.0.0.1:80/v1", "write 127.0.0.1:80 without a scheme or path"},
      {"h/v1:80", "the host 'h/v1' has one of /\\?#@,"},
      {"h:65536", "a port from 0 to 65535"}};
  for (const auto& [text, form] : cases) {
    EXPECT_NE(ParseHostPort(text).status().message().find(form), std::string::npos)
        << ParseHostPort(text).status();
  }
}

TEST(SizeTextTest, ReadsWhatPeopleWrite) {
  constexpr uint64_t kGiB = 1ull << 30;
  for (const SizeCase& c :
       {SizeCase{"0", 0}, SizeCase{"4096", 4096}, SizeCase{"4096B", 4096},
        SizeCase{"512M", kGiB / 2}, SizeCase{"512m", kGiB / 2}, SizeCase{"2GiB", 2 * kGiB},
        SizeCase{"2gb", 2 * kGiB}, SizeCase{"1.5GiB", kGiB + kGiB / 2}, SizeCase{"64 KiB", 65536},
        SizeCase{"1T", 1024 * kGiB}, SizeCase{".5K", 512}, SizeCase{"64Mi", kGiB / 16},
        SizeCase{"1.5Gi", kGiB + kGiB / 2}, SizeCase{"8 Ki", 8192}, SizeCase{"1Ti", 1024 * kGiB},
        SizeCase{"512mi", kGiB / 2}, SizeCase{"1Ei", 1ull << 60}, SizeCase{"2PB", 1ull << 51},
        SizeCase{"9223372036854775808", 1ull << 63}}) {
    const StatusOr<uint64_t> bytes = ParseSize(c.text);
    ASSERT_TRUE(bytes.ok()) << c.text << ": " << bytes.status();
    EXPECT_EQ(*bytes, c.bytes) << c.text;
  }
}

TEST(SizeTextTest, RefusesTheRestAndNamesIt) {
  for (const std::string_view text : {"",
                                      "GiB",
                                      "-1",
                                      "+1",
                                      "1.2.3",
                                      "1XB",
                                      "1 G B",
                                      "1GiBs",
                                      "0x10",
                                      "1e9",
                                      "inf",
                                      "nan",
                                      "9223372036854775809",
                                      "99999999T",
                                      ".",
                                      "1Bi",
                                      "1iB",
                                      "1Mib2",
                                      "8Ei2",
                                      "16E"}) {
    const StatusOr<uint64_t> bytes = ParseSize(text);
    ASSERT_FALSE(bytes.ok()) << text << " read as " << *bytes;
    EXPECT_EQ(bytes.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(bytes.status().message()), HasSubstr(std::string(text)));
  }
}

TEST(SizeTextTest, WritesShortNumbers) {
  EXPECT_EQ(FormatSize(0), "0 B");
  EXPECT_EQ(FormatSize(1023), "1023 B");
  EXPECT_EQ(FormatSize(1024), "1 KiB");
  EXPECT_EQ(FormatSize(1536), "1.5 KiB");
  EXPECT_EQ(FormatSize((1ull << 20) - 1), "1 MiB");
  EXPECT_EQ(FormatSize(11'796'480), "11.2 MiB");
  EXPECT_EQ(FormatSize(2ull << 30), "2 GiB");
  EXPECT_EQ(FormatSize(~0ull), "16777216 TiB");
}

TEST(NearestNameTest, DistanceCountsEditsAndSwaps) {
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("abc", "abc"), 0u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("decode", "deocde"), 1u);
}

TEST(NearestNameTest, SuggestsOnlyWhatIsNear) {
  const std::vector<std::string> flags = {"--kv-memory", "--kv-dtype", "--threads", "--listen"};
  EXPECT_EQ(NearestName("--kv-memroy", flags), "--kv-memory");
  EXPECT_EQ(NearestName("--thread", flags), "--threads");
  EXPECT_EQ(NearestName("--colour", flags), "");
  EXPECT_EQ(NearestName("", flags), "");
  EXPECT_EQ(NearestName(std::string(100'000, 'x'), flags), "");
}

TEST(NearestNameTest, KnowsWhatAnAbbreviationStandsFor) {
  const std::vector<std::string> flags = {"--kv-memory", "--max-context", "--max-queue",
                                          "--kv-dtype"};
  EXPECT_EQ(NearestName("--kv-mem", flags), "--kv-memory");
  EXPECT_EQ(NearestName("--max-ctx", flags), "--max-context");
  EXPECT_EQ(NearestName("--max", flags), "--max-queue") << "the shortest";
  EXPECT_EQ(NearestName("--ctx-max", flags), "") << "in another order";
  EXPECT_EQ(NearestName("--k", flags), "") << "it stands for anything";
}

TEST(HexTest, RoundTripsEveryByte) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  const std::string text = HexFromBytes(bytes);
  ASSERT_EQ(text.size(), 512u);
  EXPECT_EQ(text.substr(0, 8), "00010203");
  EXPECT_EQ(text.substr(508), "feff");
  const auto back = BytesFromHex(text);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(std::string(back->begin(), back->end()), bytes);
  EXPECT_EQ(BytesFromHex("0"), std::nullopt);
  EXPECT_EQ(BytesFromHex("0g"), std::nullopt);
}

TEST(QuotedTextTest, ShowsNoControlBytesAndNotMuch) {
  EXPECT_EQ(QuotedForMessage("plain"), "\"plain\"");
  EXPECT_EQ(QuotedForMessage("a\n\x1b[2J\"\xff"), "\"a\\n\\x1b[2J\\\"\\xff\"");
  EXPECT_EQ(QuotedForMessage(std::string(81, 'x')), "\"" + std::string(80, 'x') + "...\"");
}

TEST(HexTest, U64) {
  EXPECT_EQ(HexFromU64(0x9f2c), "0000000000009f2c");
  EXPECT_EQ(U64FromHex("9f2C"), 0x9f2cu);
  EXPECT_EQ(U64FromHex("ffffffffffffffff"), ~0ull);
  EXPECT_EQ(U64FromHex(""), std::nullopt);
  EXPECT_EQ(U64FromHex("1ffffffffffffffff"), std::nullopt);
  EXPECT_EQ(U64FromHex("-1"), std::nullopt);
}

TEST(LogTest, LevelNamesAndNearest) {
  EXPECT_EQ(ParseLogLevel("warn").value(), LogLevel::kWarn);
  EXPECT_THAT(std::string(ParseLogLevel("inof").status().message()),
              HasSubstr("did you mean 'info'?"));
}

TEST(LogTest, WritesEnabledLevelsToTheFile) {
  const std::string path = ::testing::TempDir() + "/baton_log_test.log";
  (void)std::remove(path.c_str());
  ASSERT_TRUE(InitLog({"decode-0", LogLevel::kWarn, path}).ok());
  BATON_LOG_INFO("hidden {}", 1);
  BATON_LOG_WARN("braces {{}} stay {}", "{}");
  BATON_LOG_WARN("a peer's {}", "name\n\x1b[2J \u00e9");
  FlushLog();
  ASSERT_TRUE(InitLog({"test", LogLevel::kInfo, ""}).ok());
  std::FILE* file = std::fopen(path.c_str(), "r");
  ASSERT_NE(file, nullptr);
  char buffer[4096] = {};
  const size_t size = std::fread(buffer, 1, sizeof(buffer) - 1, file);
  std::fclose(file);
  const std::string text(buffer, size);
  EXPECT_THAT(text, HasSubstr("decode-0"));
  EXPECT_THAT(text, HasSubstr("text_test.cc"));
  EXPECT_THAT(text, HasSubstr("braces {} stay {}"));
  EXPECT_THAT(text, HasSubstr("a peer's name\\x0a\\x1b[2J \u00e9"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  EXPECT_THAT(text, Not(HasSubstr("hidden")));
}

TEST(PercentTextTest, EscapesAreBytesAndBrokenOnesStay) {
  EXPECT_EQ(PercentDecoded("a%2Fb%3a%20"), "a/b: ");
  EXPECT_EQ(PercentDecoded("%41%4"), "A%4");
  EXPECT_EQ(PercentDecoded("%"), "%");
  EXPECT_EQ(PercentDecoded("%G0%0g%%41"), "%G0%0g%A");
  EXPECT_EQ(PercentDecoded("%00"), std::string(1, '\0'));
}

TEST(TrimmedTextTest, BlanksGoAtBothEndsOnly) {
  EXPECT_EQ(Trimmed(" \t\r\n a b\n c \n"), "a b\n c");
  EXPECT_EQ(Trimmed("a"), "a");
  EXPECT_EQ(Trimmed(" \n"), "");
  EXPECT_EQ(Trimmed(""), "");
  EXPECT_EQ(Trimmed(" a\n", " "), "a\n");
}

TEST(LogTest, UnwritableFileIsAnAnswer) {
  const Status status = InitLog({"x", LogLevel::kInfo, "/proc/no/such/folder/log"});
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/proc/no/such/folder/log"));
}

}  // namespace
}  // namespace baton
