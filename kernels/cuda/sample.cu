// The token of each row of logits: greedy, or by temperature, top_k, top_p, min_p and Gumbel's
// maximum.
//
// Work: one cta of 1024 threads a row. A token's rank (its l's order, then its id) is unique, so
// each filter is the least rank that it keeps. A first pass over the row adds counts (top_k) or
// weights in whole units (top_p) into bins. The bins are of the distance from the largest l, which
// spreads tokens as the bits of an l do not. A second pass lists the tokens of the bin that holds
// the wanted one. The list is narrowed in shared memory, ten bits of the rank at a time. A bin of
// more tokens than the list takes is narrowed by passes over the row. Sums are integers: neither
// the order of adding nor the number of threads decides anything.
// Bytes: 4 a token and pass, from L2 after the first: 1 pass greedy, 2 with a temperature, 2 more
// for each of top_k and top_p. Instructions a token, counted in the machine code for sm_90a: 9 for
// the largest, 51 into bins by weight, 18 by count, 15 to list a bin, 33 for l + Gumbel (half of
// them integer, at half the rate; 11 where no token of a warp may win), 7 more in each pass but the
// first when the temperature is not 1.
// Limit: a row is one SM's work, so its issue slots (10 instructions over 128k tokens are 6 us at
// 1.7 GHz), not its bandwidth from L2 (5 us a pass). Calculated for 128k tokens at temperature 1:
// greedy 6 us, temperature alone 35, top_k 35 to 55, top_p 55 where few tokens hold the weight and
// 75 where thousands do; up to 13 more at another temperature. More than 4096 tokens in a bin take
// two more passes each time. Reached on an H100 (kernels/NOTES.md): greedy 10 us; top_p 0.95 of a
// row that is uniform over 16 nats 116, of which 75 were calculated. (Bins of the bits of l and
// 64-bit additions in shared memory took 2069 [not kept].)
#include <array>
#include <limits>

#include "kernels/cuda/kernel_table.h"
#include "kernels/sampling.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kSampleThreads = 1024;
constexpr uint32_t kSampleWarps = kSampleThreads / simt::kWarpSize;
constexpr uint32_t kBins = kSampleThreads;  // each thread sums one
constexpr uint32_t kListSize = 4096;        // a bin of 128k tokens spread over 16 nats has 128
constexpr uint32_t kTokensOfLoad = 4;
static_assert(kSampleWarps == simt::kWarpSize, "a warp scans the sums of all");

constexpr float kNoBound = std::numeric_limits<float>::quiet_NaN();  // nothing compares with it
// Less than any Gumbel number, and more than any.
constexpr float kLeastGumbel = -3.0f;
constexpr float kMostGumbel = 24.0f;

// Which part of the bin a filter wants.
struct Found {
  uint64_t needed;  // of what the bin holds
  uint32_t bin;     // kBins: all bins together hold too little, and `needed` lacks still
};

struct SampleShared {
  uint64_t list[kListSize];         // ranks
  uint64_t of_warps[kSampleWarps];  // what warps tell one another
  uint32_t low[kBins];              // sums of bins are high * 2^32 + low
  uint32_t high[kBins];
  Found found;
  uint32_t num_listed;  // more than kListSize: the list is of no use
};

// A row and what the filters have left of it.
struct Row {
  const float* logits;
  uint32_t vocab_size;
  bool has_vectors;  // four tokens lie in 16 aligned bytes
  float temperature;
  float inverse;     // 1 / temperature
  float most_exact;  // of the magnitudes above kLeastExact that `inverse` divides exactly
  float largest;     // after the temperature
  float bins_per_nat;
  // The lowest that is kept.
  float edge;
  uint32_t edge_token;
};

// From the highest rank to the lowest, both included; none when it ends before it begins.
struct RankRange {
  uint64_t high;
  uint64_t low;
};

// Between these bounds no step of Scaled overflows or is subnormal.
constexpr float kLeastExact = 8.6736174e-19f;    // 2^-60
constexpr float kMostExact = 1.1529215e18f;      // 2^60
constexpr float kLeastInverted = 9.5367432e-7f;  // 2^-20
constexpr float kMostInverted = 1048576.0f;      // 2^20

