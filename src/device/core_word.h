// The state of one core of a budget as one 32-bit word, and the moves of that word as pure
// functions. Each move is one compare-and-swap of the value that a function here returns. So a
// process that is killed at any instruction leaves a state of this file.
//
// A core is a right to run one compute thread; it is no processor number. Each core has a home: the
// member (worker) that the split by flags gives it to.
//
//   free            nobody computes on it; any member may take it
//   free, recalled  the same, but only its home may take it
//   held            one life of one member computes on it
//   held, recalled  its home waits for it: the holder gives it back before its next work item
//
// Invariants
//  1. A word names at most one holder, so the cores that members hold never exceed the budget.
//  2. Only the home recalls a core, and never one that it holds.
//  3. A life is never used again. So whoever decided that a life is dead cannot hit the next one of
//     the same member, however late its compare-and-swap comes.
#ifndef BATON_DEVICE_CORE_WORD_H_
#define BATON_DEVICE_CORE_WORD_H_

#include <atomic>
#include <cstdint>
#include <optional>

namespace baton::device {

// word = [recalled : 1][life : 23][member + 1 : 8]; member + 1 = 0 when the core is free, and then
// the life is 0 too.
using CoreWord = uint32_t;

inline constexpr uint32_t kMaxCoreMembers = 128;  // serve's limit: 64 workers of each role
inline constexpr uint32_t kCoreMemberBits = 8;
inline constexpr uint32_t kCoreLifeBits = 23;
inline constexpr uint32_t kCoreLifeMask = (1u << kCoreLifeBits) - 1;
inline constexpr CoreWord kFreeCore = 0;
inline constexpr CoreWord kRecalledBit = 1u << 31;
static_assert(kCoreMemberBits + kCoreLifeBits + 1 == 32);
static_assert(kMaxCoreMembers < (1u << kCoreMemberBits));

// One process's time as a member: the member's place in the budget, and which life of it.
struct MemberLife {
  uint32_t member = 0;
  uint32_t life = 0;
  bool operator==(const MemberLife&) const = default;
};

// The word of a core that `who` holds and nobody waits for.
constexpr CoreWord HeldBy(const MemberLife& who) {
  return ((who.life & kCoreLifeMask) << kCoreMemberBits) | (who.member + 1);
}

constexpr bool IsRecalled(CoreWord word) { return (word & kRecalledBit) != 0; }
constexpr bool IsFree(CoreWord word) { return (word & ~kRecalledBit) == kFreeCore; }
constexpr bool IsHeldBy(CoreWord word, const MemberLife& who) {
  return (word & ~kRecalledBit) == HeldBy(who);
}

// The holder of a word that is not free. A word that no member wrote may name a member outside the
// budget: compare before you index.
constexpr MemberLife HolderOf(CoreWord word) {
  return {(word & ((1u << kCoreMemberBits) - 1)) - 1, (word >> kCoreMemberBits) & kCoreLifeMask};
}

// ---- Moves. Empty = the move is not allowed from this word.

// `me` begins to compute on a free core. Whoever is not its home leaves a recalled one alone.
constexpr std::optional<CoreWord> AfterTake(CoreWord word, const MemberLife& me, bool is_home) {
  if (!IsFree(word) || (IsRecalled(word) && !is_home)) return std::nullopt;
  return HeldBy(me);
}

// The home asks for a core that another member holds.
constexpr std::optional<CoreWord> AfterRecall(CoreWord word, const MemberLife& home) {
  if (IsFree(word) || IsRecalled(word) || IsHeldBy(word, home)) return std::nullopt;
  return word | kRecalledBit;
}

// The home has no use for the core any more.
constexpr std::optional<CoreWord> AfterCancel(CoreWord word) {
  if (!IsRecalled(word)) return std::nullopt;
  return word & ~kRecalledBit;
}

// `me` stops computing on its core; a recall stays, so that only the home takes the core next.
constexpr std::optional<CoreWord> AfterReturn(CoreWord word, const MemberLife& me) {
  if (!IsHeldBy(word, me)) return std::nullopt;
  return word & kRecalledBit;
}

// The home takes a recalled core from a holder that is stopped, gone or far too slow. That holder
// sees before its next work item that the core is not its own any more.
constexpr std::optional<CoreWord> AfterSeize(CoreWord word, const MemberLife& home) {
  if (!IsRecalled(word)) return std::nullopt;
  return HeldBy(home);
}

// The life `dead` is over: what it held is free. `is_home`: it also waits for nothing any more.
constexpr std::optional<CoreWord> AfterDeath(CoreWord word, const MemberLife& dead, bool is_home) {
  CoreWord next = word;
  if (!IsFree(next) && IsHeldBy(next, dead)) next &= kRecalledBit;
  if (is_home) next &= ~kRecalledBit;
  if (next == word) return std::nullopt;
  return next;
}

// Moves a core by `move`, one of the functions above with its word as the argument, until that is
// done (true) or not allowed any more. Acquires what earlier holders wrote, releases what this
// thread did.
template <typename Move>
bool MoveCore(std::atomic<CoreWord>& word, const Move& move) {
  CoreWord seen = word.load(std::memory_order_acquire);
  for (;;) {
    const std::optional<CoreWord> next = move(seen);
    if (!next) return false;
    if (word.compare_exchange_weak(seen, *next, std::memory_order_acq_rel,
                                   std::memory_order_acquire)) {
      return true;
    }
  }
}

}  // namespace baton::device

#endif  // BATON_DEVICE_CORE_WORD_H_
