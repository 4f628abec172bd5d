#include "kernels/simt/run_state.h"

#include <xmmintrin.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"

#include "kernels/simt/device_memory.h"
#include "src/base/status.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

// A launch in which spinning threads had so many turns each and nothing was written is a deadlock.
// It must exceed what one thread polls in a row without waiting: a list of flags, say.
constexpr uint64_t kIdleTurnsPerThread = 4096;

thread_local RunState* current = nullptr;

Dim3 PositionOf(uint32_t id, const Dim3& grid) {
  return {id % grid.x, id / grid.x % grid.y, id / (grid.x * grid.y)};
}

FiberStacks& StacksOfThisThread() {
  static thread_local FiberStacks stacks;
  return stacks;
}

}  // namespace

RunState* RunState::Current() { return current; }

RunState::RunState(const LaunchConfig& config, const calls::KernelCall& call)
    : config_(config),
      call_(call),
      options_(CurrentRunOptions()),
      arena_(DeviceMemory::OfThisThread().arena),
      shadow_(DeviceMemory::OfThisThread().shadow),
      stacks_(StacksOfThisThread()),
      random_(SplitMix(options_.seed)) {
  current = this;
  shadow_.BeginLaunch();
  const uint32_t num_ctas = config.grid.x * config.grid.y * config.grid.z;
  for (uint32_t id = 0; id < num_ctas; ++id) waiting_ctas_.push_back(num_ctas - 1 - id);
  if (options_.order == Order::kDescending) {
    std::reverse(waiting_ctas_.begin(), waiting_ctas_.end());
  }
  if (options_.order == Order::kShuffled) {
    for (size_t i = waiting_ctas_.size(); i > 1; --i) {
      std::swap(waiting_ctas_[i - 1], waiting_ctas_[Random() % i]);
    }
  }
}

RunState::~RunState() {
  for (const auto& cta : ctas_) {
    for (const auto& thread : cta->threads) stacks_.Give(thread->stack_top);
  }
  current = nullptr;
}

absl::Status RunState::Execute() {
  FaultHandler handler;
  // A fault leaves a thread where it is, with the mode in which it computed (tensor_core.cc).
  const absl::Cleanup restore_mode = [mode = _mm_getcsr()] { _mm_setcsr(mode); };
  const uint64_t num_ctas = waiting_ctas_.size();
  const uint64_t resident =
      config_.cooperative ? num_ctas : std::min<uint64_t>(num_ctas, options_.max_resident_ctas);
  std::vector<SimBuffer> shared;
  for (uint64_t i = 0; i < resident; ++i) {
    absl::StatusOr<std::byte*> slot =
        arena_.Allocate(config_.shared_bytes, "shared memory", /*is_shared=*/true);
    if (!slot.ok()) return slot.status();
    shared.emplace_back(*slot, config_.shared_bytes);
  }
  for (SimBuffer& slot : shared) {
    StartCta(waiting_ctas_.back(), slot.data());
    waiting_ctas_.pop_back();
  }
  while (num_live_ > 0 && outcome_.ok()) {
    active_ = NextReady();
    if (active_ == nullptr) {
      if (outcome_.ok() && !LandOneFlight()) Deadlock();
      continue;
    }
    ++stats_.num_switches;
    active_->fiber.SwitchFrom(scheduler_);
    // Back from a thread that returned or failed, or that waits with nobody ready behind it.
    Cta* const cta = active_ == nullptr ? nullptr : active_->cta;
    active_ = nullptr;
    if (cta == nullptr || !outcome_.ok()) continue;
    if (cta->num_returned == config_.num_threads) FinishCta(cta);
  }
  return outcome_;
}

void RunState::StartCta(uint32_t id, std::byte* shared) {
  auto cta = std::make_unique<Cta>();
  cta->id = id;
  cta->position = PositionOf(id, config_.grid);
  cta->shared = shared;
  cta->warps.resize((config_.num_threads + kWarpSize - 1) / kWarpSize);
  cta->warpgroups.resize(config_.num_threads / kWarpgroupSize);
  const uint32_t num_slots = NumSlots(config_.num_threads);
  std::vector<SimThread*> started;
  for (uint32_t i = 0; i < config_.num_threads; ++i) {
    auto thread = std::make_unique<SimThread>();
    thread->cta = cta.get();
    thread->index = i;
    thread->has_waited = !config_.overlaps;
    thread->stack_top = stacks_.Take();
    thread->fiber.Reset(thread->stack_top, &RunState::ThreadMain);
    if (options_.detect_races) {
      thread->clock = VectorClock(id, num_slots);
      thread->clock.Tick(i);
    }
    started.push_back(thread.get());
    cta->threads.push_back(std::move(thread));
  }
  num_live_ += config_.num_threads;
  ctas_.push_back(std::move(cta));
  MakeReadyInOrder(std::move(started));
}

