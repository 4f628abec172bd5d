// `baton router`: the process that clients talk to.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "src/api/router_process.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/open_files.h"
#include "src/base/unique_fd.h"
#include "src/cli/child_process.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/foreign_flags.h"
#include "src/cli/objective_flag.h"
#include "src/cli/role_signals.h"
#include "src/cli/router_flags.h"
#include "src/cli/site_flags.h"
#include "src/cli/telemetry_flags.h"
#include "src/cli/worker_flags.h"
#include "src/model/hf_folder.h"
#include "src/model/model_config.h"        // IWYU pragma: keep
#include "src/model/tokenizer_metadata.h"  // IWYU pragma: keep
#include "src/router/known_models.h"
#include "src/rpc/protobuf_log.h"
#include "src/text/spec_from_metadata.h"

namespace baton::cli {

using api::RouterConfig;
using api::RouterProcess;
using http::SiteRules;
using model::OpenModelFile;
using router::ServiceObjective;
using router::TokenizerSource;
using text::ReadModelTokenizer;
using text::TokenizerSpec;
using tls::CheckTlsFlags;

namespace {

// Flags of router.
struct RouterFlags {
  RouterConfig config;
  RouterTuning tuning;
  std::string objective;
  TelemetryFlags telemetry;
  SiteFlags sites;
  int64_t drain_timeout_s = 60;
  std::string secret_file;
  std::string log_level = "info";
};

void Declare(FlagSet& flags, RouterFlags& f) {
  flags.AddAddress("--grpc", f.config.grpc_address,
                   "address of the gRPC API and of worker registration");
  flags.AddAddress("--http", f.config.http_address, "address of the OpenAI-compatible API");
  flags.AddAddress("--admin", f.config.admin_address, "address for health and metrics");
  DeclareRouterTuning(flags, f.tuning);
  DeclareObjective(flags, f.objective);
  flags.AddWhole("--expect-model", f.config.core.expected_models,
                 "id of a model that workers will bring; may be repeated: the router is ready when "
                 "each has a pool, and answers 503 for one without, not 404");
  flags.Add(
      "--drain-timeout", f.drain_timeout_s, {0, limits::kMaxDrainTimeoutS},
      "seconds that running streams get after SIGTERM and the 5 s in which new ones are still "
      "accepted");
  flags.AddFile(
      "--cluster-secret-file", f.secret_file,
      "the workers' file: finds prompts in their prefix caches; without it none is found");
  DeclareTls(flags, f.config.tls);
  DeclareTelemetry(flags, f.telemetry);
  DeclareSites(flags, f.sites);
  flags.AddChoice("--log-level", f.log_level, {"debug", "info", "warn", "error"}, "what is logged");
  AddForeignHints(flags);
  AddServeFlagsElsewhere(flags);
  flags.AddHint("--model", "a router learns its models from its workers");
}

// The tokenizers of the models that `serve` gives to its workers; none in other processes.
std::vector<TokenizerSource> InheritedTokenizers() {
  std::vector<TokenizerSource> sources;
  const char* const text = std::getenv(kTokenizerFdsVariable);
  if (text == nullptr) return sources;
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  for (const std::string& word : words) {
    int fd = -1;
    if (!absl::SimpleAtoi(word, &fd) || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      BATON_LOG_WARN("{}={}: {} is no descriptor", kTokenizerFdsVariable, text, word);
      continue;
    }
    sources.push_back([file = std::make_shared<UniqueFd>(fd)]() -> StatusOr<std::string> {
      const UniqueFd open = std::move(*file);  // until it is read
      const std::string path = fmt::format("/proc/self/fd/{}", open.get());
      BATON_ASSIGN_OR_RETURN(const auto model, OpenModelFile(path));
      BATON_ASSIGN_OR_RETURN(const TokenizerSpec spec, ReadModelTokenizer(*model, path));
      return spec.SerializeUpToLimit();
    });
  }
  return sources;
}

}  // namespace

int RunRouter(const std::vector<std::string>& args) {
  FlagSet flags("router", "The process that clients talk to; learns its models from its workers.");
  RouterFlags f;
  Declare(flags, f);
  if (std::optional<int> code = flags.Parse(args)) return *code;
  const std::pair<std::string_view, std::string> addresses[] = {
      {"--grpc", f.config.grpc_address},
      {"--http", f.config.http_address},
      {"--admin", f.config.admin_address}};
  const Status distinct = CheckDistinct(addresses);
  if (!distinct.ok()) return Fail("router", distinct, kExitUsage);
  if (const Status s = CheckTlsFlags(f.config.tls); !s.ok()) {
    return Fail("router", s, kExitUsage);
  }
  if (const Status s = CheckTlsHttp(f.tuning, f.config.tls); !s.ok()) {
    return Fail("router", s, kExitUsage);
  }
  const StatusOr<LogLevel> level = ParseLogLevel(f.log_level);
  if (!level.ok()) return Fail("router", level.status(), kExitUsage);
  if (const Status s = ApplyRouterTuning(f.tuning, f.config); !s.ok()) {
    return Fail("router", s, kExitUsage);
  }
  const StatusOr<ServiceObjective> objective = ParseObjective(f.objective);
  if (!objective.ok()) return Fail("router", objective.status(), kExitUsage);
  f.config.core.objective = *objective;
  if (const size_t num = f.config.core.expected_models.size(); num > router::kMaxKnownModels) {
    return Fail("router",
                InvalidArgument("--expect-model is given {} times, and at most {} models may be "
                                "expected",
                                num, router::kMaxKnownModels),
                kExitUsage);
  }
  if (const Status s = CheckTelemetry(f.telemetry); !s.ok()) return Fail("router", s, kExitUsage);
  StatusOr<SiteRules> sites = SitesOf(f.sites);
  if (!sites.ok()) return Fail("router", sites.status(), kExitUsage);
  f.config.sites = *std::move(sites);
  f.config.metric_aliases = AliasesOf(f.telemetry);
  f.config.otlp_endpoint = f.telemetry.otlp_endpoint;
  ApplyLogFormat(f.telemetry);
  if (const Status s = InitLog({.role = "router-0", .level = *level, .file = ""}); !s.ok()) {
    return Fail("router", s);
  }
  f.config.drain_timeout_us = f.drain_timeout_s * 1'000'000;
  const StatusOr<std::string> secret = ReadClusterSecret(f.secret_file);
  if (!secret.ok()) return Fail("router", secret.status());
  f.config.core.cluster_secret = *secret;
  f.config.expected_tokenizers = InheritedTokenizers();
  RaiseOpenFilesLimit();
  if (const Status s = CheckOpenFilesLimit(); !s.ok()) return Fail("router", s);
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
                      {"https", f.tuning.tls_http},
                      {"admin", (*router)->admin_address()},
                      {"kv", ""}});
  signals.Wait(rpc::HasLostPort);
  (*router)->Drain([&signals] { return !signals.stop_now()->load(); });
  (*router)->Stop();
  FlushLog();
  const Status lost = rpc::LostPort();
  return lost.ok() ? kExitOk : Fail("router", lost);
}

}  // namespace baton::cli
