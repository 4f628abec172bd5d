#include "src/router/router_prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

#include "src/base/check.h"

namespace baton::router {

using kv::ChainLink;
using kv::PrefixChange;
using kv::StateLink;

namespace {

constexpr int64_t kFirstAskUs = 1'000'000;
constexpr int64_t kMaxAskGapUs = 64'000'000;

// Numbers of parts are 16 bits of an entry; each worker has one, and dropped ones keep theirs until
// they are swept. With that many at once (4 for each of 1024 workers) the sweep is made whole; Find
// clears a counter for each.
constexpr size_t kMaxParts = 1 << 12;

// Links ahead of the one being looked at whose slots are fetched: a fetch takes about as long as
// ten steps of the loop.
constexpr size_t kPrefetch = 10;

// Slots looked at when an insertion finds no free entry but stale ones: some of them are near.
constexpr size_t kForcedSweepSlots = 4096;

// The first table. A table of the largest size from the start would be touched all over by few
// entries, since hashes scatter them: 1,152 blocks took 4.4 MiB of memory.
constexpr size_t kMinSlots = 64;

// A quarter of the slots stays empty, so that runs are short and a search ends.
constexpr size_t MaxEntriesOf(size_t num_slots) { return num_slots / 4 * 3; }

}  // namespace

void RouterPrefixIndex::FreeSlots::operator()(uint64_t* slots) const { std::free(slots); }

RouterPrefixIndex::RouterPrefixIndex(uint32_t max_entries) : max_entries_(max_entries) {
  BATON_CHECK(max_entries >= 1, "a prefix index of no entries");
  BATON_CHECK(TryAllocate(kMinSlots), "no memory for a prefix index of {} slots", kMinSlots);
  parts_.resize(1);
}

// False: there is no memory, and nothing has changed.
bool RouterPrefixIndex::TryAllocate(size_t num_slots) {
  Slots slots(static_cast<uint64_t*>(std::calloc(num_slots, sizeof(uint64_t))));
  if (slots == nullptr) return false;
  slots_ = std::move(slots);
  mask_ = num_slots - 1;
  home_shift_ = 64 - static_cast<uint32_t>(std::countr_zero(num_slots));
  return true;
}

// Moves all entries that are not stale to a table of twice as many slots. The slots of both tables
// are in the order of the entries' homes, so memory is written from front to back. Both tables are
// there meanwhile: 48 MiB in the last doubling. False: there is no memory, and nothing has changed.
bool RouterPrefixIndex::TryDouble() {
  Slots old = std::move(slots_);
  const size_t num_old = mask_ + 1;
  if (!TryAllocate(2 * num_old)) {
    slots_ = std::move(old);
    return false;
  }
  for (size_t i = 0; i < num_old; ++i) {
    if (old[i] == 0) continue;
    Part& part = parts_[PartOf(old[i])];
    if (part.worker == LeaseId(0)) {
      --part.size;
    } else {
      slots_[FindSlot(old[i])] = old[i];
    }
  }
  num_used_ -= std::exchange(num_stale_, 0);
  sweep_slot_ = 0;
  return true;
}

void RouterPrefixIndex::AddWorker(LeaseId worker, int64_t now_us) {
  const auto [it, is_new] = workers_.try_emplace(worker);
  BATON_CHECK(is_new, "lease {} is in the prefix index", worker.value());
  it->second.part = NewPart(worker);
  // It says by itself what it holds, and is asked only when it does not.
  it->second.ask_at_us = now_us + kFirstAskUs;
  const size_t limit = share();
  for (auto& [lease, tracked] : workers_) {
    if (parts_[tracked.part].size > limit) Unsync(tracked, now_us);
  }
}

void RouterPrefixIndex::RemoveWorker(LeaseId worker) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return;
  DropPart(it->second);
  workers_.erase(it);
}

