// `baton drain WORKER`: asks a router to let one worker go, and waits until it has gone.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "nlohmann/json.hpp"

#include "src/base/clock.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/http_client.h"
#include "src/cli/ledger_audit.h"

namespace baton {
namespace {

constexpr int64_t kPollMs = 100;
// What a worker needs beyond its drain timeout: two heartbeats before, a second of grace after.
constexpr int64_t kSlackMs = 5000;

// Asks; the incarnation that is to leave.
StatusOr<std::string> AskToLeave(const std::string& admin, const std::string& worker,
                                 int64_t timeout_s) {
  const std::string target = fmt::format("/drain?worker={}&timeout_s={}", worker, timeout_s);
  BATON_ASSIGN_OR_RETURN(const HttpClientResponse response, CallAdmin("POST", admin, target));
  std::string text = response.body;
  while (!text.empty() && text.back() == '\n') text.pop_back();
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

// True once no worker of that incarnation is registered.
StatusOr<bool> HasLeft(const std::string& admin, const std::string& incarnation) {
  BATON_ASSIGN_OR_RETURN(const HttpClientResponse response,
                         CallAdmin("GET", admin, "/v1/topology"));
  if (response.status != 200) return Unavailable("/v1/topology answers {}", response.status);
  BATON_ASSIGN_OR_RETURN(const std::vector<LedgerProcess> workers,
                         ReadLedgerWorkers(response.body));
  return std::none_of(workers.begin(), workers.end(),
                      [&](const auto& worker) { return worker.incarnation == incarnation; });
}

Status WaitUntilGone(const std::string& admin, const std::string& incarnation, int64_t limit_ms) {
  const int64_t start_us = SystemClock().NowUs();
  int64_t answered_us = start_us;
  for (;;) {
    const StatusOr<bool> left = HasLeft(admin, incarnation);
    const int64_t now_us = SystemClock().NowUs();
    if (left.ok() && *left) return OkStatus();
    if (left.ok()) answered_us = now_us;
    if (!left.ok() && now_us - answered_us > kSlackMs * 1000) {
      return WithPrefix(left.status(), "the router was lost while the worker drained");
    }
    if (limit_ms > 0 && now_us - start_us > limit_ms * 1000) {
      return DeadlineExceeded("it is still registered after {} ms", limit_ms);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
  }
}

Status CheckWorkerName(const std::string& worker) {
  const bool valid = !worker.empty() && std::all_of(worker.begin(), worker.end(), [](char c) {
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
  int64_t timeout_s = 0;
  flags.Add("WORKER", worker, "id of the worker, e.g. decode-0");
  flags.AddAddress("--admin", admin, "admin address of a router");
  flags.Add("--timeout", timeout_s, {0, 86400},
            "seconds that its running requests get; 0 = the worker's own --drain-timeout");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (const Status s = CheckWorkerName(worker); !s.ok()) return Fail("drain", s, kExitUsage);
  const int64_t start_us = SystemClock().NowUs();
  const StatusOr<std::string> incarnation = AskToLeave(admin, worker, timeout_s);
  if (!incarnation.ok()) return Fail("drain", incarnation.status());
  const int64_t limit_ms = timeout_s == 0 ? 0 : timeout_s * 1000 + kSlackMs;
  if (const Status s = WaitUntilGone(admin, *incarnation, limit_ms); !s.ok()) {
    return Fail("drain", WithPrefix(s, worker));
  }
  fmt::print("{} left after {} ms\n", worker, (SystemClock().NowUs() - start_us) / 1000);
  return kExitOk;
}

}  // namespace baton
