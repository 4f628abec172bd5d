#include "src/device/launch_gate.h"

#include <utility>

#include "src/base/check.h"
#include "src/base/log.h"

namespace baton::device {

void LaunchGate::BeginLaunch() {
  MutexLock lock(mutex_);
  BATON_CHECK(!is_launching_ && !launch_waits_, "two threads launch");
  launch_waits_ = true;
  while (num_held_ > 0 || is_calls_turn_) {
    if (num_held_ == 0) {
      changed_.Wait(mutex_);  // for a Call that nothing keeps out
    } else if (Steady::now() < deadline_) {
      (void)changed_.WaitUntil(mutex_, deadline_);
    } else {
      LetLapse();
    }
  }
  launch_waits_ = false;
  is_launching_ = true;
}

void LaunchGate::EndLaunch() {
  MutexLock lock(mutex_);
  is_launching_ = false;
  is_calls_turn_ = num_waiting_ > 0;
  if (is_calls_turn_) changed_.NotifyAll();
}

bool LaunchGate::KeepsCallsOut() const {
  if (is_launching_) return true;
  const bool joins_others = num_held_ > 0 && Steady::now() < deadline_;
  return launch_waits_ && !is_calls_turn_ && !joins_others;
}

uint64_t LaunchGate::BeginCall() {
  MutexLock lock(mutex_);
  ++num_waiting_;
  const Steady::time_point latest = Steady::now() + max_hold_;
  while (KeepsCallsOut() && Steady::now() < latest) (void)changed_.WaitUntil(mutex_, latest);
  if (is_launching_) CountOverrun();
  if (--num_waiting_ == 0) is_calls_turn_ = false;
  const Steady::time_point now = Steady::now();
  if (num_held_ > 0 && now >= deadline_) LetLapse();
  if (num_held_++ == 0) deadline_ = now + max_hold_;
  if (launch_waits_) changed_.NotifyAll();
  return group_;
}

void LaunchGate::EndCall(uint64_t group) {
  bool tells = false;
  {
    MutexLock lock(mutex_);
    if (group == group_) {
      if (--num_held_ == 0) changed_.NotifyAll();
    }
    tells = std::exchange(is_untold_, false);
  }
  if (!tells) return;
  BATON_LOG_WARN(
      "a call to a device kept a step, or was kept by one, for {} ms, and both went on: ranks may "
      "wait for one another until their exchange gives up (told once)",
      std::chrono::duration_cast<std::chrono::milliseconds>(max_hold_).count());
}

void LaunchGate::CountOverrun() {
  if (num_overruns_++ == 0) is_untold_ = true;
}

// Calls that are held count as ended for everybody who waits for them.
void LaunchGate::LetLapse() {
  num_held_ = 0;
  ++group_;
  CountOverrun();
}

uint64_t LaunchGate::num_overruns() const {
  MutexLock lock(mutex_);
  return num_overruns_;
}

}  // namespace baton::device
