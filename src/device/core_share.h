// CoreShare: one worker's part of a core budget. Its engine brackets the time in which it computes;
// its pool's threads sit on the cores that it holds, one thread on a core.
//
// A seat is a core that this member holds. The owner (the thread that calls BeginStep: an engine
// thread) sits on a core of its own home for as long as it computes. Pool threads take vacant
// seats, keep them while they compute or spin, and leave them at the border of a work item. Where
// the budget names a processor for each core, whoever takes a seat moves to its processor.
//
// Invariants
//  1. At most one thread of this member computes or spins on each core that the member holds. None
//     does without a core, but for the owner's calls of the pool outside of steps (start-up).
//  2. A borrowed core has a thread on it, or the owner gives it back when it is recalled: between
//     two of its items, or before the next region. A thread that finds no work for
//     ThreadPool::kSpinUs gives its borrowed core back unasked.
//  3. While the member has no step it holds no core and has recalled none. This holds once its
//     spinning threads have looked at their seat (well below 1 us for one that runs).
//  4. BeginStep waits only while each core of the home is lent. It ends after the current work item
//     of a holder; after about 2 ms when the holder is stopped or dead, since it takes the core
//     then; and after kSeizeAfterUs in any case, when an item is that long.
#ifndef BATON_DEVICE_CORE_SHARE_H_
#define BATON_DEVICE_CORE_SHARE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/base/status.h"
#include "src/device/core_budget.h"

namespace baton::device {

// Core time that a member lent and borrowed since it attached.
struct CoreShareStats {
  uint64_t lent_us = 0;      // time of its own cores on which others computed, given back so far
  uint64_t borrowed_us = 0;  // time of others' cores on which it computed
  uint64_t num_waits = 0;    // steps that began with a wait for a core
  uint64_t num_seized = 0;   // cores that it took from a holder that did not give them back
};

// See the file comment.
class CoreShare {
 public:
  // A holder that has not given a recalled core back for so long loses it. A chunk of 512 rows and
  // a matrix of 4096 x 14336 are 60 G operations in 16 items or more: 25 ms at 150 G a second.
  static constexpr int64_t kSeizeAfterUs = 100'000;
  // A member that waits looks this often whether holders are stopped or dead.
  static constexpr int64_t kLookUs = 2'000;
  // While it computes it looks this often whether others are dead, whose cores it may then take.
  static constexpr int64_t kBuryUs = 50'000;

  // Becomes member `member` of the budget behind `fd`, which it opens for itself.
  // FailedPrecondition as CoreBudget::Open, for a member that the budget does not have or that has
  // no core, or one that another living process is.
  static StatusOr<std::unique_ptr<CoreShare>> Attach(int fd, uint32_t member);
  // EndSteps. No pool uses it any more.
  ~CoreShare();
  CoreShare(const CoreShare&) = delete;
  CoreShare& operator=(const CoreShare&) = delete;

  // Cores that it may ever hold: the whole budget.
  uint32_t max_cores() const { return max_cores_; }
  uint32_t num_home_cores() const { return num_home_cores_; }
  uint64_t budget_id() const { return budget_->id(); }
  // No other member wants its cores.
  bool is_alone() const { return budget_->num_members() == 1; }
  // Any thread.
  CoreShareStats Stats() const;

  // ---- The owner.

  // Before a step: the owner has a seat, takes what is free, and asks for its home's other cores.
  // Between two steps it costs a look at one word. See invariant 4.
  void BeginStep();
  // There is no step to compute: gives everything back. Idempotent, cheap when nothing is held.
  void EndSteps();
  // Something may be taken or given back. One load.
  bool HasNews() const { return budget_->changes() != seen_changes_; }
  // Takes and gives back between two work items; the number of vacant seats. Outside of steps: 0.
  uint32_t TakeNews();

  // Where a thread sat last, and the processor that it was kept on for that. Each thread has one.
  struct Place {
    uint32_t core = UINT32_MAX;
    int cpu = -1;
  };
  // In a step: moves the calling thread, the owner, to the processor of its seat while it computes.
  void SitDown(Place* place) { MoveTo(owner_core_, place); }
  // The owner may run anywhere again. It calls no other library while it sits: a thread that such a
  // library starts would have the owner's one processor for ever.
  void StandUp(Place* place);

  // ---- Threads of the pool.

  // A vacant seat, or none: the one where the thread sat last if that is vacant.
  std::optional<uint32_t> TakeSeat(Place* place);
  // Between two work items, and while spinning: false = the seat has been given back. One load.
  bool MayStay(uint32_t core) {
    const bool is_mine = budget_->word(core).load(std::memory_order_acquire) == mine_;
    if (is_mine && !is_idle_.load(std::memory_order_relaxed)) return true;
    GiveBack(core);
    return false;
  }
  // The thread goes to sleep: a borrowed core goes back, one of the home becomes vacant.
  void Leave(uint32_t core);
  uint32_t num_vacant() const;

 private:
  static constexpr uint32_t kNoCore = UINT32_MAX;
  static constexpr uint32_t kBits = 64;

  CoreShare(std::unique_ptr<CoreBudget> budget, uint32_t member);

  // A bit for each core.
  using CoreBits = std::array<std::atomic<uint64_t>, kMaxCores / kBits>;

  bool IsHome(uint32_t core) const { return budget_->home(core) == me_.member; }
  // Sets or clears a bit; true when this call changed it.
  static bool SetBit(CoreBits& bits, uint32_t core);
  static bool ClearBit(CoreBits& bits, uint32_t core);
  // A vacant seat, or none.
  std::optional<uint32_t> ClaimVacant();
  void MoveTo(uint32_t core, Place* place);
  // Takes `core` if that is allowed and the pool has a thread for it.
  bool TakeCore(uint32_t core);
  // The core is not ours any more. Whoever has its seat calls this; Ring follows.
  void Release(uint32_t core);
  void GiveBack(uint32_t core);
  bool TakeOwnSeat();
  void WaitForOwnSeat();
  void RecallHome();
  void SeizeRecalled(bool from_all);
  void BuryDead(int64_t now_us);

  const std::unique_ptr<CoreBudget> budget_;
  const MemberLife me_;
  const std::vector<int> cpus_;  // of all cores; empty = the budget names none
  const CoreWord mine_;          // the word of a core that this member holds and nobody waits for
  uint32_t num_home_cores_ = 0;
  uint32_t max_cores_ = 0;
  uint64_t lent_before_us_ = 0;

  // Owned by the owner.
  uint32_t owner_core_ = kNoCore;
  uint32_t seen_changes_ = 0;
  int64_t recalled_since_us_ = 0;  // when the oldest recall that is open was seen first; 0 = none
  int64_t looked_us_ = 0;

  // Set from EndSteps to BeginStep: threads leave their seats.
  std::atomic<bool> is_idle_{true};
  std::atomic<uint32_t> num_held_{0};
  // All seats of this member, vacant or not. One whose core was seized stays here until its thread
  // has seen that, so that no second thread sits down on the same core.
  CoreBits seats_ = {};
  // Seats on which no thread sits.
  CoreBits vacant_ = {};
  // When a borrowed core was taken.
  std::array<std::atomic<int64_t>, kMaxCores> taken_us_ = {};
  std::atomic<uint64_t> borrowed_us_{0};
  std::atomic<uint64_t> num_waits_{0};
  std::atomic<uint64_t> num_seized_{0};
};

}  // namespace baton::device

#endif  // BATON_DEVICE_CORE_SHARE_H_
