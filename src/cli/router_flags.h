// Flags that `serve` and `router` share: serve passes them on to its router unchanged.
#ifndef BATON_CLI_ROUTER_FLAGS_H_
#define BATON_CLI_ROUTER_FLAGS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/api/router_process.h"
#include "src/base/status.h"
#include "src/cli/flags.h"

namespace baton::cli {

// How a router places requests and answers them; texts as typed.
struct RouterTuning {
  std::string mode = "disagg";
  int64_t local_prefill_tokens = 64;
  std::string reasoning_format = "auto";
  std::string tool_parser = "auto";
  int64_t queue_wait_ms = 10'000;
  int64_t prefill_wait_ms = 60'000;
  std::string shadow = "0";  // a number from 0 to 1
  int64_t sse_ping_s = 15;
  int64_t idle_timeout_s = 75;
  int64_t request_timeout_s = 600;
  std::string served_names;
  std::string ui = "on";
  std::string api_keys;  // path
  std::string tls_http = "off";
};

void DeclareRouterTuning(FlagSet& flags, RouterTuning& tuning);

// Writes the tuning into `config`; InvalidArgument for a --shadow that is no share.
Status ApplyRouterTuning(const RouterTuning& tuning, api::RouterConfig& config);

// InvalidArgument: --tls-http is on, and there are no files for it.
Status CheckTlsHttp(const RouterTuning& tuning, const tls::TlsFiles& files);

// InvalidArgument: two of these flags name one address. Port 0 is another one each time.
Status CheckDistinct(std::span<const std::pair<std::string_view, std::string>> addresses);

// The file of --api-keys, if one is given, can be used.
Status CheckApiKeys(const RouterTuning& tuning);

// The flags that give another process the same tuning.
void AppendRouterTuning(const RouterTuning& tuning, std::vector<std::string>& args);

}  // namespace baton::cli

#endif  // BATON_CLI_ROUTER_FLAGS_H_
