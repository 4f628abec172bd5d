// `baton mcp`: the Model Context Protocol over standard input and output.
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "src/base/errno_text.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/http_client.h"
#include "src/cli/mcp/mcp_session.h"
#include "src/cli/mcp/mcp_tools.h"

namespace baton::cli {
namespace {

// Until the client closes the input, or reads no more.
int ServeInput(McpSession& session) {
  std::array<char, 65536> bytes;
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Fail("mcp", Unavailable("standard input: {}", ErrnoText(errno)));
    if (count == 0) break;
    session.Take({bytes.data(), static_cast<size_t>(count)});
    if (std::ferror(stdout) != 0) return kExitFailure;  // main says why
  }
  session.End();
  return kExitOk;
}

}  // namespace

int RunMcp(const std::vector<std::string>& args) {
  FlagSet flags("mcp",
                "Serves read-only tools to a model's client over standard input and output, by the "
                "Model Context Protocol: status, topology, metrics, trace, why, doctor, plan and "
                "bench of one cluster.");
  McpTarget target = {.admin = "127.0.0.1:9090", .url = "http://127.0.0.1:8080", .api_key_env = ""};
  flags.AddAdmin("--admin", target.admin, "admin address of a router");
  flags.Add("--url", target.url, "its HTTP API, which bench loads: http://HOST:PORT");
  flags.Add("--api-key-env", target.api_key_env, "environment variable that holds the API key");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  const StatusOr<HttpUrl> url = ParseServer(target.url);
  if (!url.ok()) return Fail("mcp", WithPrefix(url.status(), "--url"), kExitUsage);
  target.url = url->ToString();
  McpSession session(McpTools(target), [](std::string_view line) {
    (void)std::fwrite(line.data(), 1, line.size(), stdout);
    (void)std::fflush(stdout);
  });
  return ServeInput(session);
}

}  // namespace baton::cli