// l / temperature, rounded once. The quotient is within an ulp, and is corrected by its remainder
// and the reciprocal rounded to nearest. The result is then rounded to nearest (Markstein,
// "Computation of elementary functions on the IBM RISC System/6000 processor", 1990, theorem 3).
BATON_DEVICE float Quotient(const Row& row, float l) {
  float quotient = l * row.inverse;
  quotient = simt::fma(simt::fma(-row.temperature, quotient, l), row.inverse, quotient);
  return simt::fma(simt::fma(-row.temperature, quotient, l), row.inverse, quotient);
}

BATON_DEVICE bool HasQuotient(const Row& row, float l) {
  const float size = __builtin_fabsf(l);
  return static_cast<bool>((size > kLeastExact) & (size < row.most_exact));
}

BATON_DEVICE float Scaled(const Row& row, float l) {
  return HasQuotient(row, l) ? Quotient(row, l) : l / row.temperature;
}

BATON_DEVICE void ScaleTokens(const Row& row, float (&l)[kTokensOfLoad]) {
  bool have_quotients = true;
  BATON_UNROLL
  for (const float each : l) have_quotients &= HasQuotient(row, each);
  if (have_quotients) {
    BATON_UNROLL
    for (float& each : l) each = Quotient(row, each);
  } else {
    BATON_UNROLL
    for (float& each : l) each = each / row.temperature;
  }
}

BATON_DEVICE void ScaleBy(float temperature, float smallest, Row& row) {
  row.temperature = temperature;
  row.inverse = 1.0f / temperature;
  const bool is_exact = temperature > kLeastInverted && temperature < kMostInverted;
  row.most_exact = is_exact ? kMostExact : 0.0f;
  row.largest = Scaled(row, row.largest);
  // Below a temperature of 1, bins are as deep in logits as at 1: top_k may want what weighs 0.
  const float depth = temperature < 1.0f ? kDeepest / temperature : kDeepest;
  const float spread = row.largest - Scaled(row, smallest);
  row.bins_per_nat = kBins / (spread < depth ? spread : depth);
}

// False for -infinity and NaN.
BATON_DEVICE bool IsKept(const Row& row, float l, uint32_t token) {
  return static_cast<bool>((l > row.edge) | ((l == row.edge) & (token <= row.edge_token)));
}

// From the largest l, of an l that is no NaN. 0 where both are infinite.
BATON_DEVICE float DistanceOf(const Row& row, float l) {
  const float distance = row.largest - l;
  return distance > 0.0f ? distance : 0.0f;
}

// Ascends with the distance, whatever the rounding.
BATON_DEVICE uint32_t BinOfDistance(const Row& row, float distance) {
  const float at = distance * row.bins_per_nat;
  // A NaN, where all l are equal, is in the last one too.
  return at < static_cast<float>(kBins - 1) ? static_cast<uint32_t>(static_cast<int32_t>(at))
                                            : kBins - 1;
}

// Four tokens from `first` on, after the temperature; -infinity beyond the row.
BATON_DEVICE void LoadTokens(const Row& row, uint32_t first, float (&l)[kTokensOfLoad]) {
  BATON_UNROLL
  for (float& each : l) each = kMinusInfinity;
  if (row.has_vectors) {
    if (simt::guard(first < row.vocab_size)) {
      const auto vector = *reinterpret_cast<const simt::Vec16*>(row.logits + first);
      BATON_UNROLL
      for (uint32_t k = 0; k < kTokensOfLoad; ++k) l[k] = std::bit_cast<float>(vector.words[k]);
    }
  } else {
    BATON_UNROLL
    for (uint32_t k = 0; k < kTokensOfLoad; ++k) {
      if (simt::guard(first + k < row.vocab_size)) l[k] = row.logits[first + k];
    }
  }
}

// Calls visit(first, l) for each 4 * kLoads tokens of a thread: l[i][k], after the temperature, is
// of token first + i * kTokensOfPass + k, and -infinity beyond the row.
constexpr uint32_t kTokensOfPass = kTokensOfLoad * kSampleThreads;