PrefixOutcome RouterPrefixIndex::Apply(LeaseId worker, const PrefixBatch& batch, int64_t now_us) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return PrefixOutcome::kNoWorker;
  Tracked& tracked = it->second;
  size_t first = 0;  // of batch.changes, that is new
  if (batch.reset) {
    if (parts_[tracked.part].size > 0) {
      DropPart(tracked);
      tracked.part = NewPart(worker);
    }
    tracked.synced = true;
  } else if (!tracked.synced) {
    return PrefixOutcome::kUnsynced;
  } else {
    // The difference wraps like the numbers themselves.
    const auto ahead = static_cast<int64_t>(batch.first_sequence - tracked.next_sequence);
    if (ahead > 0) {
      Unsync(tracked, now_us);
      return PrefixOutcome::kGap;
    }
    first = -static_cast<uint64_t>(ahead);
    if (first >= batch.changes.size() && first > 0) return PrefixOutcome::kDuplicate;
  }
  tracked.next_sequence = batch.first_sequence + batch.changes.size();
  for (size_t i = first; i < batch.changes.size(); ++i) Change(tracked, batch.changes[i]);
  return PrefixOutcome::kApplied;
}

void RouterPrefixIndex::Change(Tracked& tracked, const PrefixChange& change) {
  const uint64_t entry = TagOf(change.link) << 16 | tracked.part;
  if (!change.added) return Erase(entry);
  if (parts_[tracked.part].size >= share() || !Insert(entry)) ++num_not_kept_;
}

// Forgets what is known and asks for it: at once when it was in order for long.
void RouterPrefixIndex::Unsync(Tracked& tracked, int64_t now_us) {
  const LeaseId worker = parts_[tracked.part].worker;
  DropPart(tracked);
  tracked.part = NewPart(worker);
  tracked.synced = false;
  const int64_t quiet_us = now_us - tracked.asked_us;
  const bool is_calm = tracked.ask_gap_us == 0 || quiet_us >= 2 * tracked.ask_gap_us;
  if (is_calm) tracked.ask_gap_us = 0;
  tracked.ask_at_us = is_calm ? now_us : tracked.asked_us + tracked.ask_gap_us;
}

std::vector<LeaseId> RouterPrefixIndex::TakeDueResyncs(int64_t now_us) {
  std::vector<LeaseId> due;
  for (auto& [lease, tracked] : workers_) {
    if (tracked.synced || now_us < tracked.ask_at_us) continue;
    due.push_back(lease);
    const int64_t gap_us = std::max(kFirstAskUs, 2 * tracked.ask_gap_us);
    tracked.ask_gap_us = std::min(gap_us, kMaxAskGapUs);
    tracked.asked_us = now_us;
    tracked.ask_at_us = now_us + tracked.ask_gap_us;
  }
  return due;
}

// A part's length grows only with the link that follows its last one, so a part that misses a link
// stops there. Equal tags of one part change nothing: its length is past the link by then.
std::vector<RouterPrefixIndex::Hit> RouterPrefixIndex::Find(std::span<const ChainLink> links,
                                                            bool has_states) const {
  lengths_.assign(parts_.size(), 0);
  for (uint32_t i = 0; i < links.size(); ++i) {
    if (i + kPrefetch < links.size()) {
      __builtin_prefetch(&slots_[HomeOf(TagOf(links[i + kPrefetch]) << 16)]);
    }
    const uint64_t tag = TagOf(links[i]);
    bool any = false;
    for (size_t slot = HomeOf(tag << 16); slots_[slot] != 0; slot = Next(slot)) {
      if (slots_[slot] >> 16 != tag) continue;
      uint32_t& length = lengths_[PartOf(slots_[slot])];
      if (length != i) continue;
      length = i + 1;
      any = true;
    }
    if (!any) break;
  }
  if (has_states) FindStates(links);
  const std::vector<uint32_t>& wholes = has_states ? wholes_ : lengths_;
  std::vector<Hit> hits;
  for (const auto& [lease, tracked] : workers_) {
    const uint16_t part = tracked.part;
    if (lengths_[part] > 0) hits.push_back({lease, lengths_[part], wholes[part]});
  }
  return hits;
}

void RouterPrefixIndex::FindStates(std::span<const ChainLink> links) const {
  wholes_.assign(lengths_.size(), 0);
  const uint32_t longest = *std::max_element(lengths_.begin(), lengths_.end());
  for (uint32_t i = 0; i < longest; ++i) {
    const uint64_t tag = TagOf(StateLink(links[i]));
    for (size_t slot = HomeOf(tag << 16); slots_[slot] != 0; slot = Next(slot)) {
      if (slots_[slot] >> 16 != tag) continue;
      const uint16_t part = PartOf(slots_[slot]);
      if (i < lengths_[part]) wholes_[part] = i + 1;
    }
  }
}

