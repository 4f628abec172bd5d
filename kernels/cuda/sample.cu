// The token of each row of logits: greedy, or by temperature, top_k, top_p, min_p and Gumbel's
// maximum.
//
// Work: one cta a row. A token's rank (its l's order, then its id) is unique, so each filter is the
// least rank that it keeps, found by radix select: a pass over the row for each digit of eight bits
// that is still open, with a histogram of counts (top_k) or of weights in whole units (top_p).
// Sums are integers: neither the order of adding nor the number of threads decides anything.
// Bytes: 4 a token and pass, from L2 behind the first: 1 pass greedy, 2 with a temperature, 4 to 8
// more for each of top_k and top_p. Flops: with a temperature about 30 integer operations a token
// (Philox), logarithms only where a bound says that it may win. Limit: a row is one SM's work,
// whose L2 bandwidth limits a pass (128k tokens: 512 KiB); where most tokens share a digit the
// 64-bit additions in shared memory, which are loops. Reached: not yet measured on a GPU.
#include <array>

#include "kernels/cuda/kernel_table.h"
#include "kernels/sampling.h"
#include "kernels/simt/device.h"

namespace baton::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kSampleThreads = 512;
constexpr uint32_t kSampleWarps = kSampleThreads / simt::kWarpSize;
constexpr uint32_t kDigitBits = 8;
constexpr uint32_t kBins = 1u << kDigitBits;
constexpr uint32_t kDigits = 64 / kDigitBits;
constexpr uint32_t kDigitsOfToken = 32 / kDigitBits;

// The bin in which the wanted sum is reached; kBins: in none.
struct Found {
  uint64_t held;    // by the bin
  uint64_t needed;  // of what it holds
  uint32_t bin;
};

struct SampleShared {
  uint64_t bins[kBins];
  uint64_t largest[kSampleWarps];
  Found found;
};

// A row and what the filters have left of it: the tokens of rank `lowest` and more.
struct Row {
  const float* logits;
  uint32_t vocab_size;
  float temperature;
  float largest;  // after the temperature
  uint64_t lowest;
};

BATON_DEVICE float Scaled(float l, float temperature) {
  return l == l ? l / temperature : kMinusInfinity;
}

BATON_DEVICE uint64_t ShuffleXor64(uint64_t value, uint32_t lane_mask) {
  const uint32_t low = simt::shfl_xor(static_cast<uint32_t>(value), lane_mask);
  const uint32_t high = simt::shfl_xor(static_cast<uint32_t>(value >> 32), lane_mask);
  return uint64_t{high} << 32 | low;
}

BATON_DEVICE uint64_t WarpMax(uint64_t value) {
  BATON_UNROLL
  for (uint32_t step = simt::kWarpSize / 2; step > 0; step /= 2) {
    const uint64_t other = ShuffleXor64(value, step);
    value = other > value ? other : value;
  }
  return value;
}

// The largest of all threads' values, in each thread.
BATON_DEVICE uint64_t CtaMax(uint64_t value, SampleShared& memory) {
  value = WarpMax(value);
  simt::sync_block();  // whoever read what lay here
  if (simt::lane() == 0) memory.largest[simt::warp()] = value;
  simt::sync_block();
  return WarpMax(simt::lane() < kSampleWarps ? memory.largest[simt::lane()] : 0);
}

// Of the ranks that are kept and begin with `prefix`, the counts or weights by their next digit.
BATON_DEVICE void FillBins(const Row& row, bool by_weight, uint32_t digit, uint64_t prefix,
                           SampleShared& memory) {
  for (uint32_t i = simt::thread(); i < kBins; i += kSampleThreads) memory.bins[i] = 0;
  simt::sync_block();
  const uint32_t shift = digit * kDigitBits;
  for (uint32_t token = simt::thread(); token < row.vocab_size; token += kSampleThreads) {
    const float l = Scaled(row.logits[token], row.temperature);
    const uint64_t rank = RankOf(l, token);
    if (!simt::guard(rank >= row.lowest)) continue;
    // In two steps: a shift by 64 is not defined.
    if (!simt::guard(rank >> shift >> kDigitBits == prefix)) continue;
    const uint64_t units = by_weight ? UnitsOfWeight(RelativeWeight(l, row.largest)) : uint64_t{1};
    if (units != 0) simt::atomic_add64(&memory.bins[(rank >> shift) % kBins], units);
  }
  simt::sync_block();
}

// The sum of all bins. Warp 0; lane i has the bins from kBins - 1 - 8 i downwards.
struct Scan {
  uint64_t own;
  uint64_t above;
  uint64_t total;
};
constexpr uint32_t kBinsOfLane = kBins / simt::kWarpSize;

BATON_DEVICE Scan ScanBins(const SampleShared& memory) {
  Scan scan = {0, 0, 0};
  const uint32_t first = kBins - 1 - simt::lane() * kBinsOfLane;
  for (uint32_t i = 0; i < kBinsOfLane; ++i) scan.own += memory.bins[first - i];
  scan.total = scan.own;
  BATON_UNROLL
  for (uint32_t step = 1; step < simt::kWarpSize; step *= 2) {
    const uint64_t other = ShuffleXor64(scan.total, step);
    if ((simt::lane() & step) != 0) scan.above += other;
    scan.total += other;
  }
  return scan;
}

// What is wanted of a histogram: the highest bin with which the sum from above reaches `needed`,
// or, where that is 0, top_p of all bins.
struct Wanted {
  uint64_t needed;
  float top_p;
};

