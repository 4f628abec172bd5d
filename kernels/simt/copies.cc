// Asynchronous copies: cp.async groups of one thread, and bulk and tensor copies that arrive on an
// mbarrier.
//
// A copy happens on its own, somewhere between its call and the wait that covers it. To the race
// detector it is an access by a slot of its own (clock.h), which the waiting thread then knows.
#include <algorithm>
#include <cstring>

#include "kernels/simt/mutant.h"
#include "kernels/simt/run_state.h"
#include "kernels/simt/tensor_shape.h"
#include "src/base/status.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

bool Aligned(const void* address, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

// Where the row of a tile lies in its matrix, and how many bytes of it are inside.
Access RowOf(const MatrixTile& tile, uint32_t row, const void* code) {
  const TensorShape& shape = tile.shape;
  const TileCorner& corner = tile.corner;
  if (corner.row + row >= shape.num_rows || corner.column >= shape.row_elements) return {};
  const uint32_t elements = std::min(kTileColumns, shape.row_elements - corner.column);
  return {shape.data + size_t{corner.row + row} * shape.row_elements + corner.column,
          elements * sizeof(Bf16), false, code};
}

// The reads of a copy, none of them empty.
std::vector<Access> SourcesOf(const PendingCopy& copy) {
  if (!copy.tile.has_value()) {
    if (copy.num_valid == 0) return {};
    return {{copy.from, copy.num_valid, false, copy.code}};
  }
  std::vector<Access> rows;
  for (uint32_t row = 0; row < copy.tile->shape.tile_rows; ++row) {
    const Access access = RowOf(*copy.tile, row, copy.code);
    if (access.size > 0) rows.push_back(access);
  }
  return rows;
}

// Checks and records both sides of a copy as accesses of `slot` at `clock`.
void TouchBothSides(RunState& run, const PendingCopy& copy, uint32_t slot, uint32_t clock) {
  const Epoch epoch = Epoch::Of(run.self().cta->id, slot, clock, false);
  const Access write{copy.to, copy.num_bytes, true, copy.code};
  for (const Access& read : SourcesOf(copy)) {
    if (!run.CheckBounds(read)) run.Misuse(copy.site, "a copy's source is not in device memory");
    run.CheckRace(read, epoch);
  }
  const bool on_device = run.CheckBounds(write);
  if (!on_device || !run.arena().Find(copy.to)->is_shared) {
    run.Misuse(copy.site, "a copy's target is not in shared memory");
  }
  run.CheckRace(write, epoch);
}

BarrierState& BarrierAt(const Mbarrier* barrier, Site site) {
  RunState& run = *RunState::Current();
  auto& barriers = run.self().cta->barriers;
  const auto found = barriers.find(barrier);
  if (found == barriers.end()) run.Misuse(site, "no mbarrier was initialised here");
  return found->second;
}

uint32_t SlotOf(const RunState& run, const BarrierState& barrier) {
  return 2 * run.config().num_threads + barrier.index;
}

// Ends the phase when every arrival and every byte is there.
void EndPhaseIfDone(RunState& run, Cta& cta, BarrierState& barrier, const void* address) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.expected;
  barrier.completed = barrier.gathering;
  run.NoteProgress();
  std::vector<SimThread*> waiters;
  for (const auto& thread : cta.threads) {
    if (thread->waiting == Waiting::kMbarrier && thread->in == address) {
      waiters.push_back(thread.get());
    }
  }
  run.MakeReadyInOrder(std::move(waiters));
}

void LandFlight(RunState& run, Cta& cta, BarrierState& barrier, const void* address) {
  const PendingCopy copy = barrier.flights.front();
  barrier.flights.pop_front();
  RunState::Land(copy);
  barrier.bytes -= copy.num_bytes + copy.group;  // group holds the bytes a mutant did not move
  if (run.options().detect_races) {
    VectorClock landed(cta.id, NumSlots(run.config().num_threads));
    landed.Raise(SlotOf(run, barrier), static_cast<uint32_t>(barrier.phase) + 1);
    barrier.gathering.Join(landed);
  }
  EndPhaseIfDone(run, cta, barrier, address);
}

}  // namespace

