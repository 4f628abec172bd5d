// LaunchGate: keeps the launches of an exchange among devices apart from calls that may wait for a
// device.
//
// A kernel by which ranks exchange waits on the first GPU until it runs on the last. A call that
// allocates, frees, maps or loads on a GPU may wait until that GPU is idle. It may also hold the
// driver's locks of all GPUs that reach its memory. Suppose such a call came between the launch on
// the first GPU and that on the last. Then the kernel would wait for the launch, the launch for the
// call, and the call for the kernel. So one thread launches under a Launch, the whole exchange on
// all devices, and waits for no result under it. Other threads make such calls under a Call.
// Without a gate (null) both do nothing.
//
// Invariants
//  1. Nobody launches while a Call is held, and no Call begins while somebody launches, unless
//     invariant 3 let it.
//  2. Calls do not keep out one another: one that begins while another is held shares its deadline.
//  3. A launch waits for Calls until max_hold_us after the first of them began; then they have
//     lapsed and hold nothing. A Call waits as long for a launch, then it goes on beside it. Both
//     are counted, and the thread of the Call tells the first to the log.
//  4. A side that waits comes before the next of the other side. A launch gets in though Calls
//     follow one another at once, and a Call gets in though launches do.
//
// Any thread, but one thread at a time launches. Outlives all that use it. Its mutex is the last to
// be taken: nothing is called with it.
#ifndef BATON_DEVICE_LAUNCH_GATE_H_
#define BATON_DEVICE_LAUNCH_GATE_H_

#include <chrono>
#include <cstdint>

#include "src/base/mutex.h"

namespace baton::device {

// See the file comment.
class LaunchGate {
 public:
  // A communicator of two ranks is built in some tenths of a second, at most one or two where
  // a machine is busy; streams that pause for longer are missed by those who read them.
  static constexpr int64_t kMaxHoldUs = 2'000'000;

  explicit LaunchGate(int64_t max_hold_us = kMaxHoldUs) : max_hold_(max_hold_us) {}
  LaunchGate(const LaunchGate&) = delete;
  LaunchGate& operator=(const LaunchGate&) = delete;

  // While it lives an exchange is launched. Two passes of a mutex where nobody waits.
  class Launch {
   public:
    explicit Launch(LaunchGate* gate) : gate_(gate) {
      if (gate_ != nullptr) gate_->BeginLaunch();
    }
    ~Launch() {
      if (gate_ != nullptr) gate_->EndLaunch();
    }
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;

   private:
    LaunchGate* const gate_;
  };

  // While it lives, and has not lapsed, nobody launches. It may end in another thread.
  class Call {
   public:
    explicit Call(LaunchGate* gate)
        : gate_(gate), group_(gate == nullptr ? 0 : gate->BeginCall()) {}
    ~Call() {
      if (gate_ != nullptr) gate_->EndCall(group_);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    LaunchGate* const gate_;
    const uint64_t group_;
  };

  // How often Calls lapsed, or one began beside a launch.
  uint64_t num_overruns() const;

 private:
  using Steady = std::chrono::steady_clock;

  void BeginLaunch();
  void EndLaunch();
  // Returns to which group the Call belongs: those that lapse together.
  uint64_t BeginCall();
  void EndCall(uint64_t group);
  // With mutex_.
  bool KeepsCallsOut() const BATON_REQUIRES(mutex_);
  void CountOverrun() BATON_REQUIRES(mutex_);
  void LetLapse() BATON_REQUIRES(mutex_);

  const std::chrono::microseconds max_hold_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_launching_ BATON_GUARDED_BY(mutex_) = false;
  bool launch_waits_ BATON_GUARDED_BY(mutex_) = false;
  bool is_calls_turn_ BATON_GUARDED_BY(mutex_) = false;   // Calls waited when the last launch ended
  bool is_untold_ BATON_GUARDED_BY(mutex_) = false;       // the first overrun
  uint32_t num_waiting_ BATON_GUARDED_BY(mutex_) = 0;     // Calls that keep a launch out next
  uint32_t num_held_ BATON_GUARDED_BY(mutex_) = 0;        // Calls that have not lapsed
  uint64_t group_ BATON_GUARDED_BY(mutex_) = 0;           // of these
  Steady::time_point deadline_ BATON_GUARDED_BY(mutex_);  // of these
  uint64_t num_overruns_ BATON_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::device

#endif  // BATON_DEVICE_LAUNCH_GATE_H_