void RunState::FinishCta(Cta* cta) {
  for (const auto& [address, barrier] : cta->barriers) {
    if (barrier.flights.empty()) continue;
    outcome_ = Internal("misuse: kernel {}: cta {} ended while the bulk copy of {} was under way",
                        config_.name, cta->id, DescribeSite(barrier.flights.front().site));
    return;
  }
  std::byte* const shared = cta->shared;
  for (const auto& thread : cta->threads) stacks_.Give(thread->stack_top);
  std::erase_if(ctas_, [cta](const auto& other) { return other.get() == cta; });
  if (waiting_ctas_.empty()) return;
  if (config_.shared_bytes > 0) std::memset(shared, 0xFF, config_.shared_bytes);
  if (options_.detect_races) shadow_.Forget(shared, config_.shared_bytes);
  const uint32_t next = waiting_ctas_.back();
  waiting_ctas_.pop_back();
  StartCta(next, shared);
}

void RunState::ThreadMain() {
  RunState* run = current;
  run->call_.body(run->call_.data);
  run->ReturnFromKernel();
}

void RunState::ReturnFromKernel() {
  SimThread& thread = self();
  if (!thread.copies.empty()) {
    Misuse(thread.copies.front().site, "the thread returned without waiting for this copy");
  }
  if (!thread.has_waited) Fail("overlap", "the thread returned without wait_for_previous");
  if (!thread.sums.empty()) {
    Misuse(thread.site, "the thread returned without waiting for its last wgmma");
  }
  ++thread.cta->num_returned;
  --num_live_;
  NoteProgress();
  thread.waiting = Waiting::kReturned;
  scheduler_.SwitchFrom(thread.fiber);
  __builtin_unreachable();  // nobody makes a returned thread ready
}

SimThread* RunState::NextReady() {
  if (ready_.empty()) return nullptr;
  if (options_.order == Order::kShuffled) {
    std::swap(ready_.front(), ready_[Random() % ready_.size()]);
  }
  SimThread* thread = ready_.front();
  ready_.pop_front();
  if (thread->waiting == Waiting::kSpin && ++idle_turns_ > kIdleTurnsPerThread * num_live_) {
    // Only spinning threads have run for long. A copy may be what they wait for.
    NoteProgress();
    if (!LandOneFlight()) {
      Deadlock();
      return nullptr;
    }
  }
  if (thread->waiting == Waiting::kSpin) thread->waiting = Waiting::kNothing;
  return thread;
}

void RunState::Block(Waiting waiting, Site site) {
  SimThread& thread = self();
  thread.waiting = waiting;
  thread.site = site;
  active_ = nullptr;  // until the next one is chosen none runs, so that nothing there is looked at
  active_ = NextReady();
  if (active_ == nullptr) {
    scheduler_.SwitchFrom(thread.fiber);
    return;
  }
  ++stats_.num_switches;
  if (active_ != &thread) active_->fiber.SwitchFrom(thread.fiber);
}

void RunState::Yield(Waiting waiting, Site site) {
  ready_.push_back(active_);
  Block(waiting, site);
}

void RunState::MaybePreempt() {
  if (options_.order == Order::kShuffled && Random() % 4 == 0) Yield(Waiting::kNothing, {});
}

void RunState::MakeReady(SimThread& thread) {
  thread.waiting = Waiting::kNothing;
  ready_.push_back(&thread);
}

void RunState::MakeReadyInOrder(std::vector<SimThread*> threads) {
  if (options_.order == Order::kDescending) std::reverse(threads.begin(), threads.end());
  for (SimThread* thread : threads) MakeReady(*thread);
}

void RunState::Fail(const char* kind, const std::string& message) {
  SimThread& thread = self();
  outcome_ = Internal("{}: kernel {}, cta {}, thread {}: {}", kind, config_.name, thread.cta->id,
                      thread.index, message);
  scheduler_.SwitchFrom(thread.fiber);
  __builtin_unreachable();  // after a fault no thread runs again
}

void RunState::Misuse(Site site, const std::string& message) {
  Fail("misuse", fmt::format("{}: {}", DescribeSite(site), message));
}

void RunState::FailWithoutEnd(const std::string& place) {
  Fail("deadlock",
       fmt::format("no end after {} loads, stores and guards; now at {}", kMaxSteps, place));
}

void RunState::CountStep(Site site) {
  if (IsAtItsEnd()) FailWithoutEnd(DescribeSite(site));
}

void RunState::CountStep(const Access& access) {
  if (IsAtItsEnd()) FailWithoutEnd(DescribeCode(access.code));
}