// The slot of the entry, or the empty one where it would stand.
size_t RouterPrefixIndex::FindSlot(uint64_t entry) const {
  size_t slot = HomeOf(entry);
  while (slots_[slot] != 0 && slots_[slot] != entry) slot = Next(slot);
  return slot;
}

// False: no room. True also when it was there.
bool RouterPrefixIndex::Insert(uint64_t entry) {
  // Stale entries hold the room that live ones may have; one round frees all of them.
  for (size_t seen = 0; num_used_ >= max_entries_ && num_stale_ > 0 && seen <= 2 * mask_;
       seen += kForcedSweepSlots) {
    Sweep(kForcedSweepSlots);
  }
  size_t slot = FindSlot(entry);
  if (slots_[slot] == entry) return true;
  if (num_used_ >= max_entries_) return false;
  if (num_used_ >= MaxEntriesOf(mask_ + 1)) {
    if (!TryDouble()) return false;
    slot = FindSlot(entry);
  }
  slots_[slot] = entry;
  ++num_used_;
  ++parts_[PartOf(entry)].size;
  return true;
}

void RouterPrefixIndex::Erase(uint64_t entry) {
  const size_t slot = FindSlot(entry);
  if (slots_[slot] == entry) EraseAt(slot);
}

// Closes the hole with a later entry whose home does not lie after the hole, and so on until a
// run's end. This is algorithm R of Knuth, The Art of Computer Programming 3, 6.4.
void RouterPrefixIndex::EraseAt(size_t slot) {
  Part& part = parts_[PartOf(slots_[slot])];
  --part.size;
  --num_used_;
  if (part.worker == LeaseId(0)) --num_stale_;
  size_t hole = slot;
  for (size_t at = Next(hole); slots_[at] != 0; at = Next(at)) {
    const size_t from_home = (at - HomeOf(slots_[at])) & mask_;
    const size_t from_hole = (at - hole) & mask_;
    if (from_home < from_hole) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = 0;
}

uint16_t RouterPrefixIndex::NewPart(LeaseId worker) {
  const auto find_free = [this] {
    for (size_t i = 1; i < parts_.size(); ++i) {
      if (parts_[i].worker == LeaseId(0) && parts_[i].size == 0) return i;
    }
    return parts_.size();
  };
  size_t number = find_free();
  if (number == kMaxParts) {
    while (num_stale_ > 0) Sweep(kForcedSweepSlots);
    number = find_free();
  }
  BATON_CHECK(number < kMaxParts, "{} workers are in the prefix index", workers_.size());
  if (number == parts_.size()) parts_.emplace_back();
  parts_[number].worker = worker;
  return static_cast<uint16_t>(number);
}

void RouterPrefixIndex::DropPart(Tracked& tracked) {
  Part& part = parts_[tracked.part];
  part.worker = LeaseId(0);
  num_stale_ += part.size;
  tracked.part = 0;
}

void RouterPrefixIndex::Sweep(size_t num_slots) {
  for (size_t i = 0; i < num_slots && num_stale_ > 0; ++i) {
    const uint64_t entry = slots_[sweep_slot_];
    if (entry != 0 && parts_[PartOf(entry)].worker == LeaseId(0)) {
      EraseAt(sweep_slot_);  // another entry may stand here now: looked at again
    } else {
      sweep_slot_ = Next(sweep_slot_);
    }
  }
}

size_t RouterPrefixIndex::num_links(LeaseId worker) const {
  const auto it = workers_.find(worker);
  return it == workers_.end() ? 0 : parts_[it->second.part].size;
}

size_t RouterPrefixIndex::share() const {
  return std::max<size_t>(max_entries_ / std::max<size_t>(workers_.size(), 1), 1);
}

size_t RouterPrefixIndex::memory_bytes() const {
  return (mask_ + 1) * sizeof(uint64_t) + parts_.capacity() * sizeof(Part) +
         lengths_.capacity() * sizeof(uint32_t) +
         workers_.size() * (sizeof(LeaseId) + sizeof(Tracked) + 4 * sizeof(void*));
}

}  // namespace baton::router
