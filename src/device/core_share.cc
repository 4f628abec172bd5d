#include "src/device/core_share.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <utility>
#include <vector>

#include "src/base/clock.h"
#include "src/base/thread.h"
#include "src/device/thread_pool.h"

namespace baton::device {

StatusOr<std::unique_ptr<CoreShare>> CoreShare::Attach(int fd, uint32_t index) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<CoreBudget> budget, CoreBudget::Open(fd));
  if (index >= budget->num_members()) {
    return FailedPrecondition("it has {} members, and this worker would be member {}",
                              budget->num_members(), index);
  }
  CoreBudgetFile::Member& member = budget->member(index);
  const pid_t pid = member.pid.load(std::memory_order_acquire);
  const uint64_t start_ticks = member.start_ticks.load(std::memory_order_relaxed);
  if (pid != 0 && pid != ::getpid() && ProcessState(pid, start_ticks) != HolderState::kGone) {
    return FailedPrecondition("its member {} is the process with pid {}", index, pid);
  }
  std::unique_ptr<CoreShare> share(new CoreShare(std::move(budget), index));
  if (share->num_home_cores_ == 0) {
    return FailedPrecondition("its member {} has no cores", index);
  }
  return share;
}

namespace {

std::vector<int> CpusOf(const CoreBudget& budget) {
  std::vector<int> cpus;
  for (uint32_t core = 0; core < budget.num_cores(); ++core) {
    if (budget.cpu(core) >= 0) cpus.push_back(budget.cpu(core));
  }
  return cpus;
}

}  // namespace

CoreShare::CoreShare(std::unique_ptr<CoreBudget> budget, uint32_t member)
    : budget_(std::move(budget)),
      me_{member, budget_->member(member).life.load(std::memory_order_acquire) & kCoreLifeMask},
      cpus_(CpusOf(*budget_)),
      mine_(HeldBy(me_)) {
  for (uint32_t core = 0; core < budget_->num_cores(); ++core) num_home_cores_ += IsHome(core);
  max_cores_ = std::min(budget_->num_cores(), ThreadPool::kMaxThreads);
  CoreBudgetFile::Member& place = budget_->member(member);
  lent_before_us_ = place.lent_us.load(std::memory_order_relaxed);
  // A reader that sees the pid sees its start too.
  place.start_ticks.store(ProcessStartTicks(::getpid()), std::memory_order_relaxed);
  place.pid.store(::getpid(), std::memory_order_release);
}

CoreShare::~CoreShare() {
  EndSteps();
  budget_->member(me_.member).pid.store(0, std::memory_order_release);
}

CoreShareStats CoreShare::Stats() const {
  CoreShareStats stats;
  const uint64_t lent_us = budget_->member(me_.member).lent_us.load(std::memory_order_relaxed);
  stats.lent_us = lent_us - lent_before_us_;
  stats.borrowed_us = borrowed_us_.load(std::memory_order_relaxed);
  stats.num_waits = num_waits_.load(std::memory_order_relaxed);
  stats.num_seized = num_seized_.load(std::memory_order_relaxed);
  return stats;
}

// ---- Seats.

bool CoreShare::SetBit(CoreBits& bits, uint32_t core) {
  const uint64_t bit = uint64_t{1} << (core % kBits);
  return (bits[core / kBits].fetch_or(bit) & bit) == 0;
}

bool CoreShare::ClearBit(CoreBits& bits, uint32_t core) {
  const uint64_t bit = uint64_t{1} << (core % kBits);
  std::atomic<uint64_t>& word = bits[core / kBits];
  if ((word.load(std::memory_order_relaxed) & bit) == 0) return false;
  return (word.fetch_and(~bit) & bit) != 0;
}

uint32_t CoreShare::num_vacant() const {
  uint32_t count = 0;
  for (uint32_t i = 0; i * kBits < budget_->num_cores(); ++i) {
    count += static_cast<uint32_t>(std::popcount(vacant_[i].load()));
  }
  return count;
}

std::optional<uint32_t> CoreShare::TakeSeat(Place* place) {
  std::optional<uint32_t> core;
  if (place->core < budget_->num_cores() && ClearBit(vacant_, place->core)) core = place->core;
  if (!core) core = ClaimVacant();
  if (core) MoveTo(*core, place);
  return core;
}

// A system call of some us, once where the seats stay the same.
void CoreShare::MoveTo(uint32_t core, Place* place) {
  place->core = core;
  const int cpu = budget_->cpu(core);
  if (cpu == place->cpu) return;
  place->cpu = cpu;
  if (KeepThisThreadOn(std::array{cpu})) return;
  // The processor was taken from this process: by its cpuset, or it is off. Another thread may sit
  // on the processor of the last seat.
  (void)KeepThisThreadOn(cpus_);
}

