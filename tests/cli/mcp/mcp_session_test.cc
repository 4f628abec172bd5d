#include "src/cli/mcp/mcp_session.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace baton::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// A session with one tool, `double`, that doubles a count, and the answers so far.
class McpSessionTest : public testing::Test {
 protected:
  McpSessionTest()
      : session_({{"double",
                   "Doubles a count.",
                   {{"n", McpParam::Kind::kCount, "a count", true, 0, 100},
                    {"note", McpParam::Kind::kText, "any text"},
                    {"loud", McpParam::Kind::kSwitch, "a switch"}},
                   [](const json& arguments) {
                     const auto n = arguments.at("n").get<int64_t>();
                     if (n == 13) return McpResult{.text = "not this one", .is_error = true};
                     return McpResult{.text = std::to_string(2 * n)};
                   }}},
                 [this](std::string_view line) { lines_.emplace_back(line); }) {}

  // The only answer to one message.
  json Ask(const std::string& message) {
    lines_.clear();
    session_.Take(message + "\n");
    EXPECT_EQ(lines_.size(), 1u) << message.substr(0, 200);
    if (lines_.size() != 1) return json::object();
    EXPECT_EQ(std::count(lines_[0].begin(), lines_[0].end(), '\n'), 1) << lines_[0];
    json answer = json::parse(lines_[0], nullptr, false);
    EXPECT_EQ(answer["jsonrpc"], "2.0");
    return answer;
  }

  json Call(const std::string& arguments) {
    return Ask(R"({"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"double",)"
               R"("arguments":)" +
               arguments + "}}")["result"];
  }

  std::vector<std::string> lines_;
  McpSession session_;
};

TEST_F(McpSessionTest, AgreesOnAVersionThatBothKnow) {
  const std::pair<std::string, std::string> cases[] = {{"2025-06-18", "2025-06-18"},
                                                       {"2025-11-25", "2025-11-25"},
                                                       {"2024-11-05", "2025-11-25"},
                                                       {"2099-01-01", "2025-11-25"}};
  for (const auto& [asked, answered] : cases) {
    const json answer =
        Ask(R"({"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":")" +
            asked + R"(","capabilities":{},"clientInfo":{"name":"t","version":"1"}}})");
    EXPECT_EQ(answer["id"], 1);
    EXPECT_EQ(answer["result"]["protocolVersion"], answered) << asked;
    EXPECT_EQ(answer["result"]["serverInfo"]["name"], "baton");
    EXPECT_TRUE(answer["result"]["capabilities"]["tools"].is_object());
  }
}

TEST_F(McpSessionTest, ListsToolsWithASchemaOfTheirArguments) {
  const json answer = Ask(R"({"jsonrpc":"2.0","id":"a","method":"tools/list"})");
  EXPECT_EQ(answer["id"], "a");
  ASSERT_EQ(answer["result"]["tools"].size(), 1u);
  const json& tool = answer["result"]["tools"][0];
  EXPECT_EQ(tool["name"], "double");
  EXPECT_EQ(tool["annotations"]["readOnlyHint"], true);
  const json& schema = tool["inputSchema"];
  EXPECT_EQ(schema["type"], "object");
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["required"], json::array({"n"}));
  EXPECT_EQ(schema["properties"]["n"]["maximum"], 100);
  EXPECT_EQ(schema["properties"]["note"]["type"], "string");
}

TEST_F(McpSessionTest, CallsATool) {
  const json result = Call(R"({"n":21,"note":"x","loud":true})");
  EXPECT_EQ(result["isError"], false);
  ASSERT_EQ(result["content"].size(), 1u);
  EXPECT_EQ(result["content"][0]["type"], "text");
  EXPECT_EQ(result["content"][0]["text"], "42");
  EXPECT_EQ(Call(R"({"n":13})")["isError"], true);
}

