// SimProcess: one simulated process: it lives, is killed and lives again, is frozen and goes on,
// and has a clock of its own, which drifts and may jump. Owned by the world; one thread.
//
// Invariants
//  1. Work that was posted to one life never runs in another; a dead process runs nothing.
//  2. A frozen process runs nothing; what was due meanwhile runs in order when it goes on.
//  3. Its clock never goes back.
#ifndef BATON_SIM_SIM_PROCESS_H_
#define BATON_SIM_SIM_PROCESS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "src/base/clock.h"
#include "src/sim/event_queue.h"

namespace baton::sim {

// See the file comment.
class SimProcess final : public Clock {
 public:
  // `index`: its place in the network. `drift_ppm`: how much faster its clock runs.
  SimProcess(EventQueue* events, uint32_t index, std::string name, int64_t drift_ppm)
      : events_(events), index_(index), name_(std::move(name)), drift_ppm_(drift_ppm) {}

  // ---- Its clock.
  int64_t NowUs() const override { return LocalUs(TrueNowUs()); }
  int64_t WallUnixMs() const override { return 1'700'000'000'000 + NowUs() / 1000; }
  int64_t LocalUs(int64_t true_us) const {
    return true_us + true_us / 1'000'000 * drift_ppm_ + offset_us_;
  }
  // When its clock will show `local_us`, about.
  int64_t TrueUs(int64_t local_us) const { return local_us - (NowUs() - TrueNowUs()); }
  // The world's time as this process has got in its present step.
  int64_t TrueNowUs() const { return events_->now_us() + spent_us_; }
  // Computes for so long, within a step.
  void Spend(int64_t us) { spent_us_ += us; }
  // The step is over; returns what it took.
  int64_t TakeSpent() { return std::exchange(spent_us_, 0); }
  void JumpClock(int64_t us) { offset_us_ += us; }

  // ---- Its life.
  bool alive() const { return alive_; }
  uint32_t life() const { return life_; }
  uint32_t index() const { return index_; }
  const std::string& name() const { return name_; }
  void Kill() {
    alive_ = false;
    deaths_us_.push_back(events_->now_us());
    ++life_;
    frozen_until_us_ = 0;
    spent_us_ = 0;
    waiting_.clear();
  }
  void Revive() { alive_ = true; }
  // True when a deed of life `life` at `us` really happened: the life was not dead by then.
  bool DidHappen(uint32_t life, int64_t us) const {
    return life >= deaths_us_.size() || us <= deaths_us_[life];
  }

  // ---- Freezing.
  bool frozen() const { return events_->now_us() < frozen_until_us_; }
  void Freeze(int64_t for_us) {
    frozen_until_us_ = std::max(frozen_until_us_, events_->now_us() + for_us);
    events_->At(frozen_until_us_, [this, life = life_] { Thaw(life); });
  }

  // Runs `action` here at `at_us`, if this life lasts till then.
  template <typename F>
  void Post(int64_t at_us, F&& action) {
    events_->At(at_us, [this, life = life_, f = std::forward<F>(action)]() mutable {
      if (life != life_ || !alive_) return;
      if (frozen() || !waiting_.empty()) {
        waiting_.push_back(std::move(f));
      } else {
        f();
      }
    });
  }

 private:
  void Thaw(uint32_t life) {
    while (life == life_ && alive_ && !frozen() && !waiting_.empty()) {
      EventQueue::Action action = std::move(waiting_.front());
      waiting_.pop_front();
      action();
    }
  }

  EventQueue* const events_;
  const uint32_t index_;
  const std::string name_;
  const int64_t drift_ppm_;
  int64_t offset_us_ = 0;
  int64_t spent_us_ = 0;
  bool alive_ = true;
  uint32_t life_ = 0;
  std::vector<int64_t> deaths_us_;  // of each life that is over
  int64_t frozen_until_us_ = 0;
  std::deque<EventQueue::Action> waiting_;  // due while frozen
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_PROCESS_H_
