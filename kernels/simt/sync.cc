// sync_block and the operations of a warp.
#include <cstring>

#include "fmt/format.h"

#include "kernels/simt/mutant.h"
#include "kernels/simt/run_state.h"
#include "kernels/simt/tensor_core.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

// A shuffle's operand.
struct ShuffleIn {
  uint32_t value;
  uint32_t lane_mask;
};

// An mma's operands.
struct MultiplyIn {
  FragmentA a;
  FragmentB b;
  FragmentC c;
};

// The lanes of a warp by number; null where the mask has none.
using Lanes = SimThread* [kWarpSize];

// Everything that any of the threads knows is then known to all of them.
void JoinAll(RunState& run, const std::vector<SimThread*>& threads) {
  if (!run.options().detect_races) return;
  VectorClock all;
  for (SimThread* thread : threads) run.Release(*thread, all);
  for (SimThread* thread : threads) thread->clock.Join(all);
}

void ShuffleAll(RunState& run, SimThread* const* lanes) {
  for (uint32_t i = 0; i < kWarpSize; ++i) {
    if (lanes[i] == nullptr) continue;
    const auto* own = static_cast<const ShuffleIn*>(lanes[i]->in);
    SimThread* partner = lanes[(i ^ own->lane_mask) % kWarpSize];
    if (partner == nullptr) {
      run.Misuse(lanes[i]->site, fmt::format("lane {} asks lane {}, which is not in its mask", i,
                                             (i ^ own->lane_mask) % kWarpSize));
    }
    *static_cast<uint32_t*>(lanes[i]->out) = static_cast<const ShuffleIn*>(partner->in)->value;
  }
}

// Lane 8m + r gives the address of row r of matrix m; each lane gets its pair of each matrix, or of
// each transposed one.
void LoadAll(RunState& run, SimThread* const* lanes, bool transposed) {
  for (uint32_t i = 0; i < kWarpSize; ++i) {
    if (lanes[i] == nullptr) run.Misuse(run.self().site, "ldmatrix needs all 32 lanes");
  }
  Matrices* result[kWarpSize];
  for (uint32_t i = 0; i < kWarpSize; ++i) result[i] = static_cast<Matrices*>(lanes[i]->out);
  for (uint32_t row = 0; row < kWarpSize; ++row) {
    const auto* from = static_cast<const std::byte*>(lanes[row]->in);
    if (transposed) {
      for (uint32_t column = 0; column < 8; ++column) {
        auto* pair = reinterpret_cast<std::byte*>(&result[column * 4 + row % 8 / 2]->regs[row / 8]);
        std::memcpy(pair + size_t{2} * (row % 2), from + size_t{2} * column, 2);
      }
      continue;
    }
    for (uint32_t pair = 0; pair < 4; ++pair) {
      std::memcpy(&result[row % 8 * 4 + pair]->regs[row / 8], from + size_t{4} * pair, 4);
    }
  }
}

Bf16 HalfOf(uint32_t pair, uint32_t which) {
  return {static_cast<uint16_t>(which == 0 ? pair : pair >> 16)};
}

void MultiplyAll(RunState& run, SimThread* const* lanes) {
  ++run.stats().num_mma;
  Bf16 a[16][16];
  Bf16 b[8][16];  // [n][k]
  for (uint32_t i = 0; i < kWarpSize; ++i) {
    if (lanes[i] == nullptr) run.Misuse(run.self().site, "mma needs all 32 lanes");
    const auto* in = static_cast<const MultiplyIn*>(lanes[i]->in);
    const uint32_t group = i / 4;
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t k = i % 4 * 2 + half;
      for (uint32_t reg = 0; reg < 4; ++reg) {
        a[group + reg % 2 * 8][k + reg / 2 * 8] = HalfOf(in->a.regs[reg], half);
      }
      for (uint32_t reg = 0; reg < 2; ++reg) b[group][k + reg * 8] = HalfOf(in->b.regs[reg], half);
    }
  }
  float c[16][8];
  for (uint32_t i = 0; i < kWarpSize; ++i) {
    const auto* in = static_cast<const MultiplyIn*>(lanes[i]->in);
    for (uint32_t v = 0; v < 4; ++v) c[RowOfValue(i, v)][ColumnOfValue(i, v)] = in->c.values[v];
  }
  MultiplyBf16(run.options().tensor_math, a, b, c);
  for (uint32_t i = 0; i < kWarpSize; ++i) {
    auto* out = static_cast<FragmentC*>(lanes[i]->out);
    for (uint32_t v = 0; v < 4; ++v) out->values[v] = c[RowOfValue(i, v)][ColumnOfValue(i, v)];
  }
}

