// Processes of one budget that compute with real pools, and are killed at random points: no core is
// lost, none is used twice, and whoever lives goes on.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include "gtest/gtest.h"

#include "src/base/clock.h"
#include "src/device/core_share.h"
#include "src/device/thread_pool.h"

namespace baton::device {
namespace {

constexpr uint32_t kMembers = 3;
constexpr std::array<uint32_t, kMembers> kHomes = {2, 1, 1};
constexpr uint32_t kNumCores = 4;

// Memory in which the processes tell the test their state. `running` has a byte for each member:
// its threads in tasks.
struct Board {
  std::atomic<uint64_t> running;
  std::atomic<uint32_t> max_running;
  std::array<std::atomic<uint64_t>, kMembers> steps;
  std::atomic<uint64_t> num_seized;
  std::atomic<uint64_t> num_bad_regions;
};

uint32_t SumOfBytes(uint64_t bytes) {
  uint32_t sum = 0;
  for (; bytes != 0; bytes >>= 8) sum += bytes & 0xff;
  return sum;
}

void ComputeFor(int64_t us) {
  const int64_t end_us = SystemClock().NowUs() + us;
  while (SystemClock().NowUs() < end_us) {
  }
}

// One step: regions whose tasks each must run once, however many threads there are.
void ComputeStep(ThreadPool& pool, Board* board, uint32_t member, uint32_t num_regions) {
  const uint64_t one = uint64_t{1} << (8 * member);
  for (uint32_t region = 0; region < num_regions; ++region) {
    std::array<std::atomic<uint32_t>, 16> runs = {};
    pool.Run(runs.size(), [&](uint32_t task, uint32_t) {
      const uint32_t now = SumOfBytes(board->running.fetch_add(one) + one);
      uint32_t seen = board->max_running.load();
      while (now > seen && !board->max_running.compare_exchange_weak(seen, now)) {
      }
      ComputeFor(5);
      runs[task].fetch_add(1);
      board->running.fetch_sub(one);
    });
    for (const auto& count : runs) {
      if (count.load() != 1) board->num_bad_regions.fetch_add(1);
    }
  }
}

[[noreturn]] void BeMember(int fd, uint32_t member, Board* board, uint32_t seed) {
  std::mt19937 random(seed);
  auto share = CoreShare::Attach(fd, member);
  if (!share.ok()) ::_exit(3);
  ThreadPool pool({.num_threads = (*share)->max_cores(), .cores = share->get()});
  uint64_t num_seized = 0;
  for (;;) {
    (*share)->BeginStep();
    ComputeStep(pool, board, member, 1 + random() % 4);
    const uint64_t now_seized = (*share)->Stats().num_seized;
    board->num_seized.fetch_add(now_seized - num_seized);
    num_seized = now_seized;
    board->steps[member].fetch_add(1);
    if (random() % 2 != 0) continue;
    (*share)->EndSteps();
    if (random() % 2 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
  }
}

// The processes of a budget.
class Family {
 public:
  Family() {
    void* const memory =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    board_ = new (memory) Board{};
    auto budget = CoreBudget::Create(kHomes);
    EXPECT_TRUE(budget.ok()) << budget.status();
    budget_ = *std::move(budget);
  }
  ~Family() { (void)::munmap(board_, sizeof(Board)); }

  void Start(uint32_t member) {
    const pid_t pid = ::fork();
    if (pid == 0) BeMember(budget_->fd(), member, board_, ++seed_);
    ++seed_;
    pids_[member] = pid;
  }
  // As the supervisor does it: the process is gone before its cores are taken.
  void Kill(uint32_t member) {
    (void)::kill(pids_[member], SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(pids_[member], &status, 0), pids_[member]);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself, with " << WEXITSTATUS(status);
    board_->running.fetch_and(~(uint64_t{0xff} << (8 * member)));
    budget_->Vacate(member);
    pids_[member] = 0;
  }
  // False when the member does not come to that many further steps.
  bool HasSteps(uint32_t member, uint64_t more) {
    const uint64_t wanted = board_->steps[member].load() + more;
    for (int i = 0; i < 20'000 && board_->steps[member].load() < wanted; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return board_->steps[member].load() >= wanted;
  }

  Board& board() { return *board_; }
  CoreBudget& budget() { return *budget_; }
  pid_t pid(uint32_t member) const { return pids_[member]; }

 private:
  Board* board_ = nullptr;
  std::unique_ptr<CoreBudget> budget_;
  std::array<pid_t, kMembers> pids_ = {};
  uint32_t seed_ = 1;
};

TEST(CoreKillTest, KilledHoldersLoseNoCoreAndStopNobody) {
  Family family;
  std::mt19937 random(5);
  for (uint32_t member = 0; member < kMembers; ++member) family.Start(member);
  for (int round = 0; round < 60; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    const uint32_t victim = random() % kMembers;
    ASSERT_NO_FATAL_FAILURE(family.Kill(victim));
    for (uint32_t core = 0; core < kNumCores; ++core) {
      const CoreWord word = family.budget().word(core).load();
      ASSERT_TRUE(IsFree(word) || HolderOf(word).member != victim) << "round " << round;
    }
    ASSERT_TRUE(family.HasSteps((victim + 1) % kMembers, 1)) << "round " << round;
    family.Start(victim);
  }
  for (uint32_t member = 0; member < kMembers; ++member) {
    EXPECT_TRUE(family.HasSteps(member, 1));
  }
  for (uint32_t member = 0; member < kMembers; ++member) family.Kill(member);
  for (uint32_t core = 0; core < kNumCores; ++core) {
    EXPECT_EQ(family.budget().word(core).load(), kFreeCore) << "core " << core;
  }
  EXPECT_EQ(family.board().num_bad_regions.load(), 0u);
  // A process that the system does not run for 0.1 s may lose a core while a task of it is counted.
  if (family.board().num_seized.load() == 0) {
    EXPECT_LE(family.board().max_running.load(), kNumCores);
  }
}

// Nobody reaps the dead process: the one that waits for its core finds that out itself.
TEST(CoreKillTest, ADeadOrStoppedHolderIsFoundByTheOneThatWaits) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    Family family;
    auto share = CoreShare::Attach(family.budget().fd(), 1);
    ASSERT_TRUE(share.ok()) << share.status();
    bool has_seized_soon = false;
    // The holder may be hit while it borrows nothing, and the machine may stand still: try again.
    for (int attempt = 0; attempt < 200 && !has_seized_soon; ++attempt) {
      family.Start(0);
      ASSERT_TRUE(family.HasSteps(0, 1));
      ASSERT_EQ(::kill(family.pid(0), signal), 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const uint64_t seized_before = (*share)->Stats().num_seized;
      const int64_t begin_us = SystemClock().NowUs();
      (*share)->BeginStep();
      const int64_t waited_us = SystemClock().NowUs() - begin_us;
      has_seized_soon =
          (*share)->Stats().num_seized > seized_before && waited_us < CoreShare::kSeizeAfterUs / 2;
      (*share)->EndSteps();
      family.Kill(0);
    }
    EXPECT_TRUE(has_seized_soon) << "signal " << signal;
  }
}

}  // namespace
}  // namespace baton::device
