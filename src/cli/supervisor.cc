#include "src/cli/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>
#include <system_error>
#include <utility>

#include "nlohmann/json.hpp"

#include "src/base/clock.h"
#include "src/base/log_sink.h"
#include "src/base/signal_text.h"
#include "src/base/thread.h"
#include "src/cli/child_program.h"
#include "src/cli/http_client.h"
#include "src/cli/replace_file.h"
#include "src/cli/role_signals.h"
#include "src/cli/top/top_frame.h"

namespace baton::cli {
namespace {

constexpr int64_t kFirstBackoffUs = 200'000;
constexpr int64_t kMaxBackoffUs = 5'000'000;
// The backoff of a child that keeps dying: a load costs seconds of processor time, which the others
// need.
constexpr int64_t kLongBackoffUs = 20'000'000;
constexpr int64_t kQuickDeathUs = 10'000'000;
constexpr int kMaxQuickDeaths = 5;
// Loading is bounded by reading the file once; ten minutes covers a 100 GB file on a slow disk.
constexpr int64_t kReadyTimeoutUs = 600'000'000;
constexpr int64_t kReadyPollMs = 20;
// A small model is ready before: what waits for longer has a reason to tell.
constexpr int64_t kFirstSayUs = 10'000'000;
// For the connections between workers, once the router would serve.
constexpr int64_t kLinkTimeoutUs = 5'000'000;
constexpr int64_t kIdlePollMs = 1000;
// All children are asked every 5 s, or sooner so that the least silence fits into the timeout. One
// that does not answer (CallAdmin: 3 s) leaves signals and deaths waiting, and makes 23 s of 15.
constexpr int64_t kMaxAskPeriodUs = 5'000'000;
constexpr int kMinSilences = 3;
// A worker ends itself after kEndLimit, with its own exit code, even while the system still takes
// its KV pool back: 1.4 s a GiB beside ten busy processes on two processors.
constexpr int64_t kKillAfterUs = 7'000'000;
static_assert(std::chrono::microseconds(kKillAfterUs) >= kEndLimit + std::chrono::seconds(1));
// A kill comes so long after a drain's own time: a router gives its last calls 2 s, twice.
constexpr int64_t kDrainKillAfterUs = 10'000'000;
// A draining process accepts connections for 5 s before it counts its drain timeout.
constexpr int64_t kPropagationUs = 5'000'000;

// How a child ended, after "it ended".
std::string DescribeEnd(int wait_status) {
  if (WIFSIGNALED(wait_status)) return fmt::format("by {}", SignalText(WTERMSIG(wait_status)));
  return fmt::format("with exit code {}", WEXITSTATUS(wait_status));
}

// Why a child did not start. A child that exits has logged the reason last; one that a signal ended
// may have had no time to.
std::string DescribeFailedStart(int wait_status, const std::string& line) {
  if (WIFEXITED(wait_status) && !line.empty()) return line;
  return fmt::format("it ended {}{}{}", DescribeEnd(wait_status),
                     line.empty() ? "" : "; its last line: ", line);
}

// A row of topology.json.
nlohmann::ordered_json TopologyRow(const ChildReport& report, pid_t pid) {
  const auto text = [&](const char* key) {
    const auto found = report.find(key);
    return found == report.end() ? std::string() : found->second;
  };
  nlohmann::ordered_json row;
  row["role"] = text("role");
  row["worker_id"] = text("worker_id");
  row["incarnation"] = text("incarnation");
  row["pid"] = pid;
  row["grpc"] = text("grpc");
  if (text("role") == "router") row["http"] = text("http");
  if (text("https") == "on") row["https"] = true;
  row["admin"] = text("admin");
  row["kv"] = text("kv");
  return row;
}

// A child from which this came is not there: other errors are ours, or come from one that lives.
bool IsSilence(const Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
}

}  // namespace

Status Supervisor::Run() {
  sigset_t mask;
  sigemptyset(&mask);
  for (int number : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&mask, number);
  AddUnlessIgnored(SIGHUP, &mask);
  ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  signals_.reset(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return Unavailable("signalfd failed with errno {}", errno);

  start_us_ = SystemClock().NowUs();
  say_us_ = start_us_ + kFirstSayUs;
  WriteTopology();  // the folder may be that of one that was killed
  Status status = StartRouter();
  if (status.ok() && !has_stop_signal_) status = StartWorkers();
  if (status.ok() && !has_stop_signal_) status = WaitUntilReady();
  while (status.ok() && !has_stop_signal_) {
    status = Poll(kIdlePollMs);
    if (status.ok() && !has_stop_signal_) AskWhoIsThere();
  }
  if (!status.ok()) fast_ = true;
  const Status drained = Drain();
  return status.ok() ? drained : status;
}

bool Supervisor::Slot::KeepsDying() const { return num_quick_deaths >= kMaxQuickDeaths; }

Status Supervisor::StartSlot(Slot& slot) {
  BATON_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(slot.spec));
  slot.process.emplace(std::move(process));
  slot.reports.clear();
  slot.started_us = SystemClock().NowUs();
  slot.restart_us = 0;
  slot.num_silences = 0;
  slot.is_killed = false;
  return OkStatus();
}

Status Supervisor::StartRouter() {
  slots_.push_back(Slot{.spec = config_.router});
  BATON_RETURN_IF_ERROR(StartSlot(slots_[0]));
  while (!slots_[0].has_reported() && !has_stop_signal_) {
    BATON_RETURN_IF_ERROR(Poll(kReadyPollMs));
  }
  started_router_ = true;
  return OkStatus();
}

Status Supervisor::StartWorkers() {
  // The router's ports are kept over its restarts, so that workers and clients find it again.
  const ChildReport& router = slots_[0].reports.front();
  for (const char* flag : {"grpc", "http", "admin"}) {
    const auto address = router.find(flag);
    if (address == router.end()) return Internal("the router did not report its {} address", flag);
    slots_[0].spec.args.push_back(fmt::format("--{}={}", flag, address->second));
  }
  for (ChildSpec& spec : config_.workers(router)) {
    slots_.push_back(Slot{.spec = std::move(spec)});
    BATON_RETURN_IF_ERROR(StartSlot(slots_.back()));
  }
  return OkStatus();
}

StatusOr<std::string> Supervisor::AskRouter(const std::string& target) const {
  BATON_ASSIGN_OR_RETURN(const HttpClientResponse response,
                         CallAdmin("GET", slots_[0].reports.front().at("admin"), target));
  if (response.status != 200) return Unavailable("the router answers {}", response.status);
  return response.body;
}

bool Supervisor::ready_to_serve() const {
  for (const Slot& slot : slots_) {
    if (!slot.has_reported()) return false;
  }
  return AskRouter("/readyz").ok();
}

bool Supervisor::AllAreLinked() const {
  const StatusOr<std::string> text = AskRouter("/v1/topology");
  if (!text.ok()) return false;
  const StatusOr<TopSnapshot> topology = ReadTopTopology(*text);
  if (!topology.ok()) return false;
  std::map<std::string, std::vector<std::string>> decodes;  // by model
  for (const Slot& slot : slots_) {
    for (const ChildReport& report : slot.reports) {
      if (report.at("role") != "decode") continue;
      decodes[slot.spec.model_id].push_back(report.at("worker_id"));
    }
  }
  // Workers that somebody else started may be there too.
  const auto is_linked = [](const TopWorker& prefill, const std::string& decode) {
    const auto leads_there = [&](const TopLink& link) { return link.up && link.to == decode; };
    const auto never_will = [&](const TopUnpaired& other) { return other.with == decode; };
    return std::ranges::any_of(prefill.links, leads_there) ||
           std::ranges::any_of(prefill.not_paired, never_will);
  };
  const auto is_done = [&](const std::string& model, const ChildReport& report) {
    if (report.at("role") == "router") return true;
    const auto row =
        std::ranges::find(topology->workers, report.at("worker_id"), &TopWorker::worker_id);
    if (row == topology->workers.end() || !row->ready) return false;
    return row->role != "prefill" ||
           std::ranges::all_of(decodes[model],
                               [&](const std::string& decode) { return is_linked(*row, decode); });
  };
  return std::ranges::all_of(slots_, [&](const Slot& slot) {
    return std::ranges::all_of(slot.reports, [&](const ChildReport& report) {
      return is_done(slot.spec.model_id, report);
    });
  });
}

Status Supervisor::WaitUntilReady() {
  const int64_t deadline_us = SystemClock().NowUs() + kReadyTimeoutUs;
  while (!has_stop_signal_ && !ready_to_serve()) {
    if (SystemClock().NowUs() > deadline_us) {
      return DeadlineExceeded("not ready after {} s; see the logs in {}", kReadyTimeoutUs / 1000000,
                              config_.run_dir);
    }
    BATON_RETURN_IF_ERROR(Poll(kReadyPollMs));
  }
  // Until then requests would go to the workers that happen to be connected first.
  const int64_t linked_us = SystemClock().NowUs() + kLinkTimeoutUs;
  while (!has_stop_signal_ && SystemClock().NowUs() < linked_us && !AllAreLinked()) {
    BATON_RETURN_IF_ERROR(Poll(kReadyPollMs));
  }
  ready_ = true;
  if (has_stop_signal_) return OkStatus();
  std::vector<ChildReport> workers;
  for (size_t i = 1; i < slots_.size(); ++i) {
    workers.insert(workers.end(), slots_[i].reports.begin(), slots_[i].reports.end());
  }
  config_.on_ready(slots_[0].reports.front(), workers);
  return OkStatus();
}

void Supervisor::AskWhoIsThere() {
  const int64_t now_us = SystemClock().NowUs();
  const int64_t timeout_us = config_.silence_timeout_s * 1'000'000;
  if (timeout_us == 0 || now_us < ask_us_) return;
  ask_us_ = now_us + std::min(timeout_us / (kMinSilences + 1), kMaxAskPeriodUs);
  std::vector<std::pair<Slot*, Status>> answers;
  for (Slot& slot : slots_) {
    if (!slot.process || !slot.has_reported() || slot.is_killed) continue;
    answers.emplace_back(&slot, Status());
  }
  {
    std::vector<Thread> threads;
    try {
      for (auto& answer : answers) {
        const std::string& admin = answer.first->reports.front().at("admin");
        threads.emplace_back("ask-child", [&answer, admin] {
          answer.second = CallAdmin("GET", admin, "/livez").status();
        });
      }
    } catch (const std::system_error&) {
      // No thread is to be had: who has not been asked is no suspect.
    }
  }
  for (const auto& [slot, status] : answers) OnAnswer(*slot, status, now_us);
}

void Supervisor::OnAnswer(Slot& slot, const Status& status, int64_t asked_us) {
  if (!IsSilence(status)) {
    slot.num_silences = 0;
    return;
  }
  if (slot.num_silences++ == 0) slot.silent_us = asked_us;
  const int64_t silent_us = SystemClock().NowUs() - slot.silent_us;
  if (slot.num_silences < kMinSilences || silent_us < config_.silence_timeout_s * 1'000'000) return;
  PrintToStderr("{} has not answered for {} s ({}); it is killed\n", slot.spec.name,
                silent_us / 1'000'000, std::string(status.message()));
  slot.process->Signal(SIGKILL);
  slot.is_killed = true;
}

Status Supervisor::Poll(int64_t timeout_ms) {
  const int64_t now_us = SystemClock().NowUs();
  std::vector<pollfd> fds = {{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
  for (const Slot& slot : slots_) {
    if (slot.process && slot.process->report_fd() >= 0 && !slot.has_reported()) {
      fds.push_back({.fd = slot.process->report_fd(), .events = POLLIN, .revents = 0});
    }
    if (slot.restart_us != 0) {
      timeout_ms =
          std::min(timeout_ms, std::max<int64_t>(0, (slot.restart_us - now_us) / 1000 + 1));
    }
  }
  (void)::poll(fds.data(), fds.size(), static_cast<int>(timeout_ms));
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) OnSignal(static_cast<int>(info.ssi_signo));
  }
  ReadReports();
  BATON_RETURN_IF_ERROR(ReapChildren());
  if (topology_is_old_) WriteTopology();
  if (!draining_) RestartDue(SystemClock().NowUs());
  if (!draining_ && !ready_) SayWhatIsAwaited(SystemClock().NowUs());
  return OkStatus();
}

void Supervisor::SayWhatIsAwaited(int64_t now_us) {
  if (now_us < say_us_) return;
  const int64_t waited_us = now_us - start_us_;
  say_us_ = start_us_ + 2 * waited_us;
  for (Slot& slot : slots_) {
    std::string line = slot.process ? slot.process->LastLogLine() : "";
    if (line.empty() || line == slot.said_line) continue;
    PrintToStderr("not ready after {} s; the last line of {}: {}\n", waited_us / 1'000'000,
                  slot.spec.name, line);
    slot.said_line = std::move(line);
  }
}

void Supervisor::OnSignal(int number) {
  has_stop_signal_ = true;
  // SIGHUP asks for a drain, but never for an end at once (role_signals.cc).
  if (number == SIGTERM) ++num_sigterms_;
  if (number == SIGINT || num_sigterms_ > 1) fast_ = true;
}

void Supervisor::ReadReports() {
  for (Slot& slot : slots_) {
    if (!slot.process || slot.process->report_fd() < 0) continue;
    while (!slot.has_reported()) {
      StatusOr<std::optional<ChildReport>> report = slot.process->ReadReport();
      if (!report.ok() || !*report) break;
      slot.reports.push_back(std::move(**report));
      if (slot.has_reported()) WriteTopology();
    }
  }
}

Status Supervisor::ReapChildren() {
  int wait_status = 0;
  pid_t pid = 0;
  Status first = OkStatus();
  while ((pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0) {
    for (Slot& slot : slots_) {
      if (!slot.process || slot.process->pid() != pid) continue;
      const Status status = OnDeath(slot, wait_status);
      if (first.ok()) first = status;
    }
  }
  return first;
}

Status Supervisor::OnDeath(Slot& slot, int wait_status) {
  const int64_t now_us = SystemClock().NowUs();
  const std::string line = slot.process->LastLogLine();
  const std::string end = DescribeEnd(wait_status);
  const bool has_lived = slot.has_reported() && now_us - slot.started_us >= kQuickDeathUs;
  const bool was_killed = slot.is_killed;
  slot.process.reset();
  if (config_.on_death) config_.on_death(slot.spec);
  slot.reports.clear();
  slot.spec.starts_without_log = true;  // the next life matters more than its log
  WriteTopology();
  if (draining_) {
    // Our own signal ends a child that has not come to handling it.
    const bool obeyed = WIFEXITED(wait_status)
                            ? WEXITSTATUS(wait_status) == 0
                            : WTERMSIG(wait_status) == SIGINT || WTERMSIG(wait_status) == SIGTERM;
    if (!obeyed && unclean_end_.ok()) {
      unclean_end_ = was_killed
                         ? Unavailable("{} did not end in time and was killed; see {}",
                                       slot.spec.name, slot.spec.log_file)
                         : Unavailable("{} did not end cleanly, but {}{}{}; see {}", slot.spec.name,
                                       end, line.empty() ? "" : ": ", line, slot.spec.log_file);
    }
    return OkStatus();
  }
  if (!ready_) {
    return Unavailable("{} did not start: {}", slot.spec.name,
                       DescribeFailedStart(wait_status, line));
  }
  // It was asked to leave and has drained: no fault, however often it happens.
  const bool left = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
  const bool quick = !left && !has_lived;
  slot.num_quick_deaths = quick ? slot.num_quick_deaths + 1 : 0;
  slot.backoff_us =
      quick ? std::clamp(slot.backoff_us * 2, kFirstBackoffUs, kMaxBackoffUs) : kFirstBackoffUs;
  if (slot.KeepsDying()) slot.backoff_us = kLongBackoffUs;
  slot.restart_us = now_us + slot.backoff_us;
  if (!slot.KeepsDying()) {
    // A child that dies as it starts, or crashes, has said why, unless somebody killed it.
    const bool by_signal = WIFSIGNALED(wait_status);
    const bool by_kill = by_signal && WTERMSIG(wait_status) == SIGKILL;
    const bool has_reason = (quick || by_signal) && !by_kill && !line.empty();
    const bool is_new = has_reason && std::exchange(slot.said_line, line) != line;
    PrintToStderr("{} ended {}; starting it again in {} ms{}{}\n", slot.spec.name, end,
                  slot.backoff_us / 1000, is_new ? "; its last line: " : "", is_new ? line : "");
    return OkStatus();
  }
  // Decode workers can compute prompts themselves; prefill workers alone answer nobody.
  const bool can_serve = std::any_of(slots_.begin() + 1, slots_.end(), [](const Slot& s) {
    const bool decodes = s.spec.role == "decode" || s.spec.num_reports > 1;
    return decodes && (s.has_reported() || !s.KeepsDying());
  });
  if (slot.spec.role == "router" || !can_serve) {
    return Unavailable("{} keeps dying; see {}", slot.spec.name, slot.spec.log_file);
  }
  PrintToStderr("{} ended {}, {} times in a row; starting it again in {} ms; see {}\n",
                slot.spec.name, end, slot.num_quick_deaths, slot.backoff_us / 1000,
                slot.spec.log_file);
  return OkStatus();
}

void Supervisor::RestartDue(int64_t now_us) {
  for (Slot& slot : slots_) {
    if (slot.restart_us == 0 || slot.restart_us > now_us) continue;
    if (config_.before_restart) config_.before_restart();
    const Status status = StartSlot(slot);
    if (status.ok()) continue;
    slot.restart_us = now_us + std::max(slot.backoff_us, kMaxBackoffUs);
    PrintToStderr("{}: {}\n", slot.spec.name, std::string(status.message()));
  }
}

bool Supervisor::AnyAlive(bool routers) const {
  return std::any_of(slots_.begin(), slots_.end(), [routers](const Slot& slot) {
    return slot.process && (slot.spec.role == "router") == routers;
  });
}

void Supervisor::SignalAll(bool routers, int number) {
  for (Slot& slot : slots_) {
    if (!slot.process || (slot.spec.role == "router") != routers) continue;
    slot.process->Signal(number);
    if (number == SIGKILL) slot.is_killed = true;
  }
}

// The router first: it lets running streams end while the workers still serve it.
Status Supervisor::Drain() {
  draining_ = true;
  BATON_RETURN_IF_ERROR(DrainSlots(/*routers=*/true));
  BATON_RETURN_IF_ERROR(DrainSlots(/*routers=*/false));
  return unclean_end_;
}

Status Supervisor::DrainSlots(bool routers) {
  int64_t deadline_us = SystemClock().NowUs() + kPropagationUs +
                        config_.drain_timeout_s * 1'000'000 + kDrainKillAfterUs;
  // SIGINT asks a child to end at once; SIGTERM to drain first.
  bool sent_fast = fast_;
  SignalAll(routers, fast_ ? SIGINT : SIGTERM);
  if (fast_) deadline_us = std::min(deadline_us, SystemClock().NowUs() + kKillAfterUs);
  while (AnyAlive(routers)) {
    BATON_RETURN_IF_ERROR(Poll(kReadyPollMs));
    if (fast_ && !sent_fast) {
      sent_fast = true;
      SignalAll(routers, SIGINT);
      deadline_us = SystemClock().NowUs() + kKillAfterUs;
    }
    if (SystemClock().NowUs() > deadline_us) SignalAll(routers, SIGKILL);
  }
  return OkStatus();
}

void Supervisor::WriteTopology() {
  nlohmann::ordered_json root;
  root["model"] = config_.model_id;
  root["processes"] = nlohmann::ordered_json::array();
  for (const Slot& slot : slots_) {
    if (!slot.process || !slot.has_reported()) continue;
    for (const ChildReport& report : slot.reports) {
      nlohmann::ordered_json row = TopologyRow(report, slot.process->pid());
      if (config_.has_several_models && slot.spec.role != "router") {
        row["model"] = slot.spec.model_id;
      }
      root["processes"].push_back(std::move(row));
    }
  }
  const std::string path = config_.run_dir + "/topology.json";
  const Status status = ReplaceFile(path, root.dump(1) + "\n", 0644);
  if (!status.ok() && !topology_is_old_) {
    PrintToStderr("{}; it is out of date until it can be written\n", std::string(status.message()));
  }
  topology_is_old_ = !status.ok();
}

}  // namespace baton::cli