void Perform(RunState& run, WarpOp op, SimThread* const* lanes) {
  switch (op) {
    case WarpOp::kSync: {
      std::vector<SimThread*> threads;
      for (uint32_t i = 0; i < kWarpSize; ++i) {
        if (lanes[i] != nullptr) threads.push_back(lanes[i]);
      }
      JoinAll(run, threads);
      return;
    }
    case WarpOp::kShuffle:
      ShuffleAll(run, lanes);
      return;
    case WarpOp::kLoadMatrices:
      LoadAll(run, lanes, false);
      return;
    case WarpOp::kLoadTransposed:
      LoadAll(run, lanes, true);
      return;
    case WarpOp::kMultiply:
      MultiplyAll(run, lanes);
      return;
  }
}

// The operands that the calling lane brings to a warp operation, and the place of its result.
struct WarpCall {
  WarpOp op;
  uint32_t mask;
  const void* in;
  void* out;
};

// Waits for all lanes of the mask; the last one performs the operation for all.
void Meet(const WarpCall& call, Site site) {
  RunState& run = *RunState::Current();
  SimThread& self = run.self();
  const uint32_t lane = self.index % kWarpSize;
  if ((call.mask >> lane & 1) == 0) {
    run.Misuse(site, fmt::format("lane {} is not in its own mask {:#010x}", lane, call.mask));
  }
  self.warp_op = call.op;
  self.mask = call.mask;
  self.in = call.in;
  self.out = call.out;
  self.site = site;
  auto& meetings = self.cta->warps[self.index / kWarpSize];
  Rendezvous* here = nullptr;
  for (Rendezvous& meeting : meetings) {
    if (meeting.mask == call.mask) here = &meeting;
  }
  if (here == nullptr) here = &meetings.emplace_back(Rendezvous{call.mask, 0, &self});
  if (here->first->warp_op != call.op || here->first->site.line != site.line) {
    run.Misuse(site, fmt::format("lane {} meets lane {}, which waits at {}", lane,
                                 here->first->index % kWarpSize, DescribeSite(here->first->site)));
  }
  here->arrived |= 1u << lane;
  if (here->arrived != call.mask) {
    run.Block(Waiting::kWarp, site);
    return;
  }
  meetings.erase(meetings.begin() + (here - meetings.data()));
  const uint32_t base = self.index - lane;
  Lanes lanes = {};
  std::vector<SimThread*> others;
  for (uint32_t i = 0; i < kWarpSize; ++i) {
    if ((call.mask >> i & 1) == 0) continue;
    lanes[i] = self.cta->threads[base + i].get();
    if (i != lane) others.push_back(lanes[i]);
  }
  Perform(run, call.op, lanes);
  run.NoteProgress();
  run.MakeReadyInOrder(std::move(others));
  run.MaybePreempt();
}

// A ragged last warp has fewer lanes: the full mask means those that exist.
uint32_t LanesThatExist(const RunState& run, uint32_t thread, uint32_t mask) {
  const uint32_t left = run.config().num_threads - thread / kWarpSize * kWarpSize;
  return mask == kFullMask && left < kWarpSize ? (1u << left) - 1 : mask;
}

}  // namespace

uint32_t calls::Thread() { return RunState::Current()->self().index; }
uint32_t calls::NumThreads() { return RunState::Current()->config().num_threads; }
Dim3 calls::Block() { return RunState::Current()->self().cta->position; }
Dim3 calls::Grid() { return RunState::Current()->config().grid; }

