// The states of a core under every order of what members, their deaths and those who bury them do.
// A move is one compare-and-swap, so a system of members is explored move by move: each reachable
// state is checked, and from each one all cores can still become free.
#include "src/device/core_word.h"

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace baton::device {
namespace {

constexpr uint32_t kMembers = 2;
constexpr uint32_t kCores = 3;
constexpr std::array<uint32_t, kCores> kHomes = {0, 0, 1};
constexpr uint8_t kNobody = 0xff;

// The knowledge of one process. `seats` are the cores that it believes to be its own.
struct Process {
  uint8_t life = 1;
  uint8_t seats = 0;  // a bit for each core
  uint8_t owner_core = kNobody;
  bool alive = true;
  bool in_step = false;
  auto operator<=>(const Process&) const = default;
};

// The whole system. A verdict is a peer's late knowledge that a life is over.
struct System {
  std::array<CoreWord, kCores> words = {};
  std::array<Process, kMembers> members = {};
  uint8_t deaths_left = 2;
  uint8_t verdict_member = kNobody;
  uint8_t verdict_life = 0;
  uint8_t seized = 0;  // seats of living processes whose core was taken from them
  auto operator<=>(const System&) const = default;

  MemberLife Name(uint32_t member) const { return {member, members[member].life}; }
  bool HasSeat(uint32_t member, uint32_t core) const {
    return (members[member].seats >> core & 1) != 0;
  }
};

uint8_t Bit(uint32_t core) { return static_cast<uint8_t>(1u << core); }
uint8_t SeizedBit(uint32_t member, uint32_t core) {
  return static_cast<uint8_t>(1u << (member * kCores + core));
}

// The home recalls the core, or seizes it from a holder that may live.
void AskForCore(const System& now, uint32_t home, uint32_t core, std::vector<System>* out) {
  const CoreWord word = now.words[core];
  if (const auto next = AfterRecall(word, now.Name(home)))
    out->emplace_back(now).words[core] = *next;
  const auto seized = AfterSeize(word, now.Name(home));
  if (!seized || IsFree(word)) return;
  System& after = out->emplace_back(now);
  after.words[core] = *seized;
  after.members[home].seats |= Bit(core);
  const uint32_t holder = HolderOf(word).member;
  if (now.HasSeat(holder, core) && IsHeldBy(word, now.Name(holder))) {
    after.seized |= SeizedBit(holder, core);
  }
}

// Appends the states that one move of `member` on `core` leads to.
void MovesOnCore(const System& now, uint32_t member, uint32_t core, std::vector<System>* out) {
  const Process& me = now.members[member];
  const bool is_home = kHomes[core] == member;
  const bool has_seat = now.HasSeat(member, core);
  const CoreWord word = now.words[core];
  const auto add = [&](CoreWord next, uint8_t seats) -> System& {
    System& after = out->emplace_back(now);
    after.words[core] = next;
    after.members[member].seats = seats;
    return after;
  };
  const auto with = static_cast<uint8_t>(me.seats | Bit(core));
  const auto without = static_cast<uint8_t>(me.seats & ~Bit(core));
  if (me.in_step && !has_seat) {
    if (const auto next = AfterTake(word, now.Name(member), is_home)) {
      System& after = add(*next, with);
      if (is_home && me.owner_core == kNobody) {
        after.members[member].owner_core = static_cast<uint8_t>(core);
      }
    }
    if (is_home) AskForCore(now, member, core, out);
  }
  if (has_seat && (me.owner_core != core || !me.in_step)) {
    System& after = add(AfterReturn(word, now.Name(member)).value_or(word), without);
    after.seized &= static_cast<uint8_t>(~SeizedBit(member, core));
    if (me.owner_core == core) after.members[member].owner_core = kNobody;
  }
  if (is_home && !me.in_step) {
    if (const auto next = AfterCancel(word)) add(*next, me.seats);
  }
}

// A process that was killed comes back as the next life, once the creator has freed its cores.
System Vacated(const System& now, uint32_t member) {
  System after = now;
  const MemberLife dead = now.Name(member);
  for (uint32_t core = 0; core < kCores; ++core) {
    const auto next = AfterDeath(after.words[core], dead, kHomes[core] == member);
    after.words[core] = next.value_or(after.words[core]);
  }
  after.members[member] = {.life = static_cast<uint8_t>(dead.life + 1)};
  return after;
}

std::vector<System> Next(const System& now) {
  std::vector<System> out;
  for (uint32_t member = 0; member < kMembers; ++member) {
    const Process& me = now.members[member];
    if (!me.alive) {
      out.push_back(Vacated(now, member));
      System& known = out.emplace_back(now);
      known.verdict_member = static_cast<uint8_t>(member);
      known.verdict_life = me.life;
      continue;
    }
    for (uint32_t core = 0; core < kCores; ++core) MovesOnCore(now, member, core, &out);
    const bool may_end = me.in_step && me.owner_core != kNobody;
    if (may_end || (!me.in_step && me.seats == 0)) {
      out.emplace_back(now).members[member].in_step = !me.in_step;
    }
    if (now.deaths_left == 0) continue;
    System& killed = out.emplace_back(now);
    --killed.deaths_left;
    killed.members[member] = {.life = me.life, .alive = false};
    for (uint32_t core = 0; core < kCores; ++core) {
      killed.seized &= static_cast<uint8_t>(~SeizedBit(member, core));
    }
  }
  if (now.verdict_member != kNobody) {  // on one core after another, at any time
    for (uint32_t core = 0; core < kCores; ++core) {
      const MemberLife dead = {now.verdict_member, now.verdict_life};
      const auto next = AfterDeath(now.words[core], dead, kHomes[core] == dead.member);
      if (next) out.emplace_back(now).words[core] = *next;
    }
  }
  return out;
}

// Nothing is computed, and everything may be.
bool IsAllFree(const System& now) {
  for (const CoreWord word : now.words) {
    if (word != kFreeCore) return false;
  }
  for (const Process& member : now.members) {
    if (!member.alive || member.seats != 0) return false;
  }
  return true;
}

void CheckState(const System& now) {
  for (uint32_t core = 0; core < kCores; ++core) {
    const CoreWord word = now.words[core];
    for (uint32_t member = 0; member < kMembers; ++member) {
      const bool is_mine = !IsFree(word) && IsHeldBy(word, now.Name(member));
      const bool was_seized = (now.seized & SeizedBit(member, core)) != 0;
      if (!now.members[member].alive) continue;
      ASSERT_EQ(now.HasSeat(member, core), is_mine || was_seized)
          << "core " << core << " of member " << member << ": word " << std::hex << word;
    }
    ASSERT_LT(IsFree(word) ? 0 : HolderOf(word).member, kMembers);
    if (IsFree(word) || now.members[kHomes[core]].owner_core != core) continue;
    ASSERT_FALSE(IsRecalled(word)) << "the seat of an owner is its home's";
  }
}

TEST(CoreWordTest, NoOrderOfMovesAndDeathsLosesACoreOrGivesItTwice) {
  std::map<System, uint32_t> known;
  std::vector<std::vector<uint32_t>> before;  // states that lead to the state
  std::vector<uint32_t> free_states;
  std::deque<const System*> open;
  const auto add = [&](const System& state) {
    const auto [at, is_new] = known.try_emplace(state, static_cast<uint32_t>(known.size()));
    if (is_new) {
      before.emplace_back();
      open.push_back(&at->first);
      if (IsAllFree(state)) free_states.push_back(at->second);
    }
    return at->second;
  };
  add(System());
  while (!open.empty()) {
    const System now = *open.front();
    open.pop_front();
    ASSERT_NO_FATAL_FAILURE(CheckState(now));
    const uint32_t number = known.at(now);
    for (const System& next : Next(now)) before[add(next)].push_back(number);
  }
  EXPECT_GT(known.size(), 10'000u) << "this explores too little to mean anything";
  std::vector<bool> can_end(known.size(), false);
  std::deque<uint32_t> todo(free_states.begin(), free_states.end());
  for (const uint32_t state : free_states) can_end[state] = true;
  while (!todo.empty()) {
    const uint32_t number = todo.front();
    todo.pop_front();
    for (const uint32_t earlier : before[number]) {
      if (can_end[earlier]) continue;
      can_end[earlier] = true;
      todo.push_back(earlier);
    }
  }
  size_t num_stuck = 0;
  for (const bool can : can_end) num_stuck += can ? 0 : 1;
  EXPECT_EQ(num_stuck, 0u) << "states of " << known.size() << " from which a core is lost";
}

TEST(CoreWordTest, OnlyItsHomeTakesACoreThatItWaitsFor) {
  const MemberLife home = {0, 7};
  const MemberLife other = {1, 1};
  const MemberLife third = {2, 1};
  const CoreWord lent = AfterTake(kFreeCore, other, false).value();
  EXPECT_EQ(HolderOf(lent), other);
  EXPECT_FALSE(AfterTake(lent, home, true).has_value());
  const CoreWord recalled = AfterRecall(lent, home).value();
  EXPECT_FALSE(AfterRecall(recalled, home).has_value()) << "once is enough";
  const CoreWord returned = AfterReturn(recalled, other).value();
  EXPECT_TRUE(IsFree(returned));
  EXPECT_FALSE(AfterTake(returned, third, false).has_value());
  EXPECT_EQ(AfterTake(returned, home, true), HeldBy(home));
  EXPECT_EQ(AfterCancel(returned), kFreeCore);
}

TEST(CoreWordTest, ALateVerdictDoesNotHitTheNextLife) {
  const MemberLife dead = {3, 4};
  const MemberLife next = {3, 5};
  EXPECT_FALSE(AfterDeath(HeldBy(next), dead, false).has_value());
  EXPECT_EQ(AfterDeath(HeldBy(dead), dead, true), kFreeCore);
  EXPECT_EQ(AfterDeath(HeldBy(dead) | kRecalledBit, dead, false), kRecalledBit)
      << "its home still waits";
}

TEST(CoreWordTest, AWordHoldsTheLargestMemberAndLife) {
  const MemberLife last = {kMaxCoreMembers - 1, kCoreLifeMask};
  EXPECT_EQ(HolderOf(HeldBy(last)), last);
  EXPECT_FALSE(IsRecalled(HeldBy(last)));
  EXPECT_FALSE(IsFree(HeldBy(last)));
}

}  // namespace
}  // namespace baton::device