void CoreShare::StandUp(Place* place) {
  if (place->cpu < 0) return;
  place->cpu = -1;
  (void)KeepThisThreadOn(cpus_);
}

std::optional<uint32_t> CoreShare::ClaimVacant() {
  for (uint32_t i = 0; i * kBits < budget_->num_cores(); ++i) {
    uint64_t bits = vacant_[i].load();
    while (bits != 0) {
      const uint32_t core = i * kBits + static_cast<uint32_t>(std::countr_zero(bits));
      if (ClearBit(vacant_, core)) return core;
      bits = vacant_[i].load();
    }
  }
  return std::nullopt;
}

void CoreShare::Release(uint32_t core) {
  num_held_.fetch_sub(1);
  if (!IsHome(core)) {
    const int64_t begin_us = taken_us_[core].load(std::memory_order_relaxed);
    const int64_t time_us = std::max<int64_t>(0, SystemClock().NowUs() - begin_us);
    const auto used_us = static_cast<uint64_t>(time_us);
    borrowed_us_.fetch_add(used_us, std::memory_order_relaxed);
    budget_->member(budget_->home(core)).lent_us.fetch_add(used_us, std::memory_order_relaxed);
  }
  // Not allowed for a core that was seized: then it is somebody else's already.
  (void)MoveCore(budget_->word(core), [&](CoreWord seen) { return AfterReturn(seen, me_); });
  (void)ClearBit(seats_, core);
}

void CoreShare::GiveBack(uint32_t core) {
  Release(core);
  budget_->Ring();
}

void CoreShare::Leave(uint32_t core) {
  if (!IsHome(core)) return GiveBack(core);
  (void)SetBit(vacant_, core);
  // seq_cst on the bit and on is_idle_: either EndSteps finds the bit, or this thread sees that the
  // member is idle.
  if (is_idle_.load() && ClearBit(vacant_, core)) GiveBack(core);
}

// ---- Steps.

bool CoreShare::TakeCore(uint32_t core) {
  if (num_held_.load(std::memory_order_relaxed) >= max_cores_) return false;
  if (!SetBit(seats_, core)) return false;  // a thread of ours has not left it yet
  const bool is_home = IsHome(core);
  const auto take = [&](CoreWord seen) { return AfterTake(seen, me_, is_home); };
  if (!MoveCore(budget_->word(core), take)) {
    (void)ClearBit(seats_, core);
    return false;
  }
  num_held_.fetch_add(1);
  if (!is_home) taken_us_[core].store(SystemClock().NowUs(), std::memory_order_relaxed);
  return true;
}

void CoreShare::BeginStep() {
  if (owner_core_ != kNoCore) {
    const int64_t now_us = SystemClock().NowUs();
    if (recalled_since_us_ != 0 && now_us - recalled_since_us_ >= kSeizeAfterUs) {
      SeizeRecalled(/*from_all=*/true);
    }
    if (now_us - looked_us_ >= kBuryUs) BuryDead(now_us);
    if (HasNews()) (void)TakeNews();
    return;
  }
  // Until the owner sits, is_idle_ makes its own late threads free their cores and ring.
  if (!TakeOwnSeat()) WaitForOwnSeat();
  is_idle_.store(false);
  (void)TakeNews();
}

// A core of the home that is free, or on which a thread of ours was a moment ago.
bool CoreShare::TakeOwnSeat() {
  for (uint32_t core = 0; core < budget_->num_cores(); ++core) {
    if (!IsHome(core) || !(ClearBit(vacant_, core) || TakeCore(core))) continue;
    owner_core_ = core;
    return true;
  }
  return false;
}

void CoreShare::WaitForOwnSeat() {
  num_waits_.fetch_add(1, std::memory_order_relaxed);
  const int64_t begin_us = SystemClock().NowUs();
  budget_->BeginWait();
  for (;;) {
    const uint32_t seen = budget_->changes();
    RecallHome();
    if (TakeOwnSeat()) break;
    budget_->Wait(seen, kLookUs);
    const int64_t waited_us = SystemClock().NowUs() - begin_us;
    if (waited_us >= kLookUs) SeizeRecalled(/*from_all=*/waited_us >= kSeizeAfterUs);
  }
  budget_->EndWait();
}

