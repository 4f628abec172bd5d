// The products of warpgroups. A wgmma is asked for by all 128 threads at one line and happens on
// its own, in order with the others of its warpgroup, between that call and the wait that covers
// it: it reads its tiles as an actor of its own (clock.h), and the sums it adds to are NaNs until
// then, which the wait finds untouched or says so.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/simt/mutant.h"
#include "kernels/simt/run_state.h"
#include "kernels/simt/tensor_core.h"
#include "src/base/status.h"

namespace baton::simt {
inline namespace runner {
namespace {

constexpr uint32_t kRowsA = 64;
constexpr uint32_t kStepColumns = kTensorCoreProducts;
constexpr size_t kRowBytes = kTileColumns * sizeof(Bf16);
constexpr size_t kStepBytes = kStepColumns * sizeof(Bf16);
constexpr uint32_t kPoison = 0x7FC0DEAD;
// Shared memory of a cta does not begin at 0: an address of 0 is nobody's.
constexpr uint32_t kSharedBegin = 1024;

Warpgroup& WarpgroupOf(RunState& run) {
  SimThread& self = run.self();
  return self.cta->warpgroups[self.index / kWarpgroupSize];
}

void Poison(FragmentC* sums, size_t count) {
  const auto nan = std::bit_cast<float>(kPoison);
  for (size_t j = 0; j < count; ++j) sums[j] = {{nan, nan, nan, nan}};
}

void CheckPoison(RunState& run, const SumsInFlight& sums, Site site) {
  for (size_t j = 0; j < sums.values.size(); ++j) {
    for (const float value : sums.place[j].values) {
      if (std::bit_cast<uint32_t>(value) == kPoison) continue;
      run.Misuse(site,
                 "the thread wrote its sums before it waited for the wgmma that adds to them");
    }
  }
}

// 16 bf16 of each row of a tile, from the first column of a step on: the chunk's place is the
// address's, as on the GPU.
void ReadRows(const std::byte* from, uint32_t num_rows, Bf16 (*to)[kStepColumns]) {
  for (uint32_t row = 0; row < num_rows; ++row) {
    for (size_t half = 0; half < 2; ++half) {
      const auto address = reinterpret_cast<uintptr_t>(from + row * kRowBytes + 16 * half);
      const size_t swizzled = (address ^ (address >> 3 & 0x70)) - address;
      std::memcpy(&to[row][8 * half], from + row * kRowBytes + 16 * half + swizzled, 16);
    }
  }
}

bool IsZero(const Bf16* values) {
  for (uint32_t k = 0; k < kStepColumns; ++k) {
    if ((values[k].bits & 0x7FFF) != 0) return false;
  }
  return true;
}

bool IsFinite(const Bf16* values) {
  for (uint32_t k = 0; k < kStepColumns; ++k) {
    if ((values[k].bits & 0x7F80) == 0x7F80) return false;
  }
  return true;
}

// The tiles of one product.
struct Operands {
  Bf16 a[kRowsA][kStepColumns];
  Bf16 b[kMaxTileRows][kStepColumns];
  bool is_zero[kRowsA];  // a row of a that gives 0 with every finite column
  bool is_finite[kMaxTileRows];
};

void Multiply(const Operands& operands, const PendingProduct& product, bool is_exact,
              uint32_t thread, std::vector<FragmentC>& sums) {
  for (uint32_t j = 0; j < product.num_columns / 8; ++j) {
    for (uint32_t v = 0; v < 4; ++v) {
      const uint32_t row = thread / kWarpSize * 16 + thread % kWarpSize / 4 + v / 2 * 8;
      const uint32_t column = 8 * j + thread % 4 * 2 + v % 2;
      float& sum = sums[j].values[v];
      if (!product.adds) sum = 0.0f;
      // What tiles hold beyond their matrix costs no time.
      if (sum == 0.0f && operands.is_zero[row] && operands.is_finite[column]) {
        sum = 0.0f;
      } else {
        sum = is_exact ? HopperDotBf16(operands.a[row], operands.b[column], sum)
                       : FloatDotBf16(operands.a[row], operands.b[column], sum);
      }
    }
  }
}

SumsInFlight& FlightOf(SimThread& thread, const FragmentC* place) {
  for (SumsInFlight& sums : thread.sums) {
    if (sums.place == place) return sums;
  }
  return thread.sums.emplace_back();
}

// The oldest product of the warpgroup happens.
void Happen(RunState& run, Warpgroup& warpgroup, uint32_t first_thread) {
  const PendingProduct product = std::move(warpgroup.products.front());
  warpgroup.products.pop_front();
  Operands operands;
  ReadRows(product.a, kRowsA, operands.a);
  ReadRows(product.b, product.num_columns, operands.b);
  for (uint32_t i = 0; i < kRowsA; ++i) operands.is_zero[i] = IsZero(operands.a[i]);
  for (uint32_t i = 0; i < product.num_columns; ++i) {
    operands.is_finite[i] = IsFinite(operands.b[i]);
  }
  const bool is_exact = run.options().tensor_math == TensorMath::kHopperBits;
  ++run.stats().num_wgmma;
  for (uint32_t i = 0; i < kWarpgroupSize; ++i) {
    SimThread& thread = *run.self().cta->threads[first_thread + i];
    Multiply(operands, product, is_exact, i, FlightOf(thread, product.places[i]).values);
  }
}

// Where a tile lies of which only one step is read; checks all that a descriptor says.
const std::byte* TileAt(RunState& run, TileDescriptor tile, uint32_t num_rows, Site site) {
  const auto address = static_cast<uint32_t>(tile.bits & 0x3FFF) << 4;
  const uint32_t in_row = address % kRowBytes;
  const TileDescriptor expected = DescribeTile(address);
  if (tile.bits != expected.bits) {
    run.Misuse(site, "wgmma: not a descriptor of a tile swizzled in spans of 128 bytes");
  }
  if (in_row % kStepBytes != 0 || (address - in_row) % kTileAlignment != 0) {
    run.Misuse(site,
               fmt::format("wgmma: a tile at {} of shared memory is not aligned to 1024, or a "
                           "step beyond its 64 columns",
                           address - kSharedBegin));
  }
  const size_t end = address - in_row + num_rows * kRowBytes;
  if (address < kSharedBegin || end > kSharedBegin + run.config().shared_bytes) {
    run.Misuse(site, "wgmma: a tile is not in shared memory");
  }
  return run.self().cta->shared + (address - kSharedBegin);
}

// As whom a product reads: its warpgroup's slot, and what all of its threads know.
struct Reader {
  Epoch epoch;
  Clock known;
  Site site;
};

// Checks and records the reads of one operand.
void TouchTile(RunState& run, const std::byte* tile, uint32_t num_rows, const Reader& reader) {
  const Cta& cta = *run.self().cta;
  const uint32_t num_generic = 2 * run.config().num_threads;  // slots of threads, their copies
  for (uint32_t row = 0; row < num_rows; ++row) {
    for (size_t half = 0; half < 2; ++half) {
      const auto address = reinterpret_cast<uintptr_t>(tile + row * kRowBytes + 16 * half);
      const size_t swizzled = (address ^ (address >> 3 & 0x70)) - address;
      const std::byte* chunk = tile + row * kRowBytes + 16 * half + swizzled;
      run.CheckRace({chunk, 16, false, __builtin_return_address(0)}, reader.epoch, reader.known);
      const Epoch write = run.LastWrite(chunk);
      if (write.IsSet() && write.slot() < num_generic && !cta.fenced.Knows(write)) {
        run.Misuse(reader.site,
                   fmt::format("wgmma reads what thread {} wrote, and no fence_proxy_async "
                               "came between",
                               write.slot() % run.config().num_threads));
      }
    }
  }
}

void TouchTiles(RunState& run, const Warpgroup& warpgroup, const PendingProduct& product,
                Site site) {
  if (!run.options().detect_races) return;
  const SimThread& self = run.self();
  Reader reader = {{}, self.clock, site};
  for (const SimThread* thread : warpgroup.met) reader.known.Meet(thread->clock);
  const uint32_t slot = FirstWarpgroupSlot(run.config().num_threads) + self.index / kWarpgroupSize;
  reader.epoch = Epoch::Of(self.cta->id, slot, product.group, false);
  TouchTile(run, product.a, kRowsA, reader);
  TouchTile(run, product.b, product.num_columns, reader);
}

// The thread's part in a product: its sums go on their way.
void TakeSums(RunState& run, SimThread& thread, const calls::TileProduct& product, Site site) {
  SumsInFlight& sums = FlightOf(thread, product.sums);
  const size_t count = product.num_columns / 8;
  if (sums.place == nullptr) {
    if (!thread.has_fenced_sums) {
      run.Misuse(site, "wgmma_fence is missing between what the thread did to its sums and wgmma");
    }
    sums.place = product.sums;
    sums.values.assign(product.sums, product.sums + count);
    Poison(product.sums, count);
  } else {
    CheckPoison(run, sums, site);
  }
  sums.last_group = thread.num_product_commits + 1;
}

// Waits for all threads of the warpgroup. True for the last one, which goes on for all; the others
// are still to be made ready.
bool MeetWarpgroup(RunState& run, Warpgroup& warpgroup, Site site) {
  SimThread& self = run.self();
  if (!warpgroup.met.empty() && warpgroup.met.front()->site.line != site.line) {
    run.Misuse(
        site, fmt::format("thread {} meets thread {}, which waits in the wgmma at {}", self.index,
                          warpgroup.met.front()->index, DescribeSite(warpgroup.met.front()->site)));
  }
  warpgroup.met.push_back(&self);
  if (warpgroup.met.size() == kWarpgroupSize) return true;
  run.Block(Waiting::kWarpgroup, site);
  return false;
}

bool SameOperands(const calls::TileProduct& a, const calls::TileProduct& b) {
  return a.num_columns == b.num_columns && a.a.bits == b.a.bits && a.b.bits == b.b.bits &&
         a.adds == b.adds;
}

}  // namespace

TileDescriptor calls::DescribeTileAt(const void* tile, Site site) {
  RunState& run = *RunState::Current();
  const auto offset =
      static_cast<size_t>(static_cast<const std::byte*>(tile) - run.self().cta->shared);
  if (offset >= run.config().shared_bytes) run.Misuse(site, "a tile is not in shared memory");
  if (reinterpret_cast<uintptr_t>(run.self().cta->shared) % kTileAlignment != 0) {
    run.Misuse(site, "shared memory with tiles is asked for in multiples of 1024 bytes");
  }
  return DescribeTile(kSharedBegin + static_cast<uint32_t>(offset));
}

void calls::FenceProxyAsync(Site site) {
  if (Mutated(site, Mutation::kDropFence)) return;
  RunState& run = *RunState::Current();
  run.Release(run.self(), run.self().cta->fenced);
}

void calls::FenceProducts(Site site) {
  if (Mutated(site, Mutation::kDropFence)) return;
  RunState::Current()->self().has_fenced_sums = true;
}

void calls::StartProduct(const TileProduct& product, Site site) {
  RunState& run = *RunState::Current();
  SimThread& self = run.self();
  const uint32_t first_thread = self.index / kWarpgroupSize * kWarpgroupSize;
  if (first_thread + kWarpgroupSize > run.config().num_threads) {
    run.Misuse(site, "wgmma needs a warpgroup: 128 threads, the first a multiple of 128");
  }
  self.in = &product;
  Warpgroup& warpgroup = WarpgroupOf(run);
  if (!MeetWarpgroup(run, warpgroup, site)) return;
  const bool is_dropped = Mutated(site, Mutation::kDropProduct);
  PendingProduct pending{self.num_product_commits + 1,
                         product.num_columns,
                         TileAt(run, product.a, kRowsA, site),
                         TileAt(run, product.b, product.num_columns, site),
                         product.adds,
                         std::vector<FragmentC*>(kWarpgroupSize)};
  std::vector<SimThread*> others;
  for (SimThread* thread : warpgroup.met) {
    const auto& own = *static_cast<const TileProduct*>(thread->in);
    if (!SameOperands(own, product) || thread->num_product_commits + 1 != pending.group) {
      run.Misuse(site, "the threads of a warpgroup ask for different products");
    }
    if (!is_dropped) TakeSums(run, *thread, own, site);
    pending.places[thread->index - first_thread] = own.sums;
    if (thread != &self) others.push_back(thread);
  }
  if (!is_dropped) {
    TouchTiles(run, warpgroup, pending, site);
    warpgroup.products.push_back(std::move(pending));
    while (!warpgroup.products.empty() && run.LandsNow()) Happen(run, warpgroup, first_thread);
  }
  warpgroup.met.clear();
  run.NoteProgress();
  run.MakeReadyInOrder(std::move(others));
  run.MaybePreempt();
}

void calls::CommitProducts(Site site) {
  if (Mutated(site, Mutation::kDropCommit)) return;
  ++RunState::Current()->self().num_product_commits;
}

void calls::WaitProducts(uint32_t max_pending, Site site) {
  RunState& run = *RunState::Current();
  SimThread& self = run.self();
  if (Mutated(site, Mutation::kWaitForFewer)) ++max_pending;
  if (self.num_product_commits <= max_pending) return;
  const uint32_t done = self.num_product_commits - max_pending;
  Warpgroup& warpgroup = WarpgroupOf(run);
  while (!warpgroup.products.empty() && warpgroup.products.front().group <= done) {
    Happen(run, warpgroup, self.index / kWarpgroupSize * kWarpgroupSize);
  }
  std::erase_if(self.sums, [&](SumsInFlight& sums) {
    if (sums.last_group > done) return false;
    CheckPoison(run, sums, site);
    std::copy(sums.values.begin(), sums.values.end(), sums.place);
    self.has_fenced_sums = false;
    return true;
  });
  if (run.options().detect_races) {
    self.clock.Raise(FirstWarpgroupSlot(run.config().num_threads) + self.index / kWarpgroupSize,
                     done);
  }
  run.MaybePreempt();
}

}  // namespace runner
}  // namespace baton::simt
