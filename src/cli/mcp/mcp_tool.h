// A tool of `baton mcp`: what a model may ask of a running cluster or of this host. Plain data; any
// thread.
#ifndef BATON_CLI_MCP_MCP_TOOL_H_
#define BATON_CLI_MCP_MCP_TOOL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json_fwd.hpp"

namespace baton::cli {

// One argument of a tool. The JSON schema and the check of a call are both made of this row.
struct McpParam {
  enum class Kind : uint8_t { kText, kCount, kSwitch };

  std::string_view name;
  Kind kind = Kind::kText;
  std::string_view about;
  bool required = false;
  int64_t low = 0;  // of a count, inclusive
  int64_t high = 0;
};

// The answer of a call; `is_error` = the text says why there is none.
struct McpResult {
  std::string text;
  bool is_error = false;
};

// One tool. It changes nothing of the cluster or of the host.
struct McpTool {
  std::string_view name;
  std::string_view about;
  std::vector<McpParam> params;
  // Called with arguments that fit `params`; a required one is there.
  std::function<McpResult(const nlohmann::json& arguments)> call;
};

}  // namespace baton::cli

#endif  // BATON_CLI_MCP_MCP_TOOL_H_