void* calls::Shared(size_t bytes, Site site) {
  RunState& run = *RunState::Current();
  if (bytes > run.config().shared_bytes) {
    run.Misuse(site, fmt::format("{} bytes of shared memory are used, {} were asked for", bytes,
                                 run.config().shared_bytes));
  }
  return run.self().cta->shared;
}

void calls::SyncBlock(Site site) {
  if (Mutated(site, Mutation::kDropSyncBlock)) return;
  RunState& run = *RunState::Current();
  Cta& cta = *run.self().cta;
  if (cta.num_at_sync == 0) {
    cta.first_at_sync = &run.self();
  } else if (cta.first_at_sync->site.line != site.line) {
    run.Misuse(site, fmt::format("thread {} waits at another sync_block, {}",
                                 cta.first_at_sync->index, DescribeSite(cta.first_at_sync->site)));
  }
  if (++cta.num_at_sync < run.config().num_threads) {
    run.Block(Waiting::kSyncBlock, site);
    return;
  }
  cta.num_at_sync = 0;
  std::vector<SimThread*> all;
  std::vector<SimThread*> others;
  for (const auto& thread : cta.threads) {
    all.push_back(thread.get());
    if (thread.get() != &run.self()) others.push_back(thread.get());
  }
  JoinAll(run, all);
  run.NoteProgress();
  run.MakeReadyInOrder(std::move(others));
  run.MaybePreempt();
}

void calls::SyncWarp(uint32_t mask, Site site) {
  if (Mutated(site, Mutation::kDropSyncWarp)) return;
  RunState& run = *RunState::Current();
  Meet({WarpOp::kSync, LanesThatExist(run, run.self().index, mask), nullptr, nullptr}, site);
}

void calls::Prefetch(const void* address, Site site) {
  RunState& run = *RunState::Current();
  const ArenaBuffer* const buffer =
      run.arena().Contains(address) ? run.arena().Find(address) : nullptr;
  const auto* const begin = static_cast<const std::byte*>(address);
  if (buffer != nullptr && begin >= buffer->begin && begin < buffer->begin + buffer->size) return;
  run.Misuse(site, "no buffer is at the address to prefetch");
}

void calls::WaitForPrevious(Site site) {
  if (Mutated(site, Mutation::kSkipWait)) return;
  RunState::Current()->self().has_waited = true;
}

uint32_t calls::ShuffleXor(uint32_t value, uint32_t lane_mask, uint32_t mask, Site site) {
  const ShuffleIn in{value, lane_mask};
  uint32_t out = 0;
  const uint32_t lanes =
      LanesThatExist(*RunState::Current(), RunState::Current()->self().index, mask);
  Meet({WarpOp::kShuffle, lanes, &in, &out}, site);
  return Mutated(site, Mutation::kDropShuffle) ? value : out;
}

Matrices calls::LoadMatrices(const void* row, bool transposed, Site site) {
  RunState& run = *RunState::Current();
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    run.Misuse(site, "the row of a matrix is not aligned to 16 bytes");
  }
  const Access access{row, 16, false, __builtin_return_address(0)};
  run.Touch(access);
  const ArenaBuffer* buffer = run.arena().Contains(row) ? run.arena().Find(row) : nullptr;
  if (buffer == nullptr || !buffer->is_shared) {
    run.Misuse(site, "the row of a matrix is not in shared memory");
  }
  Matrices out = {};
  const WarpOp op = transposed ? WarpOp::kLoadTransposed : WarpOp::kLoadMatrices;
  Meet({op, kFullMask, row, &out}, site);
  return out;
}

FragmentC calls::MultiplyBf16(const FragmentA& a, const FragmentB& b, const FragmentC& c,
                              Site site) {
  const MultiplyIn in{a, b, c};
  FragmentC out = {};
  Meet({WarpOp::kMultiply, kFullMask, &in, &out}, site);
  return out;
}

}  // namespace runner
}  // namespace baton::kernels::simt
