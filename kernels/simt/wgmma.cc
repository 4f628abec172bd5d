// The products of warpgroups. All 128 threads ask for a wgmma at one line. It happens on its own,
// in order with the others of its warpgroup, between that call and the wait that covers it. It
// reads its tiles as an actor of its own (clock.h). The sums that it adds to are NaNs until then:
// the wait finds them untouched or reports a misuse.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "fmt/format.h"

#include "kernels/simt/mutant.h"
#include "kernels/simt/run_state.h"
#include "kernels/simt/tensor_core.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

constexpr uint32_t kRowsA = 64;
constexpr uint32_t kStepColumns = kTensorCoreProducts;
constexpr size_t kRowBytes = kTileColumns * sizeof(Bf16);
constexpr size_t kStepBytes = kStepColumns * sizeof(Bf16);
constexpr size_t kChunkBytes = 16;
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

// Where a chunk of a tile lies that would lie here in plain order: the swizzle is of the address,
// as on the GPU.
const std::byte* ChunkAt(const std::byte* plain) {
  const auto address = reinterpret_cast<uintptr_t>(plain);
  return plain + ((address ^ (address >> 3 & 0x70)) - address);
}

// 16 bf16 of each row of a tile, from the first column of a step on.
void ReadRows(const std::byte* from, uint32_t num_rows, Bf16 (*to)[kStepColumns]) {
  for (uint32_t row = 0; row < num_rows; ++row) {
    for (size_t half = 0; half < 2; ++half) {
      const std::byte* chunk = ChunkAt(from + row * kRowBytes + kChunkBytes * half);
      std::memcpy(&to[row][8 * half], chunk, kChunkBytes);
    }
  }
}

// Sixteen rows of tiles of columns, from the first row of a step on: to[column][row].
void ReadColumns(const PendingProduct& product, Bf16 (*to)[kStepColumns]) {
  for (uint32_t column = 0; column < product.num_columns; column += 8) {
    const std::byte* tile = product.b + column / kTileColumns * product.b_tile_bytes;
    for (uint32_t row = 0; row < kStepColumns; ++row) {
      Bf16 values[8];
      const size_t in_row = column % kTileColumns * sizeof(Bf16);
      std::memcpy(values, ChunkAt(tile + row * kRowBytes + in_row), kChunkBytes);
      for (uint32_t i = 0; i < 8; ++i) to[column + i][row] = values[i];
    }
  }
}

// The rows of a that the threads have (FragmentA).
void ReadFragments(const std::vector<FragmentA>& fragments, Bf16 (*to)[kStepColumns]) {
  for (uint32_t thread = 0; thread < kWarpgroupSize; ++thread) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = thread / kWarpSize * 16 + thread % kWarpSize / 4 + i % 2 * 8;
      const uint32_t column = thread % 4 * 2 + i / 2 * 8;
      const uint32_t pair = fragments[thread].regs[i];
      to[row][column] = {static_cast<uint16_t>(pair)};
      to[row][column + 1] = {static_cast<uint16_t>(pair >> 16)};
    }
  }
}

// The tiles of one product.
struct Operands {
  Bf16 a[kRowsA][kStepColumns];
  Bf16 b[kMaxTileRows][kStepColumns];
};