bool RunState::CheckBounds(const Access& access) {
  const bool was_checking = std::exchange(is_checking_, true);
  const bool on_device = IsOnDevice(access);
  is_checking_ = was_checking;
  return on_device;
}

bool RunState::IsOnDevice(const Access& access) {
  ++stats_.num_accesses;
  const SimThread& thread = self();
  const auto* begin = static_cast<const std::byte*>(access.address);
  const char* verb = access.is_write ? "writes" : "reads";
  if (!arena_.Contains(access.address)) {
    const bool on_stack =
        begin < thread.stack_top && begin >= thread.stack_top - FiberStacks::kStackBytes;
    const auto* params = static_cast<const std::byte*>(call_.data);
    const bool in_params = !access.is_write && begin >= params && begin < params + call_.size;
    if (on_stack || in_params) return false;
    // Down to the guard page, which says so itself: a stack may be a little larger (fiber.h).
    if (stacks_.TopOf(begin) == thread.stack_top) return false;
    Fail("bounds", fmt::format("{} {} {} bytes of the host's memory, at {}",
                               DescribeCode(access.code), verb, access.size, access.address));
  }
  const ArenaBuffer* buffer = arena_.Find(access.address);
  if (buffer == nullptr || begin < buffer->begin ||
      begin + access.size > buffer->begin + buffer->size) {
    Fail("bounds", fmt::format("{} {} {} bytes at {}", DescribeCode(access.code), verb, access.size,
                               arena_.Describe(access.address)));
  }
  if (access.is_write && buffer->is_imported) {
    Fail("bounds", fmt::format("{} {} {} bytes at {}, which others own", DescribeCode(access.code),
                               verb, access.size, arena_.Describe(access.address)));
  }
  if (buffer->is_shared && buffer->begin != thread.cta->shared) {
    Fail("bounds",
         fmt::format("{} {} shared memory of another cta", DescribeCode(access.code), verb));
  }
  if (!buffer->is_shared) CheckOverlap(access);
  return true;
}

void RunState::CheckOverlap(const Access& access) {
  if (access.is_write) arena_.NoteWrite(access.address);
  if (self().has_waited || !arena_.Find(access.address)->is_written) return;
  Fail("overlap", fmt::format("{} {} {}, which kernels write, before wait_for_previous",
                              DescribeCode(access.code), access.is_write ? "writes" : "reads",
                              arena_.Describe(access.address)));
}

void RunState::Touch(const Access& access, bool atomic) {
  // Between two threads, or writing a report: the linker may have given the host's code functions
  // of the standard library that were compiled with a kernel.
  if (active_ == nullptr || is_checking_) return;
  is_checking_ = true;  // for good when the check fails: no thread runs again
  if (CheckBounds(access)) {
    CountStep(access);
    if (access.is_write) NoteProgress();
    const SimThread& thread = self();
    CheckRace(access,
              Epoch::Of(thread.cta->id, thread.index, thread.clock.Local(thread.index), atomic));
  }
  is_checking_ = false;
}

void RunState::CheckRace(const Access& access, Epoch self_epoch) {
  CheckRace(access, self_epoch, self().clock);
}

void RunState::CheckRace(const Access& access, Epoch self_epoch, const VectorClock& known) {
  if (!options_.detect_races) return;
  const auto conflict = shadow_.Record(access, self_epoch, known);
  if (!conflict.has_value()) return;
  is_checking_ = true;
  Fail("race", fmt::format("{}: {} at {} {} {}, not ordered after the {} of {} at {}",
                           arena_.Describe(conflict->address), NameOf(self_epoch),
                           DescribeCode(access.code), access.is_write ? "writes" : "reads",
                           access.size == 1 ? "it" : fmt::format("{} bytes", access.size),
                           conflict->earlier_is_write ? "write" : "read", NameOf(conflict->earlier),
                           DescribeCode(conflict->earlier_code)));
}

void RunState::Release(SimThread& thread, VectorClock& into) {
  if (!options_.detect_races) return;
  into.Join(thread.clock);
  thread.clock.Tick(thread.index);
}

bool RunState::LandsNow() {
  if (options_.landing == Landing::kMixed) return Random() % 2 == 0;
  return options_.landing == Landing::kEarliest;
}

void RunState::Land(const PendingCopy& copy) {
  if (copy.tile.has_value()) {
    LandTile(copy);
    return;
  }
  std::memmove(copy.to, copy.from, copy.num_valid);
  std::memset(copy.to + copy.num_valid, 0, copy.num_bytes - copy.num_valid);
}

void RunState::Deadlock() {
  outcome_ = Internal("deadlock: kernel {}: nothing can go on; {}", config_.name, WhoWaitsWhere());
}

}  // namespace runner
}  // namespace baton::kernels::simt