template <uint32_t kLoads, typename Visit>
BATON_DEVICE void ForTokens(const Row& row, Visit visit) {
  BATON_UNROLL_BY(1)
  for (uint32_t first = simt::thread() * kTokensOfLoad; first < row.vocab_size;
       first += kLoads * kTokensOfPass) {
    float l[kLoads][kTokensOfLoad];
    BATON_UNROLL
    for (uint32_t i = 0; i < kLoads; ++i) LoadTokens(row, first + i * kTokensOfPass, l[i]);
    if (row.temperature != 1.0f) {
      BATON_UNROLL
      for (uint32_t i = 0; i < kLoads; ++i) ScaleTokens(row, l[i]);
    }
    visit(first, l);
  }
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
  if (simt::lane() == 0) memory.of_warps[simt::warp()] = value;
  simt::sync_block();
  return WarpMax(memory.of_warps[simt::lane()]);
}

struct Sums {
  uint64_t before;  // of the lanes below
  uint64_t total;
};

BATON_DEVICE Sums WarpSums(uint64_t own) {
  Sums sums = {0, own};
  BATON_UNROLL
  for (uint32_t step = 1; step < simt::kWarpSize; step *= 2) {
    const uint64_t other = ShuffleXor64(sums.total, step);
    if ((simt::lane() & step) != 0) sums.before += other;
    sums.total += other;
  }
  return sums;
}

// The amount that a filter keeps, from the highest rank downwards: `needed` tokens or units. Where
// `needed` is 0 the filter keeps the share top_p of all units.
struct Wanted {
  uint64_t needed;
  float top_p;
};

// A thread's bins are read by itself alone, so it has done with them.
BATON_DEVICE void ClearBins(SampleShared& memory) {
  memory.low[simt::thread()] = 0;
  memory.high[simt::thread()] = 0;
  simt::sync_block();
}

// Two additions of 32 bits, the second seldom: one of 64 is a loop in shared memory.
BATON_DEVICE void AddToBin(uint64_t units, uint32_t bin, SampleShared& memory) {
  const auto low = static_cast<uint32_t>(units);
  const uint32_t before = simt::atomic_add(&memory.low[bin], low);
  const uint32_t high = static_cast<uint32_t>(units >> 32) + (before > ~low ? 1 : 0);
  if (high != 0) simt::atomic_add(&memory.high[bin], high);
}

// Fills the bins of distance by the tokens that are kept.
template <bool kByWeight>
BATON_DEVICE void FillByDistance(const Row& row, SampleShared& memory) {
  ForTokens<1>(row, [&](uint32_t first, const float(&l)[1][kTokensOfLoad]) {
    BATON_UNROLL
    for (uint32_t k = 0; k < kTokensOfLoad; ++k) {
      const float distance = DistanceOf(row, l[0][k]);
      const uint32_t bin = BinOfDistance(row, distance);
      // Counts of the last bin, where most of a row may be, are not needed.
      const bool is_needed = kByWeight ? distance <= kDeepest : bin < kBins - 1;
      if (!simt::guard(is_needed & IsKept(row, l[0][k], first + k))) continue;
      if (kByWeight) {
        AddToBin(UnitsOfDistance(distance), bin, memory);
      } else {
        simt::atomic_add(&memory.low[bin], 1);
      }
    }
  });
}

// A range of ranks in bins: (range.high - rank) >> shift.
struct RankBins {
  RankRange range;
  uint32_t shift;
};

BATON_DEVICE bool IsIn(const RankRange& range, uint64_t rank) {
  return rank <= range.high && rank >= range.low;
}

// As few bits as the bins allow.
BATON_DEVICE RankBins BinsOf(const RankRange& range) {
  uint32_t shift = 0;
  BATON_UNROLL_BY(1)
  while ((range.high - range.low) >> shift >= kBins) ++shift;
  return {range, shift};
}

// The range that a bin takes.
BATON_DEVICE RankRange PartOf(const RankBins& bins, uint32_t bin) {
  RankRange part = bins.range;
  part.high -= uint64_t{bin} << bins.shift;
  const uint64_t width = (uint64_t{1} << bins.shift) - 1;
  if (part.high - part.low > width) part.low = part.high - width;
  return part;
}