// A tile of a warp after another, with the sums of each thread of the warpgroup.
void Multiply(const Operands& operands, const PendingProduct& product, TensorMath math,
              const std::array<FragmentC*, kWarpgroupSize>& sums) {
  for (uint32_t first = 0; first < kWarpgroupSize; first += kWarpSize) {
    const auto* rows = &operands.a[first / kWarpSize * 16];
    for (uint32_t j = 0; j < product.num_columns / 8; ++j) {
      float c[16][8] = {};
      const auto value_of = [&c](uint32_t lane, uint32_t v) -> float& {
        return c[RowOfValue(lane, v)][ColumnOfValue(lane, v)];
      };
      for (uint32_t i = 0; product.adds && i < kWarpSize; ++i) {
        for (uint32_t v = 0; v < 4; ++v) value_of(i, v) = sums[first + i][j].values[v];
      }
      MultiplyBf16(math, rows, &operands.b[size_t{8} * j], c);
      for (uint32_t i = 0; i < kWarpSize; ++i) {
        for (uint32_t v = 0; v < 4; ++v) sums[first + i][j].values[v] = value_of(i, v);
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
  if (product.a != nullptr) {
    ReadRows(product.a, kRowsA, operands.a);
  } else {
    ReadFragments(product.own_a, operands.a);
  }
  if (product.b_tile_bytes == 0) {
    ReadRows(product.b, product.num_columns, operands.b);
  } else {
    ReadColumns(product, operands.b);
  }
  std::array<FragmentC*, kWarpgroupSize> sums;
  for (uint32_t i = 0; i < kWarpgroupSize; ++i) {
    SimThread& thread = *run.self().cta->threads[first_thread + i];
    sums[i] = FlightOf(thread, product.places[i]).values.data();
  }
  ++run.stats().num_wgmma;
  Multiply(operands, product, run.options().tensor_math, sums);
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

// Where tiles of columns lie of which only one step is read; checks all that a descriptor says.
const std::byte* ColumnsAt(RunState& run, ColumnsDescriptor columns, uint32_t num_columns,
                           Site site) {
  const auto address = static_cast<uint32_t>(columns.bits & 0x3FFF) << 4;
  const auto tile_bytes = static_cast<uint32_t>(columns.bits >> 16 & 0x3FFF) << 4;
  if (columns.bits != DescribeColumns(address, tile_bytes).bits) {
    run.Misuse(site, "wgmma: not a descriptor of columns swizzled in spans of 128 bytes");
  }
  if (address % kTileAlignment != 0 || tile_bytes % kTileAlignment != 0) {
    run.Misuse(site, fmt::format("wgmma: columns at {} of shared memory, {} bytes between their "
                                 "tiles: not multiples of 1024",
                                 address - kSharedBegin, tile_bytes));
  }
  const size_t end =
      address + size_t{num_columns / kTileColumns - 1} * tile_bytes + kStepColumns * kRowBytes;
  if (address < kSharedBegin || end > kSharedBegin + run.config().shared_bytes) {
    run.Misuse(site, "wgmma: columns are not in shared memory");
  }
  return run.self().cta->shared + (address - kSharedBegin);
}

// As whom a product reads: its warpgroup's slot, and what all of its threads know.
struct Reader {
  Epoch epoch;
  VectorClock known;
  Site site;
};

// Checks and records the read of a chunk.
void TouchChunk(RunState& run, const std::byte* chunk, const Reader& reader) {
  const Cta& cta = *run.self().cta;
  const uint32_t num_generic = 2 * run.config().num_threads;  // slots of threads, their copies
  run.CheckRace({chunk, kChunkBytes, false, __builtin_return_address(0)}, reader.epoch,
                reader.known);
  const Epoch write = run.LastWrite(chunk);
  if (write.IsSet() && write.slot() < num_generic && !cta.fenced.Knows(write)) {
    run.Misuse(reader.site, fmt::format("wgmma reads what thread {} wrote, and no "
                                        "fence_proxy_async came between",
                                        write.slot() % run.config().num_threads));
  }
}

// Reads one operand: a step of rows of a tile.
void TouchTile(RunState& run, const std::byte* tile, uint32_t num_rows, const Reader& reader) {
  for (uint32_t row = 0; row < num_rows; ++row) {
    for (size_t half = 0; half < 2; ++half) {
      TouchChunk(run, ChunkAt(tile + row * kRowBytes + kChunkBytes * half), reader);
    }
  }
}

// Reads the second operand: a step of tiles of columns.
void TouchColumns(RunState& run, const PendingProduct& product, const Reader& reader) {
  for (uint32_t column = 0; column < product.num_columns; column += kTileColumns) {
    const std::byte* tile = product.b + column / kTileColumns * product.b_tile_bytes;
    for (size_t at = 0; at < kStepColumns * kRowBytes; at += kChunkBytes) {
      TouchChunk(run, ChunkAt(tile + at), reader);
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
  if (product.a != nullptr) TouchTile(run, product.a, kRowsA, reader);
  if (product.b_tile_bytes == 0) {
    TouchTile(run, product.b, product.num_columns, reader);
  } else {
    TouchColumns(run, product, reader);
  }
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
  if (product.own_a != nullptr) {
    thread.operands.push_back({product.own_a, *product.own_a, sums.last_group, site});
  }
}

// The operands of products of groups up to `done` are the thread's again.
void GiveBackOperands(RunState& run, SimThread& thread, uint32_t done) {
  std::erase_if(thread.operands, [&](const OperandInFlight& operand) {
    if (operand.group > done) return false;
    if (std::memcmp(operand.place, &operand.value, sizeof(FragmentA)) != 0) {
      run.Misuse(operand.site,
                 "the thread wrote an operand before it waited for the wgmma that reads it");
    }
    return true;
  });
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
         a.adds == b.adds && (a.own_a == nullptr) == (b.own_a == nullptr) &&
         a.b_has_columns == b.b_has_columns;
}

// The product that the warpgroup asks for, but for what each thread has of it.
PendingProduct Describe(RunState& run, const calls::TileProduct& product, uint32_t group,
                        Site site) {
  PendingProduct pending = {.group = group,
                            .num_columns = product.num_columns,
                            .a = nullptr,
                            .b = nullptr,
                            .b_tile_bytes = 0,
                            .adds = product.adds,
                            .places = std::vector<FragmentC*>(kWarpgroupSize),
                            .own_a = {}};
  if (product.own_a == nullptr) {
    pending.a = TileAt(run, product.a, kRowsA, site);
  } else {
    pending.own_a.resize(kWarpgroupSize);
  }
  if (product.b_has_columns) {
    pending.b = ColumnsAt(run, {product.b.bits}, product.num_columns, site);
    pending.b_tile_bytes = static_cast<uint32_t>(product.b.bits >> 16 & 0x3FFF) << 4;
  } else {
    pending.b = TileAt(run, product.b, product.num_columns, site);
  }
  return pending;
}

// Where a tile lies, as a descriptor says it.
uint32_t SharedAddressOf(const void* tile, Site site) {
  RunState& run = *RunState::Current();
  const auto offset =
      static_cast<size_t>(static_cast<const std::byte*>(tile) - run.self().cta->shared);
  if (offset >= run.config().shared_bytes) run.Misuse(site, "a tile is not in shared memory");
  if (reinterpret_cast<uintptr_t>(run.self().cta->shared) % kTileAlignment != 0) {
    run.Misuse(site, "shared memory with tiles is asked for in multiples of 1024 bytes");
  }
  return kSharedBegin + static_cast<uint32_t>(offset);
}

}  // namespace

TileDescriptor calls::DescribeTileAt(const void* tile, Site site) {
  return DescribeTile(SharedAddressOf(tile, site));
}

ColumnsDescriptor calls::DescribeColumnsAt(const void* tile, uint32_t tile_bytes, Site site) {
  return DescribeColumns(SharedAddressOf(tile, site), tile_bytes);
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

// A device with less shared memory than a Hopper has no wgmma.
bool calls::HasWgmma() {
  const RunOptions& options = CurrentRunOptions();
  return options.tensor_math != TensorMath::kAmpereBits &&
         options.max_shared_bytes >= kHopperSharedBytes;
}

void calls::StartProduct(const TileProduct& product, Site site) {
  RunState& run = *RunState::Current();
  SimThread& self = run.self();
  const uint32_t first_thread = self.index / kWarpgroupSize * kWarpgroupSize;
  if (first_thread + kWarpgroupSize > run.config().num_threads) {
    run.Misuse(site, "wgmma needs a warpgroup: 128 threads, the first a multiple of 128");
  }
  if (!HasWgmma()) run.Misuse(site, "wgmma on a device that has none");
  self.in = &product;
  Warpgroup& warpgroup = WarpgroupOf(run);
  if (!MeetWarpgroup(run, warpgroup, site)) return;
  const bool is_dropped = Mutated(site, Mutation::kDropProduct);
  PendingProduct pending = Describe(run, product, self.num_product_commits + 1, site);
  std::vector<SimThread*> others;
  for (SimThread* thread : warpgroup.met) {
    const auto& own = *static_cast<const TileProduct*>(thread->in);
    if (!SameOperands(own, product) || thread->num_product_commits + 1 != pending.group) {
      run.Misuse(site, "the threads of a warpgroup ask for different products");
    }
    if (!is_dropped) TakeSums(run, *thread, own, site);
    const uint32_t place = thread->index - first_thread;
    pending.places[place] = own.sums;
    if (own.own_a != nullptr) pending.own_a[place] = *own.own_a;
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
  GiveBackOperands(run, self, done);
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
}  // namespace baton::kernels::simt
