#include "src/cli/router_flags.h"

#include "src/api/key_file.h"
#include "src/base/host_port.h"
#include "src/base/limits.h"
#include "src/loadgen/quantity.h"
#include "src/text/tools/tool_style.h"

namespace baton::cli {

using api::ReadKeyFile;
using api::RouterConfig;
using loadgen::ParseNumber;
using router::ServedNames;
using router::ServeMode;

namespace {

ServeMode ModeOf(const std::string& text) {
  if (text == "aggregated") return ServeMode::kAggregated;
  return text == "adaptive" ? ServeMode::kAdaptive : ServeMode::kDisagg;
}

StatusOr<double> ParseShadow(const std::string& share) {
  StatusOr<double> number = ParseNumber(share);
  if (!number.ok() || !(*number >= 0.0 && *number <= 1.0)) {
    return InvalidArgument("--shadow: '{}' is not a number from 0 to 1", share);
  }
  return number;
}

}  // namespace

void DeclareRouterTuning(FlagSet& flags, RouterTuning& tuning) {
  flags.AddChoice(
      "--mode", tuning.mode, {"disagg", "aggregated", "adaptive"},
      "who computes prompts: prefill workers, decode workers, or whoever is predicted to "
      "cost clients less");
  flags.Add(
      "--local-prefill-tokens", tuning.local_prefill_tokens, {0, limits::kMaxPromptTokens},
      "adaptive: the decode worker computes a prompt of which its cache lacks at most this many "
      "tokens, but not for a request's path=disagg");
  flags.AddChoice("--reasoning-format", tuning.reasoning_format, {"auto", "none"},
                  "auto: what a model thinks before it answers goes to reasoning_content; none: it "
                  "stays in content; a request may say otherwise");
  flags.AddChoice(
      "--tool-parser", tuning.tool_parser,
      {"auto", "hermes", "qwen3_coder", "llama3", "gemma", "mistral", "harmony", "generic", "none"},
      "how tool calls are read from answers; auto: as the model's chat template says; "
      "a request's tool_parser may say otherwise");
  flags.Add("--queue-wait-ms", tuning.queue_wait_ms, {0, 600'000},
            "how long a request may wait for workers with room; one that would wait longer, or "
            "did, is answered 429");
  flags.Add("--prefill-wait-ms", tuning.prefill_wait_ms, {0, 600'000},
            "a worker with prompts for so long gets no more; further ones wait in the queue");
  flags.Add("--shadow", tuning.shadow,
            "share (0..1) of the disaggregated requests that idle decode workers run again alone, "
            "to compare every token; baton_shadow_total of the router counts");
  flags.Add("--sse-ping", tuning.sse_ping_s, {0, 3600},
            "seconds of silence after which an event stream gets a comment line, before its first "
            "token and between tokens; 0 = never");
  flags.Add(
      "--idle-timeout", tuning.idle_timeout_s, {1, 86'400},
      "seconds that an HTTP connection without a request is kept: more than the proxies before "
      "it keep theirs, so that they close first");
  flags.Add(
      "--request-timeout", tuning.request_timeout_s, {1, limits::kMaxDeadlineMs / 1000},
      "seconds without a new token, since the last one or the request's arrival, after which a "
      "request is ended; timeout_ms and grpc-timeout are total deadlines beside it");
  flags.AddChoice("--ui", tuning.ui, {"on", "off"},
                  "on: the page at /ui chats and shows the cluster live; off: /ui is not there");
  flags.AddJoined(
      "--served-model-name", tuning.served_names,
      "[MODEL=]NAME[,NAME ..]: what clients call the model instead of its id; all names are "
      "accepted and listed, answers have the first");
  flags.AddFile(
      "--api-keys", tuning.api_keys,
      "YAML list of keys: tenant, sha256 (of `printf %s \"$KEY\" | sha256sum`), "
      "requests_per_minute, tokens_per_minute, concurrency, kv_share; requests without a key of it "
      "are answered 401; read again when it changes");
  flags.AddChoice(
      "--tls-http", tuning.tls_http, {"on", "off"},
      "on: the HTTP port speaks TLS alone (1.2 and 1.3), with --tls-cert, --tls-key and "
      "--tls-ca; clients need no certificate; --admin stays plaintext");
}

Status ApplyRouterTuning(const RouterTuning& tuning, RouterConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.core.shadow_share, ParseShadow(tuning.shadow));
  StatusOr<ServedNames> names = ServedNames::Parse(tuning.served_names);
  if (!names.ok()) return WithPrefix(names.status(), "--served-model-name");
  config.core.served_names = *std::move(names);
  config.core.mode = ModeOf(tuning.mode);
  config.core.local_max_tokens = static_cast<uint32_t>(tuning.local_prefill_tokens);
  config.core.queue_wait_us = tuning.queue_wait_ms * 1000;
  config.core.prefill_wait_us = tuning.prefill_wait_ms * 1000;
  config.api_keys_file = tuning.api_keys;
  config.sse_ping_ms = tuning.sse_ping_s * 1000;
  config.idle_timeout_ms = tuning.idle_timeout_s * 1000;
  config.core.request_timeout_us = tuning.request_timeout_s * 1'000'000;
  config.serves_https = tuning.tls_http == "on";
  config.serves_ui = tuning.ui == "on";
  config.splits_reasoning = tuning.reasoning_format == "auto";
  config.tool_style = text::FindToolStyle(tuning.tool_parser);
  return OkStatus();
}

Status CheckDistinct(std::span<const std::pair<std::string_view, std::string>> addresses) {
  for (auto one = addresses.begin(); one != addresses.end(); ++one) {
    const StatusOr<HostPort> address = ParseHostPort(one->second);
    if (!address.ok() || address->port == 0) continue;
    for (auto other = std::next(one); other != addresses.end(); ++other) {
      if (one->second != other->second) continue;
      return InvalidArgument("{} and {} are both {}: each needs an address of its own", one->first,
                             other->first, one->second);
    }
  }
  return OkStatus();
}

Status CheckApiKeys(const RouterTuning& tuning) {
  return tuning.api_keys.empty() ? OkStatus() : ReadKeyFile(tuning.api_keys).status();
}

Status CheckTlsHttp(const RouterTuning& tuning, const tls::TlsFiles& files) {
  if (tuning.tls_http == "off" || !files.empty()) return OkStatus();
  return InvalidArgument("--tls-http on: give --tls-cert, --tls-key and --tls-ca too");
}

void AppendRouterTuning(const RouterTuning& tuning, std::vector<std::string>& args) {
  args.push_back("--mode=" + tuning.mode);
  args.push_back(fmt::format("--local-prefill-tokens={}", tuning.local_prefill_tokens));
  args.push_back("--reasoning-format=" + tuning.reasoning_format);
  args.push_back("--tool-parser=" + tuning.tool_parser);
  args.push_back(fmt::format("--queue-wait-ms={}", tuning.queue_wait_ms));
  args.push_back(fmt::format("--prefill-wait-ms={}", tuning.prefill_wait_ms));
  args.push_back("--shadow=" + tuning.shadow);
  args.push_back(fmt::format("--sse-ping={}", tuning.sse_ping_s));
  args.push_back(fmt::format("--idle-timeout={}", tuning.idle_timeout_s));
  args.push_back(fmt::format("--request-timeout={}", tuning.request_timeout_s));
  args.push_back("--ui=" + tuning.ui);
  args.push_back("--tls-http=" + tuning.tls_http);
  if (!tuning.served_names.empty()) {
    args.push_back("--served-model-name=" + tuning.served_names);
  }
  if (!tuning.api_keys.empty()) args.push_back("--api-keys=" + tuning.api_keys);
}

}  // namespace baton::cli