// Adds a token of the range to its bin.
template <bool kByWeight>
BATON_DEVICE void AddByRank(const Row& row, const RankBins& bins, uint64_t rank,
                            SampleShared& memory) {
  if (!simt::guard(IsIn(bins.range, rank))) return;
  const auto bin = static_cast<uint32_t>((bins.range.high - rank) >> bins.shift);
  if (!kByWeight) {
    simt::atomic_add(&memory.low[bin], 1);
    return;
  }
  const float distance = DistanceOf(row, ValueOfOrder(static_cast<uint32_t>(rank >> 32)));
  if (distance <= kDeepest) AddToBin(UnitsOfDistance(distance), bin, memory);
}

// Fills the bins by the tokens of the range, from the list or from the row.
template <bool kByWeight>
BATON_DEVICE void FillByRank(const Row& row, const RankBins& bins, bool is_listed,
                             SampleShared& memory) {
  const uint32_t end = is_listed ? memory.num_listed : row.vocab_size;
  BATON_UNROLL_BY(1)
  for (uint32_t i = simt::thread(); i < end; i += kSampleThreads) {
    const uint64_t rank = is_listed ? memory.list[i] : RankOf(Scaled(row, row.logits[i]), i);
    AddByRank<kByWeight>(row, bins, rank, memory);
  }
}

// The lowest bin with which the sum of bins reaches what is wanted. All threads.
BATON_DEVICE Found FindBin(const Wanted& wanted, SampleShared& memory) {
  simt::sync_block();
  const uint64_t own = (uint64_t{memory.high[simt::thread()]} << 32) + memory.low[simt::thread()];
  const Sums of_lanes = WarpSums(own);
  if (simt::lane() == 0) memory.of_warps[simt::warp()] = of_lanes.total;
  simt::sync_block();
  const uint64_t of_warp = memory.of_warps[simt::lane()];
  const uint64_t total = WarpSums(of_warp).total;
  const uint64_t needed = wanted.needed != 0 ? wanted.needed : UnitsOfTopP(total, wanted.top_p);
  if (total < needed) return {needed - total, kBins};
  const uint64_t before =
      of_lanes.before + WarpSums(simt::lane() < simt::warp() ? of_warp : 0).total;
  if (before < needed && before + own >= needed) memory.found = {needed - before, simt::thread()};
  simt::sync_block();
  return memory.found;
}

// Lists the members, if they fit, and returns the range of their ranks.
template <typename IsMember>
BATON_DEVICE RankRange Collect(const Row& row, SampleShared& memory, IsMember is_member) {
  constexpr uint32_t kLoads = 2;
  if (simt::thread() == 0) memory.num_listed = 0;
  simt::sync_block();
  RankRange range = {0, ~uint64_t{0}};
  bool fits = true;
  ForTokens<kLoads>(row, [&](uint32_t first, const float(&l)[kLoads][kTokensOfLoad]) {
    uint32_t members = 0;  // a bit for each token: few are, so their code is not unrolled
    BATON_UNROLL
    for (uint32_t i = 0; i < kLoads * kTokensOfLoad; ++i) {
      const uint32_t token = first + i / kTokensOfLoad * kTokensOfPass + i % kTokensOfLoad;
      if (is_member(l[i / kTokensOfLoad][i % kTokensOfLoad], token)) members |= 1u << i;
    }
    BATON_UNROLL_BY(1)
    for (uint32_t i = 0; members >> i != 0; ++i) {
      if ((members >> i & 1) == 0) continue;
      const uint32_t token = first + i / kTokensOfLoad * kTokensOfPass + i % kTokensOfLoad;
      const uint64_t rank = RankOf(Scaled(row, row.logits[token]), token);
      range.high = rank > range.high ? rank : range.high;
      range.low = rank < range.low ? rank : range.low;
      if (!fits) continue;
      const uint32_t at = simt::atomic_add(&memory.num_listed, 1);
      fits = simt::guard(at < kListSize);
      if (fits) memory.list[at] = rank;
    }
  });
  range.high = CtaMax(range.high, memory);
  range.low = ~CtaMax(~range.low, memory);
  return range;
}

