// The protocol of `baton mcp`: JSON-RPC 2.0, one message a line, as the Model Context Protocol has
// it for stdio (modelcontextprotocol.io, revisions 2025-06-18 and 2025-11-25). One thread.
//
// Invariants
//  1. Each request gets one answer, in the order of the requests; a notification gets none.
//  2. Bytes of a client are never a reason to stop: what is no request is answered with an error.
#ifndef BATON_CLI_MCP_MCP_SESSION_H_
#define BATON_CLI_MCP_MCP_SESSION_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json_fwd.hpp"

#include "src/cli/mcp/mcp_tool.h"

namespace baton::cli {

// A longer line is answered with an error and skipped up to its end.
inline constexpr size_t kMaxMcpLineBytes = size_t{1} << 20;

// See the file comment.
class McpSession {
 public:
  // `write` gets each answer as a whole line with its end.
  McpSession(std::vector<McpTool> tools, std::function<void(std::string_view line)> write);

  // Takes bytes as they arrive, and answers each line that is complete. Tools run within the call.
  void Take(std::string_view bytes);
  // The input has ended: a last line without its end is a message too.
  void End();

 private:
  void AddToLine(std::string_view part);
  void EndLine();
  void Answer(const std::string& line);
  void AnswerRequest(const nlohmann::json& id, const std::string& method,
                     const nlohmann::json& params);
  void CallTool(const nlohmann::json& id, const nlohmann::json& params);
  void WriteResult(const nlohmann::json& id, const nlohmann::json& result);
  void WriteError(const nlohmann::json& id, int code, std::string_view message);

  std::vector<McpTool> tools_;
  std::function<void(std::string_view line)> write_;
  std::string line_;
  bool is_too_long_ = false;
};

}  // namespace baton::cli

#endif  // BATON_CLI_MCP_MCP_SESSION_H_
