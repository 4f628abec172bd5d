// The tools of `baton mcp`. Each looks at one cluster, or at this host, as the subcommand of its
// name does. One thread.
#ifndef BATON_CLI_MCP_MCP_TOOLS_H_
#define BATON_CLI_MCP_MCP_TOOLS_H_

#include <string>
#include <vector>

#include "src/cli/mcp/mcp_tool.h"

namespace baton::cli {

// The cluster that the tools look at. A client cannot name another one.
struct McpTarget {
  std::string admin;        // HOST:PORT of a router's admin port
  std::string url;          // of its HTTP API, which bench loads
  std::string api_key_env;  // environment variable that holds a key for it; "" = none
};

std::vector<McpTool> McpTools(const McpTarget& target);

// The samples of a page in Prometheus' text format whose name begins with `prefix`, and, if `label`
// is not empty (NAME=VALUE), that have this label. Lines with their ends.
std::string MatchingSamples(const std::string& page, const std::string& prefix,
                            const std::string& label);

}  // namespace baton::cli

#endif  // BATON_CLI_MCP_MCP_TOOLS_H_