// Raises the row's edge to the least rank that is kept when, from the highest rank downwards, those
// kept so far are kept until they are what is wanted; leaves it when all together are not.
template <bool kByWeight>
BATON_DEVICE void Filter(Wanted wanted, Row& row, SampleShared& memory) {
  ClearBins(memory);
  FillByDistance<kByWeight>(row, memory);
  Found found = FindBin(wanted, memory);
  const uint32_t bin = found.bin < kBins ? found.bin : kBins - 1;  // which was not counted
  // As BinOfDistance: its comparisons without its conversion. Tokens that an earlier filter left
  // out have lower ranks than those it kept, so they may be listed: the wanted token is reached
  // before.
  const auto lower = static_cast<float>(bin);
  const float upper = bin < kBins - 1 ? lower + 1.0f : kNoBound;
  RankRange range = Collect(row, memory, [&](float l, uint32_t) {
    const float at = DistanceOf(row, l) * row.bins_per_nat;
    return static_cast<bool>((l > kMinusInfinity) & !(at < lower) & !(at >= upper));
  });
  if (range.low > range.high) return;
  bool is_listed = memory.num_listed <= kListSize;
  while (range.low < range.high) {
    const RankBins bins = BinsOf(range);
    wanted.needed = found.needed;
    ClearBins(memory);
    FillByRank<kByWeight>(row, bins, is_listed, memory);
    found = FindBin(wanted, memory);
    if (found.bin == kBins) return;
    range = PartOf(bins, found.bin);
    if (is_listed) continue;
    range = Collect(row, memory,
                    [&](float l, uint32_t token) { return IsIn(range, RankOf(l, token)); });
    is_listed = memory.num_listed <= kListSize;
  }
  row.edge = ValueOfOrder(static_cast<uint32_t>(range.low >> 32));
  row.edge_token = TokenOfRank(range.low);
}

// The least l that may reach a score, or less: more is lost than a Gumbel number and the rounding
// of any of these sums. Not less than what is kept.
BATON_DEVICE float LeastOfScore(const Row& row, float score) {
  const float size = score < 0.0f ? -score : score;
  const float least = score - (kMostGumbel + size * 9.5367432e-7f);  // 2^-20: eight ulps
  return least > row.edge ? least : row.edge;                        // NaN: an infinite score
}

// A random row's Gumbel numbers and what has won so far.
struct Race {
  GumbelKey key;
  float min_p;
  uint64_t best;
};

// The four tokens of one call, each after the other: few get here, so this is not unrolled.
BATON_DEVICE void RunCall(const Row& row, uint32_t call, const std::array<uint32_t, 4>& words,
                          Race& race) {
  BATON_UNROLL_BY(1)
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t token =
        call / kGumbelCalls * kGumbelBlock + k * kGumbelCalls + call % kGumbelCalls;
    if (!simt::guard(token < row.vocab_size)) continue;
    const float l = Scaled(row, row.logits[token]);
    const uint32_t low = k == 0 ? words[0] : words[1];
    const uint32_t high = k == 2 ? words[2] : words[3];
    const uint32_t word = k < 2 ? low : high;
    const float score = ValueOfOrder(static_cast<uint32_t>(race.best >> 32));
    if (l + GumbelBound(word) < score) continue;
    if (!simt::guard(IsKept(row, l, token))) continue;
    if (race.min_p > 0.0f && !KeptByMinP(RelativeWeight(l, row.largest), race.min_p)) continue;
    const uint64_t rank = RankOf(l + GumbelFromWord(word), token);
    race.best = rank > race.best ? rank : race.best;
  }
}

