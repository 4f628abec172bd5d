// `baton top`: pools, workers, queues, blocks and links of a running cluster, once or live.
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "src/base/clock.h"
#include "src/cli/admin_page.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/top/top_frame.h"

namespace baton::cli {
namespace {

StatusOr<MetricPage> ReadMetrics(const std::string& address) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadAdminPage(address, "/metrics"));
  return MetricPage::Parse(text);
}

StatusOr<TopSnapshot> TakeSnapshot(const std::string& admin) {
  BATON_ASSIGN_OR_RETURN(const std::string topology, ReadAdminPage(admin, "/v1/topology"));
  BATON_ASSIGN_OR_RETURN(TopSnapshot snapshot, ReadTopTopology(topology));
  BATON_ASSIGN_OR_RETURN(snapshot.router, ReadMetrics(admin));
  snapshot.taken_us = SystemClock().NowUs();
  for (TopWorker& worker : snapshot.workers) {
    StatusOr<MetricPage> metrics = ReadMetrics(worker.admin);
    if (metrics.ok()) {
      worker.metrics = *std::move(metrics);
      worker.taken_us = SystemClock().NowUs();
    } else {
      worker.error = std::string(metrics.status().message());
    }
  }
  return snapshot;
}

FrameSize TerminalSize() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return {};
  return {.columns = size.ws_col, .rows = size.ws_row};
}

void Put(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Until a signal ends the process. A router that is away for a while is one line.
[[noreturn]] void ShowLive(const std::string& admin, TopSnapshot before,
                           std::chrono::seconds interval) {
  Put("\x1b[2J");
  for (;;) {
    std::this_thread::sleep_for(interval);
    StatusOr<TopSnapshot> now = TakeSnapshot(admin);
    std::vector<FrameLine> lines = {{std::string(now.status().message()), LineStyle::kWarning}};
    if (now.ok()) lines = TopFrame(&before, *now);
    Put("\x1b[H" + PaintFrame(lines, TerminalSize(), true));
    if (now.ok()) before = *std::move(now);
  }
}

}  // namespace

int RunTop(const std::vector<std::string>& args) {
  FlagSet flags("top",
                "Shows the pools, workers, queues, KV blocks and links of a running cluster, with "
                "rates over the interval. Ctrl-C ends it.");
  std::string admin = "127.0.0.1:9090";
  int64_t interval_s = 1;
  bool once = false;
  flags.AddAdmin("--admin", admin, "admin address of a router");
  flags.AddHint("--url", "give the router's admin address: --admin HOST:PORT");
  flags.Add("--interval", interval_s, {1, 3600}, "seconds between two looks");
  flags.Add("--once", once, "one frame, after one interval; what a pipe gets too");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  const std::chrono::seconds interval(interval_s);
  StatusOr<TopSnapshot> first = TakeSnapshot(admin);
  if (!first.ok()) return Fail("top", first.status());
  if (!once && isatty(STDOUT_FILENO) == 1) {
    Put(PaintFrame(TopFrame(nullptr, *first), TerminalSize(), true));
    ShowLive(admin, *std::move(first), interval);
  }
  std::this_thread::sleep_for(interval);
  const StatusOr<TopSnapshot> now = TakeSnapshot(admin);
  if (!now.ok()) return Fail("top", now.status());
  Put(PaintFrame(TopFrame(&*first, *now), {}, false));
  return kExitOk;
}

}  // namespace baton::cli