// Finds the wanted bin. Warp 0.
BATON_DEVICE void FindBin(const Wanted& wanted, SampleShared& memory) {
  const Scan scan = ScanBins(memory);
  const uint64_t needed =
      wanted.needed != 0 ? wanted.needed : UnitsOfTopP(scan.total, wanted.top_p);
  if (simt::lane() == 0) memory.found.bin = kBins;
  simt::sync_warp();
  // One lane's bins hold the wanted one.
  if (scan.above >= needed || scan.above + scan.own < needed) return;
  uint64_t above = scan.above;
  uint32_t bin = kBins - 1 - simt::lane() * kBinsOfLane;
  while (above + memory.bins[bin] < needed) above += memory.bins[bin--];
  memory.found = {memory.bins[bin], needed - above, bin};
}

// The least rank that is kept when, from the highest rank downwards, tokens are kept until their
// counts reach `top_k` or, where that is 0, their weights reach top_p of all; row.lowest when all
// together do not.
BATON_DEVICE uint64_t Select(const Row& row, uint32_t top_k, float top_p, SampleShared& memory) {
  bool by_weight = top_k == 0;
  Wanted wanted = {top_k, top_p};
  uint64_t prefix = 0;
  for (uint32_t digit = kDigits; digit-- > 0;) {
    FillBins(row, by_weight, digit, prefix, memory);
    if (simt::warp() == 0) FindBin(wanted, memory);
    simt::sync_block();
    const Found found = memory.found;
    if (found.bin == kBins) return row.lowest;
    prefix = prefix << kDigitBits | found.bin;
    wanted.needed = found.needed;
    uint64_t held = found.held;
    if (by_weight && digit == kDigitsOfToken) {
      // Tokens of one l weigh the same: from here on they are counted.
      const float l = ValueOfOrder(static_cast<uint32_t>(prefix));
      const uint64_t units = UnitsOfWeight(RelativeWeight(l, row.largest));
      by_weight = false;
      wanted.needed = (wanted.needed + units - 1) / units;
      held /= units;
    }
    if (by_weight || wanted.needed != held) continue;
    // All of the bin that were kept so far.
    const uint64_t lowest = prefix << digit * kDigitBits;
    return lowest > row.lowest ? lowest : row.lowest;
  }
  return prefix;
}

// The highest rank by l + Gumbel of those that are kept. `first`: the token of the largest l, which
// every filter keeps; few others may reach its score.
BATON_DEVICE uint64_t BestOf(const Row& row, const RowSampling& how, uint32_t first,
                             SampleShared& memory) {
  const GumbelKey key = {PhiloxKeyFromSeed(how.seed), how.output_index, how.choice};
  float score = row.largest + GumbelAt(key, first);
  uint64_t best = RankOf(score, first);
  const uint32_t num_calls = (row.vocab_size + kGumbelBlock - 1) / kGumbelBlock * kGumbelCalls;
  for (uint32_t call = simt::thread(); call < num_calls; call += kSampleThreads) {
    const std::array<uint32_t, 4> words = GumbelWords(key, call);
    BATON_UNROLL
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t token =
          call / kGumbelCalls * kGumbelBlock + k * kGumbelCalls + call % kGumbelCalls;
      if (!simt::guard(token < row.vocab_size)) continue;
      const float l = Scaled(row.logits[token], row.temperature);
      if (l + GumbelBound(words[k]) < score) continue;
      if (!simt::guard(RankOf(l, token) >= row.lowest)) continue;
      if (how.min_p > 0.0f && !KeptByMinP(RelativeWeight(l, row.largest), how.min_p)) continue;
      const float own = l + GumbelFromWord(words[k]);
      const uint64_t rank = RankOf(own, token);
      if (rank <= best) continue;
      best = rank;
      score = own;
    }
  }
  return CtaMax(best, memory);
}

BATON_KERNEL(kSampleThreads) SampleKernel(SampleParams params) {
  simt::wait_for_previous();
  auto& memory = simt::shared<SampleShared>();
  const uint32_t row_index = simt::block().x;
  const RowSampling how = params.rows[row_index];
  uint32_t* const out = params.tokens + row_index;
  if (how.on_device == 0) {
    if (simt::thread() == 0) *out = kNoToken;
    return;
  }
  Row row = {params.logits + size_t{row_index} * params.vocab_size, params.vocab_size, 1.0f, 0.0f,
             kLowestRank};
  uint64_t best = 0;
  for (uint32_t token = simt::thread(); token < row.vocab_size; token += kSampleThreads) {
    const uint64_t rank = RankOf(row.logits[token], token);
    best = rank > best ? rank : best;
  }
  best = CtaMax(best, memory);
  const float largest = ValueOfOrder(static_cast<uint32_t>(best >> 32));
  const bool any = largest > kMinusInfinity && largest < -kMinusInfinity;
  if (any && how.temperature > 0.0f) {
    row.temperature = how.temperature;
    row.largest = Scaled(largest, how.temperature);
    if (how.top_k > 0) row.lowest = Select(row, how.top_k, 1.0f, memory);
    if (how.top_p < 1.0f) row.lowest = Select(row, 0, how.top_p, memory);
    best = BestOf(row, how, TokenOfRank(best), memory);
  }
  if (simt::thread() == 0) *out = any ? TokenOfRank(best) : kNoToken;
}

}  // namespace

const KernelInfo kSampleInfo = {"SampleKernel", kSampleThreads, sizeof(SampleShared)};

absl::Status Sample(const SampleParams& params, void* stream) {
  if (params.vocab_size == 0) return absl::InvalidArgumentError("Sample: an empty vocabulary");
  if (params.num_rows == 0) return absl::OkStatus();
  return simt::launch({.name = "Sample",
                       .grid = {params.num_rows, 1, 1},
                       .num_threads = kSampleThreads,
                       .shared_bytes = sizeof(SampleShared),
                       .overlaps = true,
                       .stream = stream},
                      SampleKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::cuda
