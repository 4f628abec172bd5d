// `baton drain WORKER`: asks a router to let one worker go, and waits until it has gone.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "nlohmann/json.hpp"

#include "src/base/clock.h"
#include "src/base/limits.h"
#include "src/base/print.h"
#include "src/cli/admin_page.h"
#include "src/cli/commands.h"
#include "src/cli/drain_step.h"
#include "src/cli/flags.h"
#include "src/cli/http_client.h"
#include "src/cli/ledger_audit.h"

namespace baton::cli {
namespace {

constexpr std::chrono::milliseconds kPollEvery(100);
// The time that a worker needs beyond the time of its requests: two heartbeats before, a second of
// grace and the end of its process after. A router may also be silent for so long.
constexpr int64_t kSlackUs = 10'000'000;
constexpr int64_t kSecondUs = 1'000'000;

int64_t NowUs() { return SystemClock().NowUs(); }

StatusOr<std::vector<LedgerProcess>> ReadWorkers(const std::string& admin) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadAdminPage(admin, "/v1/topology"));
  return ReadLedgerWorkers(text);
}

// Asks; the incarnation that is to leave. A router that is busy is asked again: the order may have
// been heard, and twice does no harm.
StatusOr<std::string> AskToLeave(const std::string& admin, const std::string& worker,
                                 int64_t timeout_s) {
  const std::string target = fmt::format("/drain?worker={}&timeout_s={}", worker, timeout_s);
  const int64_t start_us = NowUs();
  HttpClientResponse response;
  for (;;) {
    BATON_ASSIGN_OR_RETURN(response, CallAdmin("POST", admin, target));
    if (response.status != 503 || NowUs() - start_us > kSlackUs) break;
    std::this_thread::sleep_for(kPollEvery);
  }
  std::string text = response.body;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  // The public port has the topology too, and answers in JSON that it has no /drain.
  if (response.status == 404 && text.starts_with("{")) {
    return NotFound("{} has no /drain: it is not the admin port of a router", admin);
  }
  if (response.status == 404) return NotFound("{}", text);
  if (response.status != 202) {
    return Unavailable("the router's admin port answers {}: {}", response.status, text);
  }
  const nlohmann::json answer = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || !answer.contains("incarnation") ||
      !answer["incarnation"].is_string()) {
    return DataLoss("the router's answer names no incarnation: {}", text);
  }
  return answer["incarnation"].get<std::string>();
}

// Asks; the life that is to leave, without an admin address when it has registered just now.
StatusOr<LedgerProcess> BeginDrain(const std::string& admin, const std::string& worker,
                                   int64_t timeout_s) {
  BATON_ASSIGN_OR_RETURN(const std::vector<LedgerProcess> workers, ReadWorkers(admin));
  BATON_ASSIGN_OR_RETURN(const std::string incarnation, AskToLeave(admin, worker, timeout_s));
  for (const LedgerProcess& row : workers) {
    if (row.incarnation == incarnation) return row;
  }
  return LedgerProcess{.worker_id = worker, .incarnation = incarnation};
}

// False once nobody listens there. A frozen process still takes connections, and one that is out of
// reach, or whose address is not known, may be there.
bool MayBeThere(const std::string& admin) {
  return admin.empty() || !absl::IsUnavailable(CallAdmin("GET", admin, "/livez").status());
}

// A worker that had registered just before it was asked shows its admin address later.
void LearnAddress(const std::vector<LedgerProcess>& workers, LedgerProcess* leaver) {
  for (const LedgerProcess& row : workers) {
    if (row.incarnation == leaver->incarnation) leaver->admin = row.admin;
  }
}

Status WaitUntilGone(const std::string& admin, LedgerProcess leaver, int64_t timeout_s) {
  const int64_t start_us = NowUs();
  const int64_t end_us = start_us + timeout_s * kSecondUs;
  int64_t answered_us = start_us;
  for (;; std::this_thread::sleep_for(kPollEvery)) {
    const StatusOr<std::vector<LedgerProcess>> workers = ReadWorkers(admin);
    const int64_t now_us = NowUs();
    DrainStep step = DrainStep::kWait;
    if (workers.ok()) {
      answered_us = now_us;
      LearnAddress(*workers, &leaver);
      step = NextDrainStep(*workers, leaver, [&leaver] { return MayBeThere(leaver.admin); });
    } else if (now_us - answered_us > kSlackUs) {
      return WithPrefix(workers.status(), "the router was lost while the worker drained");
    }
    if (step == DrainStep::kLeft) return OkStatus();
    if (step == DrainStep::kAskAgain) {
      const int64_t left_s = std::max<int64_t>(1, (end_us - now_us) / kSecondUs);
      // The next look shows the result of this call.
      AskToLeave(admin, leaver.worker_id, left_s).status().IgnoreError();
    }
    if (now_us > end_us + kSlackUs) {
      return DeadlineExceeded("it is still there after {} ms", (now_us - start_us) / 1000);
    }
  }
}

Status CheckWorkerName(const std::string& worker) {
  if (worker.empty()) return InvalidArgument("WORKER is missing, such as decode-0");
  const bool valid = std::all_of(worker.begin(), worker.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (valid) return OkStatus();
  return InvalidArgument("WORKER '{}' is no worker id, such as decode-0", worker);
}

}  // namespace

int RunDrain(const std::vector<std::string>& args) {
  FlagSet flags("drain",
                "Asks a worker to leave and waits until it has: it takes no new request, what runs "
                "there ends or goes on at another worker, its process exits. `serve` starts it "
                "again, so draining each worker in turn is a rolling restart.");
  std::string worker;
  std::string admin = "127.0.0.1:9090";
  int64_t timeout_s = 60;
  flags.Add("WORKER", worker, "id of the worker, e.g. decode-0");
  flags.AddAdmin("--admin", admin, "admin address of a router");
  flags.AddHint("--url", "give the router's admin address: --admin HOST:PORT");
  flags.Add("--timeout", timeout_s, {1, limits::kMaxDrainTimeoutS},
            "seconds that its running requests get; what is left then goes on elsewhere");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (const Status s = CheckWorkerName(worker); !s.ok()) return Fail("drain", s, kExitUsage);
  const int64_t start_us = NowUs();
  const StatusOr<LedgerProcess> leaver = BeginDrain(admin, worker, timeout_s);
  if (!leaver.ok()) return Fail("drain", leaver.status());
  if (const Status s = WaitUntilGone(admin, *leaver, timeout_s); !s.ok()) {
    return Fail("drain", WithPrefix(s, worker));
  }
  Print("{} left after {} ms\n", worker, (NowUs() - start_us) / 1000);
  return kExitOk;
}

}  // namespace baton::cli