// Asks for all cores of the home that others hold. Their owners look when the bell has rung.
void CoreShare::RecallHome() {
  bool has_asked = false;
  bool is_open = false;
  for (uint32_t core = 0; core < budget_->num_cores(); ++core) {
    if (!IsHome(core)) continue;
    std::atomic<CoreWord>& word = budget_->word(core);
    has_asked |= MoveCore(word, [&](CoreWord seen) { return AfterRecall(seen, me_); });
    is_open |= IsRecalled(word.load(std::memory_order_acquire));
  }
  if (!is_open) {
    recalled_since_us_ = 0;
  } else if (recalled_since_us_ == 0) {
    recalled_since_us_ = SystemClock().NowUs();
  }
  if (has_asked) budget_->Ring();
}

uint32_t CoreShare::TakeNews() {
  seen_changes_ = budget_->changes();  // before the cores: what changes meanwhile is news again
  if (owner_core_ == kNoCore) return 0;
  bool gave_back = false;
  for (uint32_t core = 0; core < budget_->num_cores(); ++core) {
    const CoreWord seen = budget_->word(core).load(std::memory_order_acquire);
    if (seen == mine_) continue;
    // Recalled or seized before a thread of ours had come to sit on it.
    if (ClearBit(vacant_, core)) {
      Release(core);
      gave_back = true;
    } else if (IsFree(seen) && TakeCore(core)) {
      (void)SetBit(vacant_, core);
    }
  }
  RecallHome();
  if (gave_back) budget_->Ring();
  return num_vacant();
}

void CoreShare::EndSteps() {
  if (owner_core_ == kNoCore) return;
  is_idle_.store(true);
  Release(std::exchange(owner_core_, kNoCore));
  while (const std::optional<uint32_t> seat = ClaimVacant()) Release(*seat);
  for (uint32_t core = 0; core < budget_->num_cores(); ++core) {
    if (IsHome(core)) (void)MoveCore(budget_->word(core), AfterCancel);
  }
  recalled_since_us_ = 0;
  budget_->Ring();
}

// ---- Holders that do not give back.

void CoreShare::SeizeRecalled(bool from_all) {
  bool has_seized = false;
  for (uint32_t core = 0; core < budget_->num_cores(); ++core) {
    std::atomic<CoreWord>& word = budget_->word(core);
    const CoreWord seen = word.load(std::memory_order_acquire);
    if (!IsHome(core) || !IsRecalled(seen) || IsFree(seen)) continue;
    const uint32_t holder = HolderOf(seen).member;
    bool may_seize = from_all || holder >= budget_->num_members();
    if (!may_seize) {
      const CoreBudgetFile::Member& member = budget_->member(holder);
      const pid_t pid = member.pid.load(std::memory_order_acquire);
      const uint64_t ticks = member.start_ticks.load(std::memory_order_relaxed);
      may_seize = ProcessState(pid, ticks) != HolderState::kRuns;
    }
    const auto seize = [&](CoreWord now) {
      return now == seen ? AfterSeize(now, me_) : std::nullopt;
    };
    if (!may_seize || !SetBit(seats_, core)) continue;
    if (!MoveCore(word, seize)) {
      (void)ClearBit(seats_, core);
      continue;
    }
    num_held_.fetch_add(1);
    num_seized_.fetch_add(1, std::memory_order_relaxed);
    (void)SetBit(vacant_, core);
    has_seized = true;
  }
  if (has_seized) budget_->Ring();
}

// `serve` frees the cores of a worker that it has reaped; this is for the time in which it waits
// for something else.
void CoreShare::BuryDead(int64_t now_us) {
  looked_us_ = now_us;
  std::bitset<kMaxCoreMembers> suspects;  // whose death would change something
  for (uint32_t core = 0; core < budget_->num_cores(); ++core) {
    const CoreWord seen = budget_->word(core).load(std::memory_order_acquire);
    if (IsRecalled(seen)) suspects.set(budget_->home(core));
    if (!IsFree(seen) && HolderOf(seen).member < budget_->num_members()) {
      suspects.set(HolderOf(seen).member);
    }
  }
  suspects.reset(me_.member);
  for (uint32_t index = 0; index < budget_->num_members(); ++index) {
    if (!suspects.test(index)) continue;
    const CoreBudgetFile::Member& member = budget_->member(index);
    // The creator clears the pid before it raises the life: a new life never meets an old pid.
    const uint32_t life = member.life.load(std::memory_order_acquire) & kCoreLifeMask;
    const pid_t pid = member.pid.load(std::memory_order_acquire);
    const uint64_t ticks = member.start_ticks.load(std::memory_order_relaxed);
    if (pid == 0 || ProcessState(pid, ticks) != HolderState::kGone) continue;
    budget_->Bury({index, life});
  }
}

}  // namespace baton::device
