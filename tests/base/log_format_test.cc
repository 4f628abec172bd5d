#include "src/base/log_format.h"

#include <cstdio>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/base/log.h"

namespace baton {
namespace {

using nlohmann::json;

// The lines that `write` logs as JSON at level info.
template <typename F>
std::vector<json> LinesOf(F write) {
  const std::string path = ::testing::TempDir() + "/baton_log_format_test.log";
  (void)std::remove(path.c_str());
  SetLogFormat(LogFormat::kJson);
  EXPECT_TRUE(InitLog({"decode-0", LogLevel::kInfo, path}).ok());
  write();
  FlushLog();
  SetLogFormat(LogFormat::kText);
  EXPECT_TRUE(InitLog({"test", LogLevel::kInfo, ""}).ok());
  std::FILE* file = std::fopen(path.c_str(), "r");
  std::vector<json> lines;
  char buffer[4096];
  while (std::fgets(buffer, sizeof(buffer), file) != nullptr) lines.push_back(json::parse(buffer));
  std::fclose(file);
  return lines;
}

TEST(LogFormatTest, ALineIsOneObject) {
  const std::vector<json> lines = LinesOf([] {
    BATON_LOG_WARN("a {} and a \\", "\"quote\"");
    BATON_LOG_INFO("a second one");
    BATON_LOG_DEBUG("hidden");
  });
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["message"], "a \"quote\" and a \\");
  EXPECT_EQ(lines[0]["level"], "warning");
  EXPECT_EQ(lines[0]["process"], "decode-0");
  EXPECT_THAT(lines[0]["source"].get<std::string>(),
              ::testing::MatchesRegex("log_format_test\\.cc:[0-9]+"));
  EXPECT_GT(lines[0]["thread"].get<int>(), 0);
  EXPECT_THAT(lines[0]["time"].get<std::string>(),
              ::testing::MatchesRegex("....-..-..T..:..:..\\....[+-]..:.."));
  EXPECT_EQ(lines[1]["level"], "info");
  EXPECT_FALSE(lines[1].contains("request_uid"));
}

TEST(LogFormatTest, ALineAboutARequestHasItsUid) {
  const std::string uid = "00000000000000010000000000000002";
  const std::vector<json> lines = LinesOf([&uid] {
    BATON_LOG_INFO("request {} attempt 1 ends", uid);
    BATON_LOG_INFO("request {} attempt 1 ends", uid.substr(1));
    BATON_LOG_INFO("no request {}", uid);
  });
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["request_uid"], uid);
  EXPECT_FALSE(lines[1].contains("request_uid"));
  EXPECT_FALSE(lines[2].contains("request_uid"));
}

TEST(LogFormatTest, AnyBytesMakeALineThatCanBeRead) {
  const std::pair<std::string, std::string> cases[] = {
      {"tab\tline\nend", "tab\tline\nend"},
      {"\x1b[2J", "\x1b[2J"},
      {"\x7f", "\x7f"},
      {"\u00e9\u20ac\U0001f600", "\u00e9\u20ac\U0001f600"},
      {"a\xff"
       "b",
       "a\ufffd"
       "b"},
      {"\xe2\x82", "\ufffd\ufffd"},            // cut off
      {"\xc0\xaf", "\ufffd\ufffd"},            // overlong
      {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},  // a surrogate
      {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
      {std::string("nul\0!", 5), std::string("nul\0!", 5)},
  };
  for (const auto& [message, expected] : cases) {
    const json line = json::parse("{" + JsonLogFields("f.cc", 7, message) + "}");
    EXPECT_EQ(line["message"].get<std::string>(), expected);
    EXPECT_EQ(line["source"], "f.cc:7");
  }
}

}  // namespace
}  // namespace baton
