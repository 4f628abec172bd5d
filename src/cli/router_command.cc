// `baton router`: the process that clients talk to.
#include <unistd.h>

#include "kvcache/hash_chain.h"
#include "src/api/router_process.h"
#include "src/base/log.h"
#include "src/cli/child_process.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/role_signals.h"
#include "src/cli/shadow_flag.h"
#include "src/cli/worker_flags.h"

namespace baton {
namespace {

// Flags of router.
struct RouterFlags {
  RouterConfig config;
  std::string mode = "disagg";
  int64_t local_prefill_tokens = 64;
  std::string reasoning_format = "auto";
  int64_t queue_wait_ms = 10'000;
  int64_t prefill_wait_ms = 60'000;
  std::string shadow = "0";
  int64_t drain_timeout_s = 60;
  std::string secret_file;
  std::string log_level = "info";
};

void Declare(FlagSet& flags, RouterFlags& f) {
  flags.AddAddress("--grpc", f.config.grpc_address,
                   "address of the gRPC API and of worker registration");
  flags.AddAddress("--http", f.config.http_address, "address of the OpenAI-compatible API");
  flags.AddAddress("--admin", f.config.admin_address, "address for health and metrics");
  flags.AddChoice("--mode", f.mode, {"disagg", "aggregated", "adaptive"},
                  "who computes prompts: prefill workers, decode workers, or by length");
  flags.Add("--local-prefill-tokens", f.local_prefill_tokens, {0, 1 << 20},
            "adaptive: prompts of at most this many tokens are computed by the decode worker");
  flags.AddChoice("--reasoning-format", f.reasoning_format, {"auto", "none"},
                  "auto: what a model thinks before it answers goes to reasoning_content; none: it "
                  "stays in content; a request may say otherwise");
  flags.Add("--queue-wait-ms", f.queue_wait_ms, {0, 600'000},
            "how long a request may wait for workers with room; one that would wait longer, or "
            "did, is answered 429");
  flags.Add("--prefill-wait-ms", f.prefill_wait_ms, {0, 600'000},
            "a worker with prompts for so long gets no more; further ones wait in the queue");
  flags.Add("--drain-timeout", f.drain_timeout_s, {0, 86400},
            "seconds that running streams get after SIGTERM");
  flags.Add("--cluster-secret-file", f.secret_file,
            "the workers' file: finds prompts in their prefix caches; without it none is found");
  DeclareTls(flags, f.config.tls);
  flags.Add("--tls-client-auth", f.config.tls_client_auth,
            "clients of the gRPC API need a certificate of --tls-ca too");
  DeclareShadow(flags, f.shadow);
  flags.AddChoice("--log-level", f.log_level, {"debug", "info", "warn", "error"}, "what is logged");
}

ServeMode ModeOf(const std::string& text) {
  if (text == "aggregated") return ServeMode::kAggregated;
  return text == "adaptive" ? ServeMode::kAdaptive : ServeMode::kDisagg;
}

}  // namespace

int RunRouter(const std::vector<std::string>& args) {
  FlagSet flags("router", "The process that clients talk to; learns its models from its workers.");
  RouterFlags f;
  Declare(flags, f);
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (const Status s = CheckTlsFlags(f.config.tls, f.config.tls_client_auth); !s.ok()) {
    return Fail("router", s, kExitUsage);
  }
  const StatusOr<LogLevel> level = ParseLogLevel(f.log_level);
  if (!level.ok()) return Fail("router", level.status(), kExitUsage);
  const StatusOr<double> shadow = ParseShadow(f.shadow);
  if (!shadow.ok()) return Fail("router", shadow.status(), kExitUsage);
  f.config.core.shadow_share = *shadow;
  if (const Status s = InitLog({.role = "router-0", .level = *level, .file = ""}); !s.ok()) {
    return Fail("router", s);
  }
  f.config.core.mode = ModeOf(f.mode);
  f.config.core.local_max_tokens = static_cast<uint32_t>(f.local_prefill_tokens);
  f.config.core.queue_wait_us = f.queue_wait_ms * 1000;
  f.config.core.prefill_wait_us = f.prefill_wait_ms * 1000;
  f.config.splits_reasoning = f.reasoning_format == "auto";
  f.config.drain_timeout_us = f.drain_timeout_s * 1'000'000;
  const StatusOr<std::string> secret = ReadClusterSecret(f.secret_file);
  if (!secret.ok()) return Fail("router", secret.status());
  f.config.core.chain_key = DeriveChainKey(*secret, kDefaultTenant);
  RoleSignals signals;
  StatusOr<std::unique_ptr<RouterProcess>> router = RouterProcess::Start(f.config);
  if (!router.ok()) return Fail("router", router.status());
  signals.SetStarted();
  SendReportToParent({{"role", "router"},
                      {"worker_id", "router-0"},
                      {"incarnation", (*router)->incarnation()},
                      {"pid", std::to_string(::getpid())},
                      {"grpc", (*router)->grpc_address()},
                      {"http", (*router)->http_address()},
                      {"admin", (*router)->admin_address()},
                      {"kv", ""}});
  signals.Wait([] { return false; });
  (*router)->Drain([&signals] { return !signals.stop_now()->load(); });
  (*router)->Stop();
  FlushLog();
  return kExitOk;
}

}  // namespace baton