void calls::CopyAsync16(void* to_shared, const void* from, uint32_t valid_bytes, Site site) {
  RunState& run = *RunState::Current();
  SimThread& self = run.self();
  if (!Aligned(to_shared, 16) || (valid_bytes > 0 && !Aligned(from, 16)) || valid_bytes > 16) {
    run.Misuse(site, fmt::format("cp_async16 of {} bytes from {} to {}: both sides are aligned to "
                                 "16 bytes, and at most 16 are valid",
                                 valid_bytes, from, to_shared));
  }
  const PendingCopy copy{static_cast<std::byte*>(to_shared),
                         static_cast<const std::byte*>(from),
                         valid_bytes,
                         16,
                         self.num_commits + 1,
                         __builtin_return_address(0),
                         site};
  TouchBothSides(run, copy, run.config().num_threads + self.index, copy.group);
  if (Mutated(site, Mutation::kDropCopy)) return;
  PendingCopy kept = copy;
  if (run.LandsNow()) {
    RunState::Land(copy);
    kept.num_bytes = kept.num_valid = 0;  // nothing is left to move; the wait is still owed
  }
  self.copies.push_back(kept);
  run.MaybePreempt();
}

void calls::CommitCopies(Site site) {
  if (Mutated(site, Mutation::kDropCommit)) return;
  ++RunState::Current()->self().num_commits;
}

void calls::WaitCopies(uint32_t max_pending, Site site) {
  RunState& run = *RunState::Current();
  SimThread& self = run.self();
  if (Mutated(site, Mutation::kWaitForFewer)) ++max_pending;
  if (self.num_commits <= max_pending) return;
  const uint32_t landed = self.num_commits - max_pending;
  while (!self.copies.empty() && self.copies.front().group <= landed) {
    RunState::Land(self.copies.front());
    self.copies.pop_front();
  }
  if (run.options().detect_races) {
    self.clock.Raise(run.config().num_threads + self.index, landed);
  }
  run.MaybePreempt();
}

void calls::InitBarrier(Mbarrier* barrier, uint32_t num_arrivals, Site site) {
  RunState& run = *RunState::Current();
  Cta& cta = *run.self().cta;
  constexpr uint32_t kMaxArrivals = (1u << 20) - 1;  // PTX ISA, mbarrier: the count's range
  if (num_arrivals == 0 || num_arrivals > kMaxArrivals || !Aligned(barrier, 8)) {
    run.Misuse(site, fmt::format("mbar_init: {} arrivals, the range is [1, {}]", num_arrivals,
                                 kMaxArrivals));
  }
  run.Touch({barrier, sizeof(Mbarrier), true, __builtin_return_address(0)});
  if (cta.barriers.count(barrier) != 0) run.Misuse(site, "the mbarrier is in use already");
  if (cta.barriers.size() == kMaxMbarriers) {
    run.Misuse(site, fmt::format("more than {} mbarriers in a cta", kMaxMbarriers));
  }
  BarrierState state;
  state.index = static_cast<uint32_t>(cta.barriers.size());
  state.expected = state.pending = num_arrivals;
  state.init = site;
  cta.barriers.emplace(barrier, std::move(state));
}

void calls::FenceBarrierInit(Site site) {
  if (Mutated(site, Mutation::kDropFence)) return;
  for (auto& [address, barrier] : RunState::Current()->self().cta->barriers) {
    barrier.visible_to_copies = true;
  }
}

void calls::ArriveBarrier(Mbarrier* barrier, uint32_t expect_bytes, Site site) {
  RunState& run = *RunState::Current();
  SimThread& self = run.self();
  // To the race detector an arrival only reads: the initialisation must be ordered before it.
  run.Touch({barrier, sizeof(Mbarrier), false, __builtin_return_address(0)}, /*atomic=*/true);
  BarrierState& state = BarrierAt(barrier, site);
  if (Mutated(site, Mutation::kDropArrive)) return;
  if (state.pending == 0) {
    run.Misuse(site, fmt::format("more than the {} arrivals of {}", state.expected,
                                 DescribeSite(state.init)));
  }
  state.bytes += expect_bytes;
  --state.pending;
  run.Release(self, state.gathering);
  EndPhaseIfDone(run, *self.cta, state, barrier);
  run.MaybePreempt();
}

void calls::WaitBarrier(Mbarrier* barrier, uint32_t parity, Site site) {
  RunState& run = *RunState::Current();
  SimThread& self = run.self();
  run.Touch({barrier, sizeof(Mbarrier), false, __builtin_return_address(0)}, /*atomic=*/true);
  BarrierState& state = BarrierAt(barrier, site);
  if (Mutated(site, Mutation::kSkipWait)) return;
  // The phase with this parity is over once the current one has the other parity.
  while ((state.phase & 1) == (parity & 1)) {
    self.in = barrier;
    run.Block(Waiting::kMbarrier, site);
  }
  if (run.options().detect_races) self.clock.Join(state.completed);
  run.MaybePreempt();
}