TEST_F(McpSessionTest, ArgumentsThatDoNotFitAreTheToolsAnswer) {
  const std::pair<std::string, std::string> cases[] = {
      {"{}", "'n' is missing"},
      {R"({"n":101})", "from 0 to 100"},
      {R"({"n":-1})", "from 0 to 100"},
      {R"({"n":18446744073709551615})", "from 0 to 100"},
      {R"({"n":1.5})", "from 0 to 100"},
      {R"({"n":"1"})", "from 0 to 100"},
      {R"({"n":1,"note":5})", "'note' must be a string"},
      {R"({"n":1,"loud":"yes"})", "'loud' must be true or false"},
      {R"({"n":1,"m":2})", "it takes n, note, loud"}};
  for (const auto& [arguments, text] : cases) {
    const json result = Call(arguments);
    EXPECT_EQ(result["isError"], true) << arguments;
    EXPECT_THAT(result["content"][0]["text"].get<std::string>(), HasSubstr(text));
  }
}

TEST_F(McpSessionTest, WhatIsNoRequestIsAnErrorAndTheSessionGoesOn) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  const std::pair<std::string, int> cases[] = {
      {"hello", -32700},
      {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", -32700},
      {"{\"a\":", -32700},
      {"[]", -32600},
      {"5", -32600},
      {deep, -32600},
      {R"({"id":1,"method":"ping"})", -32600},
      {R"({"jsonrpc":"1.0","id":1,"method":"ping"})", -32600},
      {R"({"jsonrpc":"2.0","id":1})", -32600},
      {R"({"jsonrpc":"2.0","id":1,"method":5})", -32600},
      {R"({"jsonrpc":"2.0","id":null,"method":"ping"})", -32600},
      {R"({"jsonrpc":"2.0","id":)" + deep + R"(,"method":"ping"})", -32600},
      {R"({"jsonrpc":"2.0","id":1,"method":"resources/list"})", -32601},
      {R"({"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}})", -32601},
      {R"({"jsonrpc":"2.0","id":1,"method":"ping","params":[]})", -32602},
      {R"({"jsonrpc":"2.0","id":1,"method":"initialize","params":{}})", -32602},
      {R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}})", -32602},
      {R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"triple"}})", -32602},
      {R"({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"double","arguments":1}})",
       -32602}};
  for (const auto& [message, code] : cases) {
    const json answer = Ask(message);
    EXPECT_EQ(answer["error"]["code"], code) << message.substr(0, 100);
    EXPECT_FALSE(answer.contains("result"));
  }
  EXPECT_EQ(Ask(R"({"jsonrpc":"2.0","id":2,"method":"ping"})")["result"], json::object());
}

TEST_F(McpSessionTest, NotificationsAnswersAndBlankLinesGetNoAnswer) {
  for (const char* message :
       {R"({"jsonrpc":"2.0","method":"notifications/initialized"})",
        R"({"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}})",
        R"({"jsonrpc":"2.0","id":1,"result":{}})", "", "  \t\r"}) {
    session_.Take(std::string(message) + "\n");
    EXPECT_TRUE(lines_.empty()) << message;
  }
}

TEST_F(McpSessionTest, AHugeLineIsRefusedOnceAndSkipped) {
  const std::string part(kMaxMcpLineBytes / 2 + 1, 'x');
  for (int i = 0; i < 5; ++i) session_.Take(part);
  EXPECT_TRUE(lines_.empty());
  session_.Take("\n{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\"}\n");
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_EQ(json::parse(lines_[0])["error"]["code"], -32600);
  EXPECT_EQ(json::parse(lines_[1])["id"], 3);
}

TEST_F(McpSessionTest, BytesMayComeInAnyPieces) {
  const std::string two = R"({"jsonrpc":"2.0","id":1,"method":"ping"})"
                          "\r\n"
                          R"({"jsonrpc":"2.0","id":2,"method":"ping"})";
  for (const char byte : two) session_.Take({&byte, 1});
  ASSERT_EQ(lines_.size(), 1u);
  session_.End();  // the last line has no end
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_EQ(json::parse(lines_[1])["id"], 2);
  session_.End();
  EXPECT_EQ(lines_.size(), 2u);
}

}  // namespace
}  // namespace baton::cli
