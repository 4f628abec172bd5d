// Members of one budget in one process, moved step by step: what they hold, lend and take back.
#include "src/device/core_share.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/clock.h"
#include "src/base/cpus.h"
#include "src/base/memory_file.h"
#include "src/base/unique_fd.h"

namespace baton::device {
namespace {

std::unique_ptr<CoreBudget> MakeBudget(const std::vector<uint32_t>& home_counts) {
  auto budget = CoreBudget::Create(home_counts);
  EXPECT_TRUE(budget.ok()) << budget.status();
  return *std::move(budget);
}

std::unique_ptr<CoreShare> Member(const CoreBudget& budget, uint32_t member) {
  auto share = CoreShare::Attach(budget.fd(), member);
  EXPECT_TRUE(share.ok()) << share.status();
  return *std::move(share);
}

// A seat for a thread that has not sat before.
std::optional<uint32_t> TakeSeat(CoreShare* share) {
  CoreShare::Place place;
  return share->TakeSeat(&place);
}

uint32_t NumHeld(const CoreBudget& budget, uint32_t member) {
  uint32_t count = 0;
  for (uint32_t core = 0; core < budget.num_cores(); ++core) {
    const CoreWord word = budget.word(core).load();
    count += !IsFree(word) && HolderOf(word).member == member ? 1 : 0;
  }
  return count;
}

uint32_t NumFree(const CoreBudget& budget) {
  uint32_t count = 0;
  for (uint32_t core = 0; core < budget.num_cores(); ++core) {
    count += budget.word(core).load() == kFreeCore ? 1 : 0;
  }
  return count;
}

TEST(CoreShareTest, AStepTakesEveryFreeCoreAndItsEndGivesAllBack) {
  const auto budget = MakeBudget({1, 2});
  const auto a = Member(*budget, 0);
  EXPECT_EQ(a->max_cores(), 3u);
  EXPECT_EQ(a->num_home_cores(), 1u);
  a->BeginStep();
  EXPECT_EQ(NumHeld(*budget, 0), 3u);
  EXPECT_EQ(a->num_vacant(), 2u) << "the owner sits on the third";
  a->EndSteps();
  EXPECT_EQ(NumFree(*budget), 3u);
  EXPECT_EQ(a->num_vacant(), 0u);
  a->EndSteps();
}

TEST(CoreShareTest, BothBusyHaveTheSplitOfTheFlags) {
  const auto budget = MakeBudget({2, 1});
  const auto a = Member(*budget, 0);
  const auto b = Member(*budget, 1);
  b->BeginStep();
  EXPECT_EQ(NumHeld(*budget, 1), 3u);
  const auto first = TakeSeat(b.get());
  const auto second = TakeSeat(b.get());
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(TakeSeat(b.get()).has_value());
  // The home waits until a thread of the holder has come to the border of an item.
  std::thread begins([&] { a->BeginStep(); });
  while (b->MayStay(*first)) std::this_thread::yield();
  begins.join();
  while (b->MayStay(*second)) std::this_thread::yield();
  a->BeginStep();  // the next step has the other core too
  EXPECT_EQ(NumHeld(*budget, 0), 2u);
  EXPECT_EQ(NumHeld(*budget, 1), 1u);
  EXPECT_EQ(a->Stats().num_waits, 1u);
  a->EndSteps();
  EXPECT_TRUE(b->HasNews());
  EXPECT_EQ(b->TakeNews(), 2u);
  b->EndSteps();
  EXPECT_EQ(NumFree(*budget), 3u);
}

TEST(CoreShareTest, ACoreThatNoThreadSitsOnGoesBackWithTheNextNews) {
  const auto budget = MakeBudget({1, 1});
  const auto a = Member(*budget, 0);
  const auto b = Member(*budget, 1);
  b->BeginStep();
  EXPECT_EQ(b->num_vacant(), 1u);
  std::atomic<bool> begun{false};
  std::thread begins([&] {
    a->BeginStep();
    begun = true;
  });
  while (!begun) {
    if (b->HasNews()) (void)b->TakeNews();
    std::this_thread::yield();
  }
  begins.join();
  EXPECT_EQ(NumHeld(*budget, 0), 1u);
  EXPECT_EQ(NumHeld(*budget, 1), 1u);
}

TEST(CoreShareTest, ASleepingThreadGivesABorrowedCoreBackAndKeepsOneOfItsHome) {
  const auto budget = MakeBudget({2, 1});
  const auto a = Member(*budget, 0);
  a->BeginStep();
  std::vector<uint32_t> seats;
  while (const auto seat = TakeSeat(a.get())) seats.push_back(*seat);
  ASSERT_EQ(seats.size(), 2u);
  // The time is counted in whole microseconds, and all of this may pass within one.
  const int64_t begin_us = SystemClock().NowUs();
  while (SystemClock().NowUs() == begin_us) {
  }
  for (const uint32_t seat : seats) a->Leave(seat);
  EXPECT_EQ(NumHeld(*budget, 0), 2u);
  EXPECT_EQ(a->num_vacant(), 1u);
  EXPECT_GT(a->Stats().borrowed_us, 0u);
}

// The processor on which a new thread is kept by its seat; -1 = none in particular.
int CpuOfSeat(CoreShare* share, uint32_t* core) {
  int cpu = -1;
  std::thread([&] {
    CoreShare::Place place;
    *core = share->TakeSeat(&place).value();
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    if (CPU_COUNT(&set) == 1) cpu = sched_getcpu();
  }).join();
  return cpu;
}

TEST(CoreShareTest, SeatsAreOnTheProcessorsOfTheirCores) {
  const std::vector<int> cpus = AffinityCpus();
  if (cpus.size() < 2) GTEST_SKIP() << "needs two processors";
  const std::vector<int> placed = {cpus[1], cpus[0]};
  const auto budget = *CoreBudget::Create(std::vector<uint32_t>{1, 1}, placed);
  const auto a = Member(*budget, 0);
  a->BeginStep();
  uint32_t core = UINT32_MAX;
  EXPECT_EQ(CpuOfSeat(a.get(), &core), cpus[0]);
  EXPECT_EQ(core, 1u);
  std::thread([&] {
    CoreShare::Place place;
    a->SitDown(&place);
    EXPECT_EQ(place.core, 0u);
    EXPECT_EQ(sched_getcpu(), cpus[1]);
    EXPECT_EQ(AffinityCpus(), std::vector<int>{cpus[1]});
    a->StandUp(&place);
    EXPECT_EQ(AffinityCpus().size(), 2u) << "a thread that it starts now is not bound like it";
    a->SitDown(&place);
    EXPECT_EQ(sched_getcpu(), cpus[1]);
  }).join();
  EXPECT_FALSE(CoreBudget::Create(std::vector<uint32_t>{1, 1}, std::vector<int>{0}).ok());
}

TEST(CoreShareTest, MembersOfOneBudgetTellOneName) {
  const auto budget = *CoreBudget::Create(std::vector<uint32_t>{2, 1});
  const auto other = *CoreBudget::Create(std::vector<uint32_t>{1, 1});
  EXPECT_EQ(Member(*budget, 0)->budget_id(), budget->id());
  EXPECT_EQ(Member(*budget, 1)->budget_id(), budget->id());
  EXPECT_NE(budget->id(), 0u);
  EXPECT_NE(budget->id(), other->id());
}

TEST(CoreShareTest, AThreadWhoseProcessorIsGoneRunsOnAllOthers) {
  const std::vector<int> cpus = AffinityCpus();
  if (cpus.size() < 2) GTEST_SKIP() << "needs two processors";
  const std::vector<int> placed = {cpus[0], cpus[1], 1'000'000};
  const auto budget = *CoreBudget::Create(std::vector<uint32_t>{3}, placed);
  const auto a = Member(*budget, 0);
  a->BeginStep();
  std::thread([&] {
    CoreShare::Place place;
    EXPECT_EQ(a->TakeSeat(&place), 1u);
    EXPECT_EQ(AffinityCpus(), std::vector<int>{cpus[1]});
    place.core = 2;
    EXPECT_EQ(a->TakeSeat(&place), 2u);
    EXPECT_EQ(AffinityCpus(), (std::vector<int>{cpus[0], cpus[1]}));
  }).join();
}

TEST(CoreShareTest, WithoutProcessorsNobodyIsKeptOnOne) {
  if (AffinityCpus().size() < 2) GTEST_SKIP() << "needs two processors";
  const auto budget = MakeBudget({2});
  const auto a = Member(*budget, 0);
  a->BeginStep();
  uint32_t core = UINT32_MAX;
  EXPECT_EQ(CpuOfSeat(a.get(), &core), -1);
}

TEST(CoreShareTest, AThreadSitsDownWhereItSatLast) {
  const auto budget = MakeBudget({4});
  const auto a = Member(*budget, 0);
  a->BeginStep();
  CoreShare::Place first;
  CoreShare::Place second;
  ASSERT_EQ(a->TakeSeat(&first), 1u);
  ASSERT_EQ(a->TakeSeat(&second), 2u);
  a->Leave(1);
  a->Leave(2);
  EXPECT_EQ(a->TakeSeat(&second), 2u);
  EXPECT_EQ(a->TakeSeat(&first), 1u);
  // Its last seat is taken: any other will do.
  a->Leave(1);
  EXPECT_EQ(TakeSeat(a.get()), 1u);
  EXPECT_EQ(a->TakeSeat(&first), 3u);
}

TEST(CoreShareTest, LentTimeIsCountedAtTheHome) {
  const auto budget = MakeBudget({1, 1});
  const auto a = Member(*budget, 0);
  const auto b = Member(*budget, 1);
  a->BeginStep();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  a->EndSteps();
  EXPECT_GE(b->Stats().lent_us, 5'000u);
  EXPECT_EQ(b->Stats().lent_us, a->Stats().borrowed_us);
  EXPECT_EQ(a->Stats().lent_us, 0u);
}

TEST(CoreShareTest, AThreadThatIsLateLeavesAfterTheEndOfTheSteps) {
  const auto budget = MakeBudget({2, 1});
  const auto a = Member(*budget, 0);
  a->BeginStep();
  const uint32_t one = TakeSeat(a.get()).value();
  const uint32_t two = TakeSeat(a.get()).value();
  a->EndSteps();
  EXPECT_EQ(NumFree(*budget), 1u);
  EXPECT_FALSE(a->MayStay(one));
  a->Leave(two);
  EXPECT_EQ(NumFree(*budget), 3u);
  EXPECT_EQ(a->num_vacant(), 0u);
}

TEST(CoreShareTest, AHolderThatDoesNotGiveBackLosesTheCore) {
  const auto budget = MakeBudget({1, 1});
  const auto a = Member(*budget, 0);
  const auto b = Member(*budget, 1);
  b->BeginStep();
  const uint32_t lent = TakeSeat(b.get()).value();
  const int64_t begin_us = SystemClock().NowUs();
  a->BeginStep();
  EXPECT_GE(SystemClock().NowUs() - begin_us, CoreShare::kSeizeAfterUs);
  EXPECT_EQ(NumHeld(*budget, 0), 1u);
  EXPECT_EQ(a->Stats().num_seized, 1u);
  // The thread of the holder has not looked yet: nobody else of b may sit down there.
  a->EndSteps();
  EXPECT_EQ(b->TakeNews(), 0u);
  EXPECT_FALSE(b->MayStay(lent));
  EXPECT_EQ(b->TakeNews(), 1u);
  b->EndSteps();
  EXPECT_EQ(NumFree(*budget), 2u);
}

// Three members that move at random, each at the border of its items; no move waits.
class Walk {
 public:
  explicit Walk(uint32_t seed) : budget_(MakeBudget({1, 2, 1})), random_(seed) {
    for (uint32_t i = 0; i < kMembers; ++i) members_[i] = Member(*budget_, i);
  }

  void Move() {
    const uint32_t i = random_() % kMembers;
    CoreShare& share = *members_[i];
    const uint32_t move = random_() % 5;
    if (move == 0 && (in_step_[i] || HasFreeHome(i))) {
      share.BeginStep();
      in_step_[i] = true;
    } else if (move == 1) {
      share.EndSteps();
      in_step_[i] = false;
    } else if (move == 2 && share.HasNews()) {
      (void)share.TakeNews();
    } else if (move == 3) {
      const auto seat = TakeSeat(&share);
      EXPECT_TRUE(!seat || seats_[i].insert(*seat).second) << "two threads on one core";
    } else if (move == 4 && !seats_[i].empty()) {
      LookOrSleep(i, *seats_[i].begin());
    }
  }

  void Check() const {
    uint32_t held = 0;
    for (uint32_t i = 0; i < kMembers; ++i) {
      held += NumHeld(*budget_, i);
      EXPECT_TRUE(!in_step_[i] || NumHeld(*budget_, i) >= 1);
    }
    EXPECT_LE(held, budget_->num_cores());
  }

  // All go, each in the middle of what it does.
  uint32_t NumFreeAtTheEnd() {
    for (uint32_t i = 0; i < kMembers; ++i) members_[i].reset();
    for (uint32_t i = 0; i < kMembers; ++i) budget_->Vacate(i);
    return NumFree(*budget_);
  }

 private:
  static constexpr uint32_t kMembers = 3;

  bool HasFreeHome(uint32_t i) const {
    for (uint32_t core = 0; core < budget_->num_cores(); ++core) {
      if (budget_->home(core) == i && IsFree(budget_->word(core).load())) return true;
    }
    return false;
  }
  void LookOrSleep(uint32_t i, uint32_t seat) {
    const bool stays = members_[i]->MayStay(seat);
    const bool sleeps = stays && random_() % 2 == 0;
    if (sleeps) members_[i]->Leave(seat);
    if (sleeps || !stays) seats_[i].erase(seat);
  }

  const std::unique_ptr<CoreBudget> budget_;
  std::mt19937 random_;
  std::array<std::unique_ptr<CoreShare>, kMembers> members_;
  std::array<std::set<uint32_t>, kMembers> seats_;
  std::array<bool, kMembers> in_step_ = {};
};

TEST(CoreShareTest, RandomStepsNeverHoldMoreThanTheBudgetAndEndWithAllFree) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Walk walk(seed);
    for (int turn = 0; turn < 400; ++turn) {
      walk.Move();
      walk.Check();
    }
    EXPECT_EQ(walk.NumFreeAtTheEnd(), 4u);
  }
}

// ---- Memory that is no budget of ours.

std::string FaultOf(int fd, uint32_t member = 0) {
  return std::string(CoreShare::Attach(fd, member).status().message());
}

TEST(CoreBudgetTest, MemoryThatIsNoBudgetIsRefusedWithItsFault) {
  EXPECT_NE(FaultOf(-1).find("is no memory file"), std::string::npos) << FaultOf(-1);
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_NE(FaultOf(null.get()).find("is no memory file"), std::string::npos);
  const UniqueFd unsealed = *CreateMemoryFile("test", sizeof(CoreBudgetFile));
  EXPECT_NE(FaultOf(unsealed.get()).find("has seals"), std::string::npos);
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const UniqueFd small = *CreateMemoryFile("test", 4096);
  ASSERT_EQ(::fcntl(small.get(), F_ADD_SEALS, seals), 0);
  EXPECT_NE(FaultOf(small.get()).find("has 4096 bytes"), std::string::npos);
  ASSERT_EQ(::fcntl(unsealed.get(), F_ADD_SEALS, seals), 0);
  EXPECT_NE(FaultOf(unsealed.get()).find("begins with 0x0"), std::string::npos);
}

// A budget whose header somebody has spoilt.
TEST(CoreBudgetTest, ASpoiltBudgetIsRefusedWithItsFault) {
  const auto budget = MakeBudget({1, 1});
  void* const memory =
      ::mmap(nullptr, sizeof(CoreBudgetFile), PROT_READ | PROT_WRITE, MAP_SHARED, budget->fd(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const file = static_cast<CoreBudgetFile*>(memory);
  const auto fault_with = [&](auto& field, auto value) {
    const auto before = field;
    field = value;
    const std::string fault = FaultOf(budget->fd());
    field = before;
    return fault;
  };
  EXPECT_NE(fault_with(file->num_cores, 0u).find("has 0 cores"), std::string::npos);
  EXPECT_NE(fault_with(file->num_cores, 5000u).find("has 5000 cores"), std::string::npos);
  EXPECT_NE(fault_with(file->num_members, 0u).find("has 0 members"), std::string::npos);
  EXPECT_NE(fault_with(file->cores[1].home, 9u).find("core 1 belongs to member 9"),
            std::string::npos);
  EXPECT_NE(fault_with(file->creator, 1).find("the server with pid 1"), std::string::npos);
  EXPECT_NE(FaultOf(budget->fd(), 7).find("would be member 7"), std::string::npos);
  file->members[1].pid = ::getppid();  // another living process
  file->members[1].start_ticks = ProcessStartTicks(::getppid());
  EXPECT_NE(FaultOf(budget->fd(), 1).find("is the process with pid"), std::string::npos);
  file->members[1].start_ticks = 1;  // that pid is another process by now
  EXPECT_EQ(FaultOf(budget->fd(), 1), "");
  (void)::munmap(memory, sizeof(CoreBudgetFile));
}

TEST(CoreBudgetTest, CountsOutsideTheLimitsAreRefused) {
  EXPECT_FALSE(CoreBudget::Create(std::vector<uint32_t>{}).ok());
  EXPECT_FALSE(CoreBudget::Create(std::vector<uint32_t>{0, 0}).ok());
  EXPECT_FALSE(CoreBudget::Create(std::vector<uint32_t>{kMaxCores, 1}).ok());
  EXPECT_FALSE(CoreBudget::Create(std::vector<uint32_t>(kMaxCoreMembers + 1, 1)).ok());
  EXPECT_TRUE(CoreBudget::Create(std::vector<uint32_t>(kMaxCoreMembers, 8)).ok());
}

TEST(CoreBudgetTest, AProcessIsToldApartFromALaterOneWithItsNumber) {
  const uint64_t ticks = ProcessStartTicks(::getpid());
  EXPECT_NE(ticks, 0u);
  EXPECT_EQ(ProcessState(::getpid(), ticks), HolderState::kRuns);
  EXPECT_EQ(ProcessState(::getpid(), ticks + 1), HolderState::kGone);
  EXPECT_EQ(ProcessState(::getpid(), 0), HolderState::kRuns) << "nothing is known";
  EXPECT_EQ(ProcessState(INT32_MAX, 5), HolderState::kGone);
}

}  // namespace
}  // namespace baton::device
