// RoleSignals: how a role's process learns that it should end.
//   SIGTERM  drains; a second one ends the process now
//   SIGHUP   drains, and is never the second one; left alone where it is ignored (by nohup)
//   SIGINT   ends the process now, whoever sent it
// A SIGTERM that `serve` passes on to its processes drains too, but does not count for the second
// one: a service manager may have sent them the same wish itself. While the role still starts (a
// model may load for minutes) each signal ends the process at once with status 0, since nobody is
// served yet.
//
// LimitEnd ends a process that has drained and does not come to its end: a device or its libraries
// (NCCL's abort) may make their caller wait for ever.
#ifndef BATON_CLI_ROLE_SIGNALS_H_
#define BATON_CLI_ROLE_SIGNALS_H_

#include <atomic>
#include <chrono>
#include <functional>

#include "src/base/thread.h"
#include "src/base/unique_fd.h"

namespace baton::cli {

// The time that a worker has from the end of its drain to the end of its process. The drain may end
// 4.1 s after the drain's time. `baton drain` waits for 10 s beyond that time, Kubernetes for 15 s.
inline constexpr std::chrono::milliseconds kEndLimit(5'500);

// Made by the main thread before any other thread starts, so that all of them block these signals;
// one thread ("signals") takes them.
class RoleSignals {
 public:
  RoleSignals();
  ~RoleSignals();
  RoleSignals(const RoleSignals&) = delete;
  RoleSignals& operator=(const RoleSignals&) = delete;

  // From here on the role serves and must be drained.
  void SetStarted() { started_.store(true); }
  // Returns when a signal came or `also` is true (asked every 100 ms).
  void Wait(const std::function<bool()>& also);
  // Nothing is served any more: if this object still lives after `limit`, the process ends with
  // `exit_code` and says so. Once.
  void LimitEnd(std::chrono::milliseconds limit, int exit_code);
  // How many signals arrived since the role started, passed on or not.
  int num_signals() const { return num_signals_.load(); }
  // True once the process should not wait for running requests any more.
  const std::atomic<bool>* stop_now() const { return &stop_now_; }

 private:
  void Loop();

  const bool supervised_;  // by `serve`
  UniqueFd signals_;
  UniqueFd quit_;     // eventfd: ends the thread
  UniqueFd limit_;    // timerfd: ends the process
  UniqueFd arrived_;  // eventfd: readable once a signal came
  std::atomic<bool> started_{false};
  std::atomic<int> num_signals_{0};
  std::atomic<bool> stop_now_{false};
  std::atomic<int> exit_code_{0};  // of LimitEnd
  Thread thread_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_ROLE_SIGNALS_H_
