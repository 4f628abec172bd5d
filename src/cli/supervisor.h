// The parent of `serve`: starts a router and its workers as processes, restarts the dead, keeps
// topology.json true, and drains all of them on a signal. One thread: the process's main thread; a
// few that ask the children live for no longer than one call of it.
//
// Invariants
//  1. A child that dies is started again after a back-off of 0.2 s, doubled to at most 5 s; from
//     the fifth death in a row on, each before it could serve or within 10 s of its start, after
//     20 s. One that exits with 0 was asked to leave: it is started again too, and counts as no
//     death. When the router has died so often, or every worker that decodes has and none of them
//     serves again, Run ends.
//  2. topology.json lists exactly the children that are alive and have reported, one that is two
//     workers in two rows; while it cannot be written (disk full) the last whole one stays, that is
//     said, and it is tried again.
//  3. Run returns only when no child is left.
//  4. A child that serves is asked on its admin port whether it is there. One that has not answered
//     for `silence_timeout_s`, three questions or more in a row, is killed once, and so started
//     again. An answer that is not "ok" is one: a step of a large model may be long.
//  5. While they start, the last line of each child's log is printed after 10 s, 20 s, 40 s and so
//     on, where it is a new one.
#ifndef BATON_CLI_SUPERVISOR_H_
#define BATON_CLI_SUPERVISOR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "src/cli/child_process.h"

namespace baton::cli {

// The facts that the parent needs.
struct SupervisorConfig {
  std::string run_dir;   // must exist
  std::string model_id;  // for topology.json; of several models their ids with commas between
  bool has_several_models = false;  // each worker's row says of which one it is
  int64_t drain_timeout_s = 60;
  int64_t silence_timeout_s = 15;  // 0 = a child that is silent is left alone
  // Given the router's report, the workers to start.
  std::function<std::vector<ChildSpec>(const ChildReport& router)> workers;
  ChildSpec router;
  // Called before a process is started again: what it needs in run_dir may have been removed.
  std::function<void()> before_restart;
  // Called when a process has ended and was reaped; may be empty.
  std::function<void(const ChildSpec& ended)> on_death;
  // Called once, when the router would serve a request and each prefill worker has its connections,
  // for which a router that is ready waits at most 5 s; a report for each worker.
  std::function<void(const ChildReport& router, const std::vector<ChildReport>& workers)> on_ready;
};

// See the file comment.
class Supervisor {
 public:
  explicit Supervisor(SupervisorConfig config) : config_(std::move(config)) {}

  // Runs until a signal or until nothing is left to run. OK = drained after a signal with every
  // child exiting 0; otherwise the reason in one sentence.
  Status Run();

  // After Run: the router had its ports. Else no worker was started, and no model read.
  bool started_router() const { return started_router_; }

 private:
  // A place in the pool and the process that fills it, if any.
  struct Slot {
    ChildSpec spec;
    std::optional<ChildProcess> process;
    std::vector<ChildReport> reports;
    int64_t started_us = 0;
    int64_t restart_us = 0;  // when to start it again; 0 = not waiting
    int64_t backoff_us = 0;
    int num_quick_deaths = 0;  // in a row; see invariant 1
    int num_silences = 0;      // questions in a row that it has not answered
    int64_t silent_us = 0;     // when the first of these was asked
    std::string said_line;     // of its log, printed last
    bool is_killed = false;    // by us, for its silence or because it did not end in time

    // It lives and serves: a death takes its reports.
    bool has_reported() const { return reports.size() == spec.num_reports; }
    // It has died too often for the short back-off.
    bool KeepsDying() const;
  };

  Status StartSlot(Slot& slot);
  Status StartRouter();
  Status StartWorkers();
  Status WaitUntilReady();
  // When it is time, asks all children that serve at once.
  void AskWhoIsThere();
  // Kills one that has not answered for too long.
  void OnAnswer(Slot& slot, const Status& status, int64_t asked_us);
  // One wait of at most `timeout_ms` for signals, reports and deaths.
  Status Poll(int64_t timeout_ms);
  Status ReapChildren();
  Status OnDeath(Slot& slot, int wait_status);
  void ReadReports();
  void RestartDue(int64_t now_us);
  // When it is time, prints what each child has logged last: the reason why nothing serves yet.
  void SayWhatIsAwaited(int64_t now_us);
  void OnSignal(int number);
  void SignalAll(bool routers, int number);
  Status Drain();
  Status DrainSlots(bool routers);
  void WriteTopology();
  bool AnyAlive(bool routers) const;
  // The answer of the router's admin port.
  StatusOr<std::string> AskRouter(const std::string& target) const;
  bool ready_to_serve() const;
  // The router knows all workers of ours, and each prefill worker among them is connected to each
  // decode worker or never will be.
  bool AllAreLinked() const;

  SupervisorConfig config_;
  std::vector<Slot> slots_;  // [0] is the router
  UniqueFd signals_;
  int64_t ask_us_ = 0;  // when to ask the children again whether they are there
  int64_t start_us_ = 0;
  int64_t say_us_ = 0;  // when to print again what is awaited
  bool started_router_ = false;
  bool has_stop_signal_ = false;
  int num_sigterms_ = 0;
  bool fast_ = false;  // stop without waiting for running requests
  bool ready_ = false;
  bool draining_ = false;
  Status unclean_end_;            // of the first child that did not obey
  bool topology_is_old_ = false;  // the last write failed; every Poll tries again
};

}  // namespace baton::cli

#endif  // BATON_CLI_SUPERVISOR_H_
