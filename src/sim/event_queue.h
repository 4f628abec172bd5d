// EventQueue: what will happen in a simulation, in order of (time, order of posting), and the time
// that it is. One thread.
//
// Invariants
//  1. Time never goes back; an action posted for the past happens now.
//  2. Equal posts give equal orders: nothing depends on addresses or on the machine's clock.
#ifndef BATON_SIM_EVENT_QUEUE_H_
#define BATON_SIM_EVENT_QUEUE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace baton::sim {

// See the file comment.
class EventQueue {
 public:
  using Action = absl::AnyInvocable<void()>;

  int64_t now_us() const { return now_us_; }
  uint64_t num_run() const { return num_run_; }
  bool empty() const { return heap_.empty(); }

  // O(log n); allocates only for actions of more than two words and beyond the largest size so far.
  void At(int64_t time_us, Action action) {
    uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<uint32_t>(actions_.size());
      actions_.push_back(std::move(action));
    } else {
      slot = free_.back();
      free_.pop_back();
      actions_[slot] = std::move(action);
    }
    heap_.push_back({std::max(time_us, now_us_), next_++, slot});
    std::push_heap(heap_.begin(), heap_.end(), IsLater);
  }

  // Runs the next action; false when there is none.
  bool RunNext() {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), IsLater);
    const Entry entry = heap_.back();
    heap_.pop_back();
    now_us_ = entry.time_us;
    Action action = std::move(actions_[entry.slot]);
    actions_[entry.slot] = nullptr;
    free_.push_back(entry.slot);
    ++num_run_;
    action();
    return true;
  }

 private:
  // One action's place in time.
  struct Entry {
    int64_t time_us = 0;
    uint64_t order = 0;
    uint32_t slot = 0;
  };
  static bool IsLater(const Entry& a, const Entry& b) {
    return a.time_us != b.time_us ? a.time_us > b.time_us : a.order > b.order;
  }

  int64_t now_us_ = 1'000'000;
  uint64_t next_ = 0;
  uint64_t num_run_ = 0;
  std::vector<Entry> heap_;
  std::vector<Action> actions_;  // by slot
  std::vector<uint32_t> free_;
};

}  // namespace baton::sim

#endif  // BATON_SIM_EVENT_QUEUE_H_
