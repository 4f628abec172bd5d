// RouterPrefixIndex: which worker holds which links of the prompt chain (kvcache/hash_chain.h), as
// far as their numbered events tell. Pure: time is an argument. Owned by the router's thread.
//
// One entry a (link, worker), 8 bytes, in one open-addressed table that doubles as it fills:
//
//   bits 63..16: the link's first 48 bits, its tag      bits 15..0: the part that the entry is of
//
// The upper bits of an entry's tag are its home; a link's holders stand in one run from there on,
// so one look at a cache line or two answers for all workers. Two links with equal tags are taken
// for one, which happens once in 2^48 / entries questions and costs a detour: workers compare
// tokens.
//
// Invariants
//  1. A worker's part is what its events say, or empty: after a gap in their numbers it is empty
//     until a batch with `reset` arrives, and the worker is asked for one: at once after a quiet
//     time, else 1, 2, 4 .. 64 s after the question before.
//  2. At most max_entries entries. A worker has an equal share of them: what it adds beyond its
//     share is not kept (the index then sees shorter prefixes than there are, and what it knows it
//     keeps). When a worker joins, parts above the new share are dropped and asked for anew.
//  3. Dropping a part takes no time: its entries, which no look-up sees any more, are left to
//     Sweep.
//  4. The table takes 8 bytes x 4/3 to 8/3 for each entry that it had at most.
#ifndef BATON_ROUTER_ROUTER_PREFIX_INDEX_H_
#define BATON_ROUTER_ROUTER_PREFIX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/hash_chain.h"
#include "src/router/worker_messages.h"

namespace baton::router {

// 2^22 slots of 8 bytes = 32 MiB, filled to three quarters: the prefixes of 50 million tokens in
// blocks of 16. The table begins with 512 bytes and doubles as it fills.
inline constexpr uint32_t kMaxPrefixEntries = 3u << 20;

// The outcome of a batch.
enum class PrefixOutcome : uint8_t {
  kApplied,
  kDuplicate,  // every change was known
  kGap,        // changes were lost: the part is empty now
  kUnsynced,   // still no reset after a gap, or since the worker joined
  kNoWorker,
};

// See the file comment.
class RouterPrefixIndex {
 public:
  // How many of the prompt's first blocks a worker holds, and after how many it can go on: all,
  // or, where sequences have a fixed state, up to the last one with the state (kv::StateLink).
  struct Hit {
    LeaseId worker;
    uint32_t num_blocks = 0;
    uint32_t num_whole = 0;
  };

  // max_entries >= 1. The table has at most 8 bytes x the power of two from max_entries / 0.75 on.
  explicit RouterPrefixIndex(uint32_t max_entries = kMaxPrefixEntries);

  // A worker of which nothing is known before its first batch with `reset`. Once a worker.
  void AddWorker(LeaseId worker, int64_t now_us);
  // Unknown: no effect.
  void RemoveWorker(LeaseId worker);

  // About 0.1 us a change. A change that doubles the table moves all entries in the order of their
  // slots: some 10 ms for the last of the 32 MiB, once in the life of a router.
  PrefixOutcome Apply(LeaseId worker, const PrefixBatch& batch, int64_t now_us);
  // The workers to ask for a resync now; each is taken to be asked.
  std::vector<LeaseId> TakeDueResyncs(int64_t now_us);

  // Workers that hold at least the first of `links`, in no order. O(links held + holders).
  // `has_states`: sequences have a fixed state.
  std::vector<Hit> Find(std::span<const kv::ChainLink> links, bool has_states = false) const;

  // Frees slots of dropped parts; looks at about `num_slots` of them, nothing when none is left.
  void Sweep(size_t num_slots);

  // Links known of a worker; 0 when unknown.
  size_t num_links(LeaseId worker) const;
  size_t num_entries() const { return num_used_ - num_stale_; }
  // Entries of dropped parts that Sweep has yet to free.
  size_t num_stale() const { return num_stale_; }
  // Changes that were not kept for want of room, since the start.
  uint64_t num_not_kept() const { return num_not_kept_; }
  // Entries that a worker may have now.
  size_t share() const;
  size_t memory_bytes() const;

 private:
  // One generation of one worker's entries.
  struct Part {
    LeaseId worker;   // 0: dropped or never used
    size_t size = 0;  // entries in the table; a dropped part's number is free at 0
  };
  // One worker that is tracked.
  struct Tracked {
    uint16_t part = 0;
    bool synced = false;
    uint64_t next_sequence = 0;  // with synced
    int64_t ask_at_us = 0;       // without synced
    int64_t asked_us = 0;
    int64_t ask_gap_us = 0;  // between the last two questions
  };

  struct FreeSlots {
    void operator()(uint64_t* slots) const;
  };
  using Slots = std::unique_ptr<uint64_t[], FreeSlots>;

  static uint64_t TagOf(const kv::ChainLink& link) { return link.hi >> 16; }
  // The uppermost bits of the tag, so that a doubling keeps the order of the slots.
  size_t HomeOf(uint64_t entry) const { return entry >> home_shift_; }
  static uint16_t PartOf(uint64_t entry) { return static_cast<uint16_t>(entry); }
  size_t Next(size_t slot) const { return (slot + 1) & mask_; }

  // Finds, within what Find found of `links`, the last block that has its state.
  void FindStates(std::span<const kv::ChainLink> links) const;
  bool TryAllocate(size_t num_slots);
  bool TryDouble();
  size_t FindSlot(uint64_t entry) const;
  bool Insert(uint64_t entry);
  void Erase(uint64_t entry);
  void EraseAt(size_t slot);
  uint16_t NewPart(LeaseId worker);
  void DropPart(Tracked& tracked);
  void Unsync(Tracked& tracked, int64_t now_us);
  void Change(Tracked& tracked, const kv::PrefixChange& change);

  const size_t max_entries_;
  size_t mask_ = 0;  // slots - 1
  uint32_t home_shift_ = 0;
  Slots slots_;           // 0 = empty
  size_t num_used_ = 0;   // slots in use
  size_t num_stale_ = 0;  // of them, of dropped parts
  size_t sweep_slot_ = 0;
  uint64_t num_not_kept_ = 0;
  std::vector<Part> parts_;  // [0] is never used, so that no entry is 0
  std::map<LeaseId, Tracked> workers_;
  mutable std::vector<uint32_t> lengths_;  // by part, within Find
  mutable std::vector<uint32_t> wholes_;   // of them, up to the last state
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_PREFIX_INDEX_H_
