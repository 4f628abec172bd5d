#include "src/cli/mcp/mcp_tools.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace baton::cli {
namespace {

using testing::HasSubstr;

constexpr char kPage[] =
    "# HELP baton_requests_total Requests.\n"
    "baton_requests_total{code=\"200\",role=\"router\"} 5\n"
    "baton_requests_total{code=\"2000\"} 1\n"
    "baton_requests_total{xcode=\"200\"} 2\n"
    "baton_requests_running 3\n";

TEST(MatchingSamplesTest, TakesLinesByTheBeginOfTheNameAndALabel) {
  EXPECT_EQ(MatchingSamples(kPage, "baton_requests_running", ""), "baton_requests_running 3\n");
  EXPECT_EQ(MatchingSamples(kPage, "baton_requests_total", "code=200"),
            "baton_requests_total{code=\"200\",role=\"router\"} 5\n");
  EXPECT_EQ(MatchingSamples(kPage, "baton_", "role=router"),
            "baton_requests_total{code=\"200\",role=\"router\"} 5\n");
  EXPECT_EQ(MatchingSamples(kPage, "# HELP", ""), "");
  EXPECT_EQ(MatchingSamples(kPage, "x", ""), "");
}

TEST(McpToolsTest, EachNamedToolIsThere) {
  std::vector<std::string> names;
  for (const McpTool& tool : McpTools({})) names.emplace_back(tool.name);
  EXPECT_THAT(names, testing::ElementsAre("status", "topology", "metrics", "trace", "why", "doctor",
                                          "plan", "bench"));
}

TEST(McpToolsTest, AClusterThatIsNotThereIsAnErrorOfTheTool) {
  // Nobody listens on port 1 of this machine.
  for (const McpTool& tool : McpTools({.admin = "127.0.0.1:1", .url = "", .api_key_env = ""})) {
    if (tool.name != "topology" && tool.name != "trace" && tool.name != "why") continue;
    const McpResult result = tool.call(nlohmann::json::object());
    EXPECT_TRUE(result.is_error) << tool.name;
    EXPECT_THAT(result.text, HasSubstr("127.0.0.1:1"));
  }
}

TEST(McpToolsTest, AModelThatLooksLikeAFlagIsRefused) {
  const std::vector<McpTool> tools = McpTools({});
  const auto plan = std::find_if(tools.begin(), tools.end(),
                                 [](const McpTool& tool) { return tool.name == "plan"; });
  const McpResult result = plan->call({{"model", "--config=/etc/passwd"}});
  EXPECT_TRUE(result.is_error);
  EXPECT_THAT(result.text, HasSubstr("'model'"));
}

}  // namespace
}  // namespace baton::cli