// The highest rank by l + Gumbel of those that are kept.
BATON_DEVICE uint64_t BestOf(const Row& row, const RowSampling& how, SampleShared& memory) {
  // Every filter keeps a token of the largest l, which has a higher rank than this.
  Race race = {{PhiloxKeyFromSeed(how.seed), how.output_index, how.choice},
               how.min_p,
               uint64_t{OrderOf(row.largest + kLeastGumbel)} << 32};
  const uint32_t num_calls = (row.vocab_size + kGumbelBlock - 1) / kGumbelBlock * kGumbelCalls;
  BATON_UNROLL_BY(1)
  for (uint32_t begin = 0; begin < num_calls; begin += kSampleThreads) {
    // The best of all, each time that the tokens so far are twice as many: few others reach it.
    if ((begin & (begin - 1)) == 0 && begin != 0) race.best = CtaMax(race.best, memory);
    const float score = ValueOfOrder(static_cast<uint32_t>(race.best >> 32));
    const float least = LeastOfScore(row, score);
    const uint32_t call = begin + simt::thread();
    const uint32_t first = call / kGumbelCalls * kGumbelBlock + call % kGumbelCalls;
    const uint32_t num_left = first < row.vocab_size ? row.vocab_size - first : 0;
    const float* const from = row.logits + first;
    float l[4];
    BATON_UNROLL
    for (uint32_t k = 0; k < 4; ++k) {
      l[k] = kMinusInfinity;
      if (simt::guard(k * kGumbelCalls < num_left)) l[k] = from[k * kGumbelCalls];
    }
    if (row.temperature != 1.0f) ScaleTokens(row, l);
    if (l[0] < least && l[1] < least && l[2] < least && l[3] < least) continue;
    const std::array<uint32_t, 4> words = GumbelWords(race.key, call);
    const uint32_t low = words[0] < words[1] ? words[0] : words[1];
    const uint32_t high = words[2] < words[3] ? words[2] : words[3];
    const float bound = GumbelBound(low < high ? low : high);  // which ascends as words descend
    if (l[0] + bound < score && l[1] + bound < score && l[2] + bound < score &&
        l[3] + bound < score) {
      continue;
    }
    RunCall(row, call, words, race);
  }
  return CtaMax(race.best, memory);
}

// The rank of the largest logit, in each thread; the least that is more than -infinity goes to
// `smallest`.
BATON_DEVICE uint64_t LargestOf(const Row& row, float& smallest, SampleShared& memory) {
  float largest = kMinusInfinity;
  uint32_t largest_token = 0;
  smallest = -kMinusInfinity;
  ForTokens<4>(row, [&](uint32_t first, const float(&l)[4][kTokensOfLoad]) {
    BATON_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      BATON_UNROLL
      for (uint32_t k = 0; k < kTokensOfLoad; ++k) {
        const float each = l[i][k];
        if (each > largest) {  // the first of equal ones: a thread's tokens ascend
          largest = each;
          largest_token = first + i * kTokensOfPass + k;
        }
        if (each < smallest && each > kMinusInfinity) smallest = each;
      }
    }
  });
  const uint64_t inverted = CtaMax(~uint64_t{OrderOf(smallest)}, memory);
  smallest = ValueOfOrder(~static_cast<uint32_t>(inverted));
  return CtaMax(RankOf(largest, largest_token), memory);
}

BATON_KERNEL(kSampleThreads) SampleKernel(SampleParams params) {
  simt::wait_for_previous();
  auto& memory = simt::shared<SampleShared>();
  const uint32_t row_index = simt::block().x;
  // Read where it is needed: registers are short.
  const RowSampling& how = params.rows[row_index];
  uint32_t* const out = params.tokens + row_index;
  if (how.on_device == 0) {
    if (simt::thread() == 0) *out = kNoToken;
    return;
  }
  Row row = {};
  row.logits = params.logits + size_t{row_index} * params.vocab_size;
  row.vocab_size = params.vocab_size;
  row.has_vectors = params.vocab_size % kTokensOfLoad == 0 &&
                    reinterpret_cast<uintptr_t>(params.logits) % sizeof(simt::Vec16) == 0;
  row.temperature = 1.0f;
  row.edge = ValueOfOrder(static_cast<uint32_t>(kLowestRank >> 32));
  row.edge_token = TokenOfRank(kLowestRank);
  float smallest;
  uint64_t best = LargestOf(row, smallest, memory);
  row.largest = ValueOfOrder(static_cast<uint32_t>(best >> 32));
  const bool any = row.largest > kMinusInfinity && row.largest < -kMinusInfinity;
  if (any && how.temperature > 0.0f) {
    ScaleBy(how.temperature, smallest, row);
    if (how.top_k > 0 && how.top_k < row.vocab_size) Filter<false>({how.top_k, 1.0f}, row, memory);
    if (how.top_p < 1.0f) Filter<true>({0, how.top_p}, row, memory);
    best = BestOf(row, how, memory);
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
}  // namespace baton::kernels::cuda
