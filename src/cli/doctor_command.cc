// `baton doctor`: is this host fit to serve? `baton doctor --ledger`: is every KV block of the
// cluster held by somebody who still needs it?
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "nlohmann/json.hpp"

#include "src/base/clock.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/print.h"
#include "src/base/size_text.h"
#include "src/cli/commands.h"
#include "src/cli/doctor/doctor_report.h"
#include "src/cli/doctor/host_checks.h"
#include "src/cli/doctor/host_probe.h"
#include "src/cli/flags.h"
#include "src/cli/http_client.h"
#include "src/cli/ledger_audit.h"
#include "src/cli/worker_flags.h"

namespace baton::cli {

using tls::CheckTlsFlags;
using tls::TlsFiles;

namespace {

// After a fault a block may be held for a lease of 10 s, a margin and the reaper's next turn.
constexpr int64_t kDefaultWaitS = 12;
constexpr std::chrono::milliseconds kLookEvery(500);

// Flags of doctor.
struct DoctorFlags {
  bool ledger = false;
  std::vector<std::string> admins;
  int64_t wait_s = kDefaultWaitS;
  bool json = false;
  bool fix_plan = false;
  std::string http = "127.0.0.1:8080";
  std::string grpc = "127.0.0.1:7070";
  std::string model;
  std::string kv_memory;
  int64_t num_workers = HostNeeds().num_workers;
  int64_t threads = 0;
  std::string device = "auto";
  std::string secret_file;
  TlsFiles tls;
};

StatusOr<std::string> ReadAdmin(const std::string& address, const std::string& path) {
  BATON_ASSIGN_OR_RETURN(HttpClientResponse response, CallAdmin("GET", address, path));
  if (response.status != 200) {
    return Unavailable("http://{}{} answers {}: {}", address, path, response.status, response.body);
  }
  return std::move(response.body);
}

// Blocks before requests, workers before routers: what starts meanwhile is then known, and what
// ends meanwhile is a suspect only until the next look.
StatusOr<LedgerLook> TakeLook(const std::vector<std::string>& admins) {
  LedgerLook look;
  for (const std::string& admin : admins) {
    BATON_ASSIGN_OR_RETURN(const std::string text, ReadAdmin(admin, "/v1/topology"));
    StatusOr<std::vector<LedgerProcess>> workers = ReadLedgerWorkers(text);
    if (!workers.ok()) return WithPrefix(workers.status(), "router " + admin);
    for (LedgerProcess& worker : *workers) {
      const bool is_known =
          std::any_of(look.workers.begin(), look.workers.end(),
                      [&](const auto& other) { return other.incarnation == worker.incarnation; });
      if (!is_known) look.workers.push_back(std::move(worker));
    }
  }
  for (LedgerProcess& worker : look.workers) {
    BATON_ASSIGN_OR_RETURN(const std::string blocks, ReadAdmin(worker.admin, "/debug/blocks"));
    Status status = ReadLedgerBlocks(blocks, &worker);
    if (!status.ok()) return WithPrefix(status, worker.worker_id);
  }
  for (LedgerProcess& worker : look.workers) {
    BATON_ASSIGN_OR_RETURN(const std::string requests, ReadAdmin(worker.admin, "/debug/requests"));
    Status status = ReadLedgerRequests(requests, &worker);
    if (!status.ok()) return WithPrefix(status, worker.worker_id);
  }
  for (const std::string& admin : admins) {
    LedgerProcess router;
    router.admin = admin;
    BATON_ASSIGN_OR_RETURN(const std::string requests, ReadAdmin(admin, "/debug/requests"));
    Status status = ReadLedgerRequests(requests, &router);
    if (!status.ok()) return WithPrefix(status, "router " + admin);
    look.routers.push_back(std::move(router));
  }
  return look;
}

uint64_t CountOf(const LedgerProcess& worker, const std::string& state) {
  const auto found = worker.states.find(state);
  return found == worker.states.end() ? 0 : found->second;
}

void PrintTable(const LedgerLook& look, const std::vector<LedgerSuspect>& orphans) {
  Print("{:<20} {:>8} {:>8} {:>8} {:>8} {:>9}\n", "worker", "blocks", "free", "cached", "held",
        "requests");
  size_t num_held = 0;
  for (const LedgerProcess& worker : look.workers) {
    Print("{:<20} {:>8} {:>8} {:>8} {:>8} {:>9}\n", worker.worker_id, worker.num_blocks(),
          CountOf(worker, "free"), CountOf(worker, "cached"), worker.held.size(),
          worker.requests.size());
    num_held += worker.held.size();
  }
  if (orphans.empty()) {
    Print("ledger clean: {} held blocks of {} workers, each with an owner that is known\n",
          num_held, look.workers.size());
    return;
  }
  Print("\n{:<20} {:>7} {:>10} {:<10} {:<32} {:>8} {}\n", "orphan at", "block", "generation",
        "state", "request_uid", "age_ms", "why");
  for (const LedgerSuspect& suspect : orphans) {
    const bool is_block = suspect.is_block;
    Print("{:<20} {:>7} {:>10} {:<10} {:<32} {:>8} {}\n", suspect.worker_id,
          is_block ? std::to_string(suspect.block.index) : "-",
          is_block ? std::to_string(suspect.block.generation) : "-",
          is_block ? suspect.block.state : "request", suspect.block.owner,
          suspect.request_age_ms < 0 ? "-" : std::to_string(suspect.request_age_ms), suspect.why);
  }
}

void PrintJson(const LedgerLook& look, const std::vector<LedgerSuspect>& orphans) {
  nlohmann::ordered_json root;
  root["clean"] = orphans.empty();
  root["workers"] = nlohmann::ordered_json::array();
  for (const LedgerProcess& worker : look.workers) {
    root["workers"].push_back({{"worker", worker.worker_id},
                               {"incarnation", worker.incarnation},
                               {"blocks", worker.num_blocks()},
                               {"states", worker.states},
                               {"requests", worker.requests.size()}});
  }
  root["orphans"] = nlohmann::ordered_json::array();
  for (const LedgerSuspect& suspect : orphans) {
    nlohmann::ordered_json row = {{"worker", suspect.worker_id},
                                  {"kind", suspect.is_block ? "block" : "request"},
                                  {"request_uid", suspect.block.owner},
                                  {"why", suspect.why}};
    if (suspect.request_age_ms >= 0) row["age_ms"] = suspect.request_age_ms;
    if (suspect.is_block) {
      row["index"] = suspect.block.index;
      row["generation"] = suspect.block.generation;
      row["state"] = suspect.block.state;
      row["refs"] = suspect.block.refs;
    }
    root["orphans"].push_back(std::move(row));
  }
  Print("{}\n", root.dump(1));
}

// Looks until nothing is suspect any more or the wait is over.
int AuditLedger(const DoctorFlags& f) {
  LedgerAudit audit;
  LedgerLook last;
  int64_t first_ms = SystemClock().NowUs() / 1000;
  bool said_why = false;
  for (bool is_first = true;; std::this_thread::sleep_for(kLookEvery)) {
    StatusOr<LedgerLook> look = TakeLook(f.admins);
    const int64_t now_ms = SystemClock().NowUs() / 1000;
    const bool is_over = now_ms - first_ms >= f.wait_s * 1000;
    if (look.ok()) {
      // The wait counts from the first look's end, so that an orphan is watched for all of it.
      if (std::exchange(is_first, false)) first_ms = now_ms;
      last = *std::move(look);
      audit.Add(last);
      const bool has_finding = !audit.suspects().empty() || last.workers.empty();
      if (!has_finding || now_ms - first_ms >= f.wait_s * 1000) break;
    } else if (is_over) {
      // The failed process has not just ended: such a process is missing from the next topology.
      return Fail("doctor", look.status());
    } else if (!std::exchange(said_why, true)) {
      Print(stderr, "doctor: {}; looking again for up to {} s\n",
            std::string(look.status().message()), f.wait_s);
    }
  }
  if (last.workers.empty()) {
    return Fail("doctor", Unavailable("no worker is registered, so there is no ledger to audit"));
  }
  if (f.json) {
    PrintJson(last, audit.suspects());
  } else {
    PrintTable(last, audit.suspects());
  }
  return audit.suspects().empty() ? kExitOk : kExitFailure;
}

// No host has so many threads.
constexpr int64_t kMaxThreads = 65536;

void Declare(FlagSet& flags, DoctorFlags& f) {
  flags.Add("--fix-plan", f.fix_plan,
            "print a shell script with what to change; changes nothing itself");
  flags.Add("--json", f.json, "JSON instead of text");
  flags.AddText("--model", f.model,
                "a model that must be there and fit; default: any in the folder");
  flags.Add("--workers", f.num_workers, {1, limits::kMaxWorkers}, "workers of this host");
  flags.Add("--threads", f.threads, {0, kMaxThreads},
            "compute threads of all of them; 0 = one per processor");
  flags.AddText(
      "--kv-memory", f.kv_memory,
      "KV pool of each worker; default: the larger of 1GiB and one full sequence of --model "
      "in bf16");
  flags.AddChoice("--device", f.device, {"auto", "cpu", "cuda"}, "where they compute");
  flags.AddAddress("--http", f.http, "address of the router that must be free");
  flags.AddAddress("--grpc", f.grpc, "address of the router that must be free");
  flags.AddAddress("--admin", f.admins,
                   "addresses that must be free; with --ledger: the admin address of a router, "
                   "several with commas (all that share workers); default 127.0.0.1:9090");
  flags.AddFile("--cluster-secret-file", f.secret_file, "file to be read");
  DeclareTls(flags, f.tls);
  flags.Add("--ledger", f.ledger,
            "audit the KV ledger of a running cluster instead: each held block must have an owner "
            "that its worker, its peer and a router know");
  flags.Add("--wait", f.wait_s, {0, 3600},
            "with --ledger: seconds that a block must stay without owner to be called an orphan; a "
            "lease is 10");
}

// Finds an error in the command line itself.
Status CheckFlags(const DoctorFlags& f) {
  if (f.fix_plan && (f.json || f.ledger)) {
    return InvalidArgument("--fix-plan is a script: without --json and --ledger");
  }
  if (!f.kv_memory.empty()) {
    const StatusOr<uint64_t> bytes = ParseSize(f.kv_memory);
    if (!bytes.ok()) return WithPrefix(bytes.status(), "--kv-memory");
  }
  return CheckTlsFlags(f.tls);
}

HostNeeds NeedsOf(const DoctorFlags& f) {
  HostNeeds needs;
  needs.num_workers = static_cast<uint32_t>(f.num_workers);
  needs.threads = static_cast<uint32_t>(f.threads);
  if (!f.kv_memory.empty()) needs.kv_memory_bytes = ParseSize(f.kv_memory).value();
  needs.device = f.device;
  return needs;
}

int ExamineHost(const DoctorFlags& f) {
  const int64_t start_us = SystemClock().NowUs();
  // The endpoints that are measured write log lines, which are no news here.
  if (const Status s = InitLog({.role = "doctor", .level = LogLevel::kError, .file = ""});
      !s.ok()) {
    return Fail("doctor", s);
  }
  ProbePlan plan;
  plan.ports = {{"--http", f.http}, {"--grpc", f.grpc}};
  for (const std::string& admin : f.admins) plan.ports.emplace_back("--admin", admin);
  plan.model = f.model;
  plan.tls = f.tls;
  plan.secret_file = f.secret_file;
  const std::vector<HostCheck> checks = CheckHost(ProbeHost(plan), NeedsOf(f));
  const int64_t elapsed_ms = (SystemClock().NowUs() - start_us) / 1000;
  std::string text = DoctorText(checks, elapsed_ms);
  if (f.json) text = DoctorJson(checks, elapsed_ms);
  if (f.fix_plan) text = DoctorFixPlan(checks);
  std::fputs(text.c_str(), stdout);
  const size_t num_problems = CountVerdicts(checks)[static_cast<size_t>(Verdict::kProblem)];
  return num_problems == 0 ? kExitOk : kExitFailure;
}

}  // namespace

int RunDoctor(const std::vector<std::string>& args) {
  FlagSet flags("doctor",
                "Examines this host: processors, memory, limits, ports, clocks, links, models, "
                "GPUs; what was found, why it matters, how to mend it. Changes nothing and needs "
                "no rights beyond a server's. Exit 1 when something keeps Baton from serving here "
                "(with --ledger: when a KV block is nobody's).");
  DoctorFlags f;
  Declare(flags, f);
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (const Status s = CheckFlags(f); !s.ok()) return Fail("doctor", s, kExitUsage);
  if (f.admins.empty()) f.admins.push_back("127.0.0.1:9090");
  return f.ledger ? AuditLedger(f) : ExamineHost(f);
}

}  // namespace baton::cli