namespace {

// Sends a copy on its way to arrive on the barrier.
void StartFlight(RunState& run, PendingCopy copy, Mbarrier* barrier) {
  run.Touch({barrier, sizeof(Mbarrier), false, copy.code}, /*atomic=*/true);
  BarrierState& state = BarrierAt(barrier, copy.site);
  if (!state.visible_to_copies) {
    run.Misuse(copy.site,
               "mbar_fence_init was not called after mbar_init of " + DescribeSite(state.init));
  }
  TouchBothSides(run, copy, SlotOf(run, state), static_cast<uint32_t>(state.phase) + 1);
  if (Mutated(copy.site, Mutation::kDropCopy)) {
    copy.group = copy.num_bytes;
    copy.num_valid = copy.num_bytes = 0;
    copy.tile.reset();
  }
  state.flights.push_back(copy);
  if (run.LandsNow()) {
    std::swap(state.flights.front(), state.flights.back());
    LandFlight(run, *run.self().cta, state, barrier);
  }
  run.MaybePreempt();
}

// A TensorMap of the runner: the shape, and a word that says so.
struct RunnerMap {
  TensorShape shape;
  uint64_t mark;
};
constexpr uint64_t kMapMark = 0x6D61702D73696D74;
static_assert(sizeof(RunnerMap) <= sizeof(TensorMap));

}  // namespace

void calls::BulkCopy(void* to_shared, const void* from, uint32_t bytes, Mbarrier* barrier,
                     Site site) {
  RunState& run = *RunState::Current();
  if (!Aligned(to_shared, 16) || !Aligned(from, 16) || bytes % 16 != 0 || bytes == 0) {
    run.Misuse(site, fmt::format("bulk_copy of {} bytes from {} to {}: all are multiples of 16",
                                 bytes, from, to_shared));
  }
  StartFlight(run,
              {static_cast<std::byte*>(to_shared), static_cast<const std::byte*>(from), bytes,
               bytes, 0, __builtin_return_address(0), site},
              barrier);
}

absl::Status calls::MakeTensorMap(const TensorShape& shape, TensorMap* map) {
  if (absl::Status status = CheckTensorShape(shape); !status.ok()) return status;
  const RunnerMap made{shape, kMapMark};
  std::memcpy(map, &made, sizeof(made));
  return absl::OkStatus();
}

void calls::TensorCopy(const TensorTile& tile, void* to_shared, Mbarrier* barrier, Site site) {
  RunState& run = *RunState::Current();
  RunnerMap map;
  std::memcpy(&map, tile.map, sizeof(map));
  if (map.mark != kMapMark || !Aligned(tile.map, alignof(TensorMap))) {
    run.Misuse(site, "no tensor map: make_tensor_map did not make it, or it is not aligned to 64");
  }
  if (!Aligned(to_shared, kTileAlignment)) {
    run.Misuse(site, "tensor_copy: the tile is not aligned to 1024 bytes");
  }
  const uint32_t bytes = map.shape.tile_rows * kTileColumns * uint32_t{sizeof(Bf16)};
  StartFlight(run,
              {static_cast<std::byte*>(to_shared), nullptr, bytes, bytes, 0,
               __builtin_return_address(0), site, MatrixTile{map.shape, tile.corner}},
              barrier);
}

void RunState::LandTile(const PendingCopy& copy) {
  constexpr size_t kRowBytes = kTileColumns * sizeof(Bf16);
  constexpr size_t kChunk = 16;
  for (uint32_t row = 0; row < copy.tile->shape.tile_rows; ++row) {
    std::byte line[kRowBytes] = {};
    const Access from = RowOf(*copy.tile, row, nullptr);
    if (from.size > 0) std::memcpy(line, from.address, from.size);
    for (size_t chunk = 0; chunk < kRowBytes / kChunk; ++chunk) {
      std::memcpy(copy.to + row * kRowBytes + (chunk ^ row % 8) * kChunk, line + chunk * kChunk,
                  kChunk);
    }
  }
}

bool RunState::LandOneFlight() {
  std::vector<std::pair<Cta*, const void*>> in_flight;
  for (const auto& cta : ctas_) {
    for (const auto& [address, barrier] : cta->barriers) {
      if (!barrier.flights.empty()) in_flight.emplace_back(cta.get(), address);
    }
  }
  if (in_flight.empty()) return false;
  const auto& [cta, address] = in_flight[Random() % in_flight.size()];
  LandFlight(*this, *cta, cta->barriers.find(address)->second, address);
  return true;
}

}  // namespace runner
}  // namespace baton::kernels::simt
