// The kernels of a mixture of experts on the runner: every shape in every order gives the bits of
// the reference, whatever the rows choose, and everything is written.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/experts_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/ops.h"
#include "kernels/simt/arena.h"
#include "kernels/simt/run_options.h"
#include "src/device/thread_pool.h"
#include "src/model/expert_choice.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/mutation.h"
#include "tests/kernels/simt/other_gpus.h"
#include "tests/test_seed.h"

namespace baton::kernels::cuda {

using device::ThreadPool;

namespace {

using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using simt_test::FromDevice;
using simt_test::OnDevice;
using simt_test::RandomBf16;
using simt_test::RandomFloats;
using simt_test::SameBits;
using testing::HasSubstr;

const KernelTable& Table() { return runner::Kernels(); }

// rows choose top_k of num_experts.
struct Choice {
  uint32_t rows;
  uint32_t num_experts;
  uint32_t top_k;

  uint32_t num_pairs() const { return rows * top_k; }
};

std::string Name(const Choice& c) {
  return fmt::format("{} rows, {} of {} experts", c.rows, c.top_k, c.num_experts);
}

// ---- Route.

enum class Logits { kRandom, kTies, kOneBad };

std::vector<float> RandomLogits(const Choice& c, Logits kind, uint64_t seed) {
  TestRandom random(seed);
  std::vector<float> logits(size_t{c.rows} * c.num_experts);
  for (float& logit : logits) {
    logit = kind == Logits::kTies ? static_cast<float>(random.Below(4)) - 2.0f
                                  : static_cast<float>(random.Below(20001)) / 500.0f - 20.0f;
    if (kind == Logits::kTies && logit == 0.0f && random.OneIn(2)) logit = -0.0f;
  }
  if (kind == Logits::kOneBad) {
    const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                         std::numeric_limits<float>::infinity(),
                         -std::numeric_limits<float>::infinity()};
    for (uint32_t row = 0; row < c.rows; row += 2) {
      logits[size_t{row} * c.num_experts + random.Below(c.num_experts)] = bad[row / 2 % 3];
    }
  }
  return logits;
}

// Equal bits, or both NaN.
bool SameWeights(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return SameBits(&x, &y, sizeof(x)) || (std::isnan(x) && std::isnan(y));
  });
}

// The experts that each row chose, and their weights.
struct Routed {
  std::vector<uint32_t> experts;
  std::vector<float> weights;
};

std::string RunRoute(const Choice& c, const std::vector<float>& logits, RouteScores scores,
                     Routed& out) {
  SimBuffer in = OnDevice(logits, "logits");
  SimBuffer bias(c.num_experts * sizeof(float), "bias");
  if (scores.bias != nullptr) {
    std::memcpy(bias.data(), scores.bias, bias.size());
    scores.bias = bias.as<float>();
  }
  SimBuffer experts(c.num_pairs() * sizeof(uint32_t), "experts");
  SimBuffer weights(c.num_pairs() * sizeof(float), "weights");
  const absl::Status status =
      Table().route({in.as<float>(), experts.as<uint32_t>(), weights.as<float>(), c.rows,
                     c.num_experts, c.top_k, scores},
                    nullptr);
  if (!status.ok()) return std::string(status.message());
  out = {FromDevice<uint32_t>(experts), FromDevice<float>(weights)};
  return "";
}

// The first difference from what the kernel promises, or "".
std::string CheckRoute(const Choice& c, Logits kind, const RouteScores& scores = {}) {
  const std::vector<float> logits = RandomLogits(c, kind, 1);
  Routed expected = {std::vector<uint32_t>(c.num_pairs()), std::vector<float>(c.num_pairs())};
  ReferenceRoute({logits.data(), expected.experts.data(), expected.weights.data(), c.rows,
                  c.num_experts, c.top_k, scores});
  Routed got;
  if (std::string fault = RunRoute(c, logits, scores, got); !fault.empty()) return fault;
  if (got.experts != expected.experts) return Name(c) + ": other experts";
  return SameWeights(got.weights, expected.weights) ? "" : Name(c) + ": other weights";
}

// Biases by which other experts are chosen than by logits; some are equal.
std::vector<float> RandomBiases(uint32_t num_experts) {
  TestRandom random(3);
  std::vector<float> biases(num_experts);
  for (float& bias : biases) bias = static_cast<float>(random.Below(9)) / 4.0f - 1.0f;
  return biases;
}

// The first difference of scores that choose, in every form of the rule.
std::string CheckScores(const Choice& c, Logits kind) {
  const std::vector<float> biases = RandomBiases(c.num_experts);
  for (const bool sum_to_one : {false, true}) {
    const RouteScores scores = {biases.data(), sum_to_one, 1e-6f, sum_to_one ? 1.0f : 2.5f};
    if (std::string fault = CheckRoute(c, kind, scores); !fault.empty()) return fault + ", scored";
  }
  return "";
}

// ---- SortPairs.

// Experts of each pair; with `skew`, most rows choose the same.
std::vector<uint32_t> RandomExperts(const Choice& c, bool skew) {
  TestRandom random(2);
  std::vector<uint32_t> experts;
  for (uint32_t row = 0; row < c.rows; ++row) {
    const uint32_t first =
        skew && !random.OneIn(8) ? c.num_experts - 1 : random.Below(c.num_experts);
    for (uint32_t j = 0; j < c.top_k; ++j) experts.push_back((first + j) % c.num_experts);
  }
  return experts;
}

// The results of SortPairs, computed on the host.
struct Sorted {
  explicit Sorted(const Choice& c, uint32_t tile_rows)
      : slots(c.num_pairs()),
        slot_rows(c.num_pairs()),
        begins(c.num_experts),
        tiles(MaxExpertTiles(c.num_pairs(), c.num_experts, tile_rows), {kNone, kNone, kNone}) {}

  static constexpr uint32_t kNone = 0xFFFFFFFF;  // what no sort has written

  std::vector<uint32_t> slots;
  std::vector<uint32_t> slot_rows;
  std::vector<uint32_t> begins;
  std::vector<ExpertTile> tiles;
  uint32_t num_tiles = 0;
};

Sorted SortOnHost(const Choice& c, uint32_t tile_rows, const std::vector<uint32_t>& experts) {
  Sorted out(c, tile_rows);
  ReferenceSortPairs({experts.data(), out.slots.data(), out.slot_rows.data(), out.begins.data(),
                      out.tiles.data(), &out.num_tiles, nullptr, c.num_pairs(), c.num_experts,
                      c.top_k, tile_rows});
  return out;
}

std::string CheckSortPairs(const Choice& c, uint32_t tile_rows, bool skew = false) {
  const std::vector<uint32_t> experts = RandomExperts(c, skew);
  const Sorted expected = SortOnHost(c, tile_rows, experts);
  SimBuffer in = OnDevice(experts, "experts");
  SimBuffer slots(experts.size() * sizeof(uint32_t), "slots");
  SimBuffer slot_rows(experts.size() * sizeof(uint32_t), "slot_rows");
  SimBuffer begins(c.num_experts * sizeof(uint32_t), "begins");
  SimBuffer tiles(expected.tiles.size() * sizeof(ExpertTile), "tiles");
  SimBuffer num_tiles(sizeof(uint32_t), "num_tiles");
  SimBuffer arrivals = OnDevice(std::vector<uint32_t>{0}, "arrivals");
  for (int again = 0; again < 2; ++again) {  // the second launch finds the arrivals of the first
    const absl::Status status = Table().sort_pairs(
        {in.as<uint32_t>(), slots.as<uint32_t>(), slot_rows.as<uint32_t>(), begins.as<uint32_t>(),
         tiles.as<ExpertTile>(), num_tiles.as<uint32_t>(), arrivals.as<uint32_t>(), c.num_pairs(),
         c.num_experts, c.top_k, tile_rows},
        nullptr);
    if (!status.ok()) return std::string(status.message());
    if (FromDevice<uint32_t>(slots) != expected.slots) return Name(c) + ": other slots";
    if (FromDevice<uint32_t>(slot_rows) != expected.slot_rows) return Name(c) + ": other rows";
    if (FromDevice<uint32_t>(begins) != expected.begins) return Name(c) + ": other begins";
    if (*num_tiles.as<uint32_t>() != expected.num_tiles) return Name(c) + ": other tiles";
    const size_t bytes = expected.num_tiles * sizeof(ExpertTile);
    if (!SameBits(tiles.data(), expected.tiles.data(), bytes)) return Name(c) + ": other tiles";
    if (*arrivals.as<uint32_t>() != 0) return "arrivals are not set back";
  }
  return "";
}

// ---- GroupedGemm.

struct GroupedCase {
  Choice choice;
  uint32_t n;
  uint32_t k;
  uint32_t tile_rows;
  bool gathers = true;  // rows of x by slot_rows; else a row of x for each slot
  bool skew = false;
};

std::string Name(const GroupedCase& c) {
  return fmt::format("{} x {}, tiles of {}, {}", c.n, c.k, c.tile_rows, Name(c.choice));
}

// Operands on the host and on the device.
struct GroupedOperands {
  explicit GroupedOperands(const GroupedCase& c)
      : sorted(SortOnHost(c.choice, c.tile_rows, RandomExperts(c.choice, c.skew))),
        num_x_rows(c.gathers ? c.choice.rows : c.choice.num_pairs()),
        x(RandomBf16(num_x_rows * c.k, 3)),
        w(RandomBf16(size_t{c.choice.num_experts} * c.n * c.k, 4)),
        x_device(OnDevice(x, "x")),
        w_device(OnDevice(w, "w")),
        slot_rows(OnDevice(sorted.slot_rows, "slot_rows")),
        tiles(OnDevice(sorted.tiles, "tiles")),
        num_tiles(OnDevice(std::vector<uint32_t>{sorted.num_tiles}, "num_tiles")) {}

  Sorted sorted;
  size_t num_x_rows;
  std::vector<Bf16> x;
  std::vector<Bf16> w;
  SimBuffer x_device;
  SimBuffer w_device;
  SimBuffer slot_rows;
  SimBuffer tiles;
  SimBuffer num_tiles;
};

std::string CheckGroupedGemm(const GroupedCase& c) {
  GroupedOperands on(c);
  const size_t num_outputs = size_t{c.choice.num_pairs()} * c.n;
  SimBuffer y(num_outputs * sizeof(Bf16), "y");
  const absl::Status status = Table().grouped_gemm(
      {on.x_device.as<Bf16>(), c.gathers ? on.slot_rows.as<uint32_t>() : nullptr,
       on.w_device.as<Bf16>(), y.as<Bf16>(), on.tiles.as<ExpertTile>(), on.num_tiles.as<uint32_t>(),
       static_cast<uint32_t>(on.sorted.tiles.size()), c.tile_rows, c.n, c.k},
      nullptr);
  if (!status.ok()) return Name(c) + ": " + std::string(status.message());
  std::vector<Bf16> expected(num_outputs);
  ReferenceGroupedGemmBits(
      {on.x.data(), c.gathers ? on.sorted.slot_rows.data() : nullptr, on.w.data(), expected.data(),
       on.sorted.tiles.data(), &on.sorted.num_tiles, on.sorted.num_tiles, c.tile_rows, c.n, c.k},
      simt_test::CurrentCore());
  return SameBits(y.data(), expected.data(), y.size()) ? "" : Name(c) + ": other bits";
}

// ---- Combine.

std::string CheckCombine(uint32_t rows, uint32_t top_k, uint32_t dim) {
  const Choice c = {rows, top_k, top_k};
  const std::vector<uint32_t> slots = SortOnHost(c, 8, RandomExperts(c, false)).slots;
  const std::vector<Bf16> y = RandomBf16(slots.size() * dim, 5);
  const std::vector<float> weights = RandomFloats(slots.size(), 6, 1.0f);
  SimBuffer y_device = OnDevice(y, "y");
  SimBuffer slots_device = OnDevice(slots, "slots");
  SimBuffer weights_device = OnDevice(weights, "weights");
  SimBuffer out(size_t{rows} * dim * sizeof(Bf16), "out");
  const absl::Status status =
      Table().combine({y_device.as<Bf16>(), slots_device.as<uint32_t>(), weights_device.as<float>(),
                       out.as<Bf16>(), rows, top_k, dim},
                      nullptr);
  if (!status.ok()) return std::string(status.message());
  std::vector<Bf16> expected(size_t{rows} * dim);
  ReferenceCombine({y.data(), slots.data(), weights.data(), expected.data(), rows, top_k, dim});
  if (!SameBits(out.data(), expected.data(), out.size())) return "out has other bits";
  // The kernel gives the same sums in fp32.
  SimBuffer sums(size_t{rows} * dim * sizeof(float), "sums");
  std::vector<float> exact(size_t{rows} * dim);
  CombineParams params = {y_device.as<Bf16>(),
                          slots_device.as<uint32_t>(),
                          weights_device.as<float>(),
                          nullptr,
                          rows,
                          top_k,
                          dim,
                          sums.as<float>()};
  if (const absl::Status sum = Table().combine(params, nullptr); !sum.ok()) {
    return std::string(sum.message());
  }
  ReferenceCombine(
      {y.data(), slots.data(), weights.data(), nullptr, rows, top_k, dim, exact.data()});
  return SameBits(sums.data(), exact.data(), sums.size()) ? "" : "the sums have other bits";
}

class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(EveryOrder, RouteHasTheBitsOfTheReference) {
  for (const Choice& c : {Choice{0, 8, 2}, Choice{1, 1, 1}, Choice{5, 7, 7}, Choice{7, 33, 5},
                          Choice{3, 128, 8}, Choice{2, 67, 64}}) {
    for (const Logits kind : {Logits::kRandom, Logits::kTies, Logits::kOneBad}) {
      EXPECT_EQ(CheckRoute(c, kind), "");
      EXPECT_EQ(CheckScores(c, kind), "");
    }
  }
}

TEST_P(EveryOrder, SortPairsHasTheBitsOfTheReference) {
  for (const Choice& c : {Choice{0, 5, 2}, Choice{1, 1, 1}, Choice{1, 67, 8}, Choice{13, 7, 3},
                          Choice{67, 5, 2}, Choice{29, 37, 3}}) {
    EXPECT_EQ(CheckSortPairs(c, kExpertFewRows), "");
    EXPECT_EQ(CheckSortPairs(c, kExpertManyRows, /*skew=*/true), "");
  }
}

TEST_P(EveryOrder, GroupedGemmHasTheBitsOfTheModel) {
  for (const GroupedCase& c : {
           GroupedCase{{5, 3, 2}, 67, 328, kExpertFewRows},
           // Three segments, tiles that are full and one that is not.
           GroupedCase{{11, 2, 1}, 3, 584, kExpertFewRows, /*gathers=*/false, /*skew=*/true},
           GroupedCase{{35, 3, 2}, 65, 264, kExpertManyRows, /*gathers=*/true, /*skew=*/true},
       }) {
    EXPECT_EQ(CheckGroupedGemm(c), "");
  }
}

TEST_P(EveryOrder, CombineHasTheBitsOfTheReference) {
  for (const uint32_t dim : {8u, 1032u}) {
    for (const uint32_t rows : {0u, 1u, 5u}) EXPECT_EQ(CheckCombine(rows, 3, dim), "");
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(simt_test::AllOrdersAndGpus()));

TEST(Experts, RouteHasTheBitsOfTheProcessors) {
  ThreadPool pool(1);
  const Choice c = {64, 128, 8};
  for (const Logits kind : {Logits::kRandom, Logits::kTies}) {
    std::vector<float> logits = RandomLogits(c, kind, 7);
    Routed expected = {std::vector<uint32_t>(c.num_pairs()), std::vector<float>(c.num_pairs())};
    ReferenceOps().route(pool, {logits.data(), c.rows, c.num_experts, c.top_k,
                                expected.experts.data(), expected.weights.data()});
    Routed got;
    ASSERT_EQ(RunRoute(c, logits, {}, got), "");
    EXPECT_EQ(got.experts, expected.experts);
    EXPECT_TRUE(SameWeights(got.weights, expected.weights));
  }
}

TEST(Experts, ScoresChooseAsTheProcessorDoes) {
  const Choice c = {64, 32, 4};
  const std::vector<float> biases = RandomBiases(c.num_experts);
  for (const Logits kind : {Logits::kRandom, Logits::kTies}) {
    for (const bool sum_to_one : {false, true}) {
      const model::ExpertRule rule = {.score = model::ExpertScore::kSigmoid,
                                      .sum_to_one = sum_to_one,
                                      .scale = 1.5f,
                                      .least_sum = 1e-6f};
      const std::vector<float> logits = RandomLogits(c, kind, 7);
      Routed expected = {std::vector<uint32_t>(c.num_pairs()), std::vector<float>(c.num_pairs())};
      for (uint32_t row = 0; row < c.rows; ++row) {
        model::ChooseExperts(
            rule, std::span(logits).subspan(size_t{row} * c.num_experts, c.num_experts), biases,
            {std::span(expected.experts).subspan(size_t{row} * c.top_k, c.top_k),
             std::span(expected.weights).subspan(size_t{row} * c.top_k, c.top_k)});
      }
      Routed got;
      ASSERT_EQ(RunRoute(c, logits, {biases.data(), sum_to_one, rule.least_sum, rule.scale}, got),
                "");
      EXPECT_EQ(got.experts, expected.experts);
      EXPECT_TRUE(SameWeights(got.weights, expected.weights));
    }
  }
}

TEST(Experts, LargestShapes) {
  EXPECT_EQ(CheckScores({3, 1024, 64}, Logits::kTies), "");
  EXPECT_EQ(CheckRoute({3, 1024, 64}, Logits::kTies), "");
  // More experts than a cta has threads, in parts of two and unequal ones.
  EXPECT_EQ(CheckSortPairs({67, 131, 3}, kExpertFewRows), "");
  EXPECT_EQ(CheckSortPairs({64, 256, 8}, kExpertManyRows), "");
  EXPECT_EQ(CheckSortPairs({1024, 1, 1}, kExpertFewRows), "");
  EXPECT_EQ(CheckCombine(3, 64, 4096), "");
}

TEST(Experts, UglyProductsHaveTheBitsOfTheModel) {
  for (const uint32_t k : {8u, 56u, 256u, 264u}) {
    for (const uint32_t n : {1u, 63u, 65u}) {
      EXPECT_EQ(CheckGroupedGemm({{9, 4, 3}, n, k, kExpertFewRows, k % 3 == 0}), "");
      EXPECT_EQ(CheckGroupedGemm({{9, 4, 3}, n, k, kExpertManyRows, n == 63}), "");
    }
  }
  // More rows of one expert than a tile of many has.
  EXPECT_EQ(CheckGroupedGemm({{67, 2, 1}, 3, 40, kExpertManyRows, true, true}), "");
}

// In the words of the model: who shares a row's experts changes no bit of it.
TEST(Experts, AnExpertGivesARowTheBitsOfGemm) {
  const GroupedCase c = {{21, 3, 2}, 33, 584, kExpertFewRows};
  GroupedOperands on(c);
  SimBuffer y(size_t{c.choice.num_pairs()} * c.n * sizeof(Bf16), "y");
  ASSERT_TRUE(Table()
                  .grouped_gemm(
                      {on.x_device.as<Bf16>(), on.slot_rows.as<uint32_t>(), on.w_device.as<Bf16>(),
                       y.as<Bf16>(), on.tiles.as<ExpertTile>(), on.num_tiles.as<uint32_t>(),
                       static_cast<uint32_t>(on.sorted.tiles.size()), c.tile_rows, c.n, c.k},
                      nullptr)
                  .ok());
  SimBuffer counters = OnDevice(std::vector<uint32_t>(kGemmCounters), "counters");
  SimBuffer partials(GemmPartialBytes(1, c.n, c.k), "partials");
  for (uint32_t i = 0; i < on.sorted.num_tiles; ++i) {
    const ExpertTile& tile = on.sorted.tiles[i];
    SimBuffer alone(c.n * sizeof(Bf16), "alone");
    const size_t row = on.sorted.slot_rows[tile.first_slot];
    ASSERT_TRUE(Table()
                    .gemm_bf16({.x = on.x_device.as<Bf16>() + row * c.k,
                                .w = on.w_device.as<Bf16>() + size_t{tile.expert} * c.n * c.k,
                                .y_bf16 = alone.as<Bf16>(),
                                .m = 1,
                                .n = c.n,
                                .k = c.k,
                                .partials = partials.data(),
                                .counters = counters.as<uint32_t>(),
                                .partial_bytes = partials.size()},
                               nullptr)
                    .ok());
    const Bf16* together = y.as<Bf16>() + size_t{tile.first_slot} * c.n;
    EXPECT_TRUE(SameBits(alone.data(), together, alone.size())) << "tile " << i;
  }
}

TEST(Experts, TilesAreNeverMoreThanTheBound) {
  EXPECT_EQ(MaxExpertTiles(0, 8, 8), 0u);
  EXPECT_EQ(MaxExpertTiles(3, 8, 8), 3u);
  EXPECT_EQ(MaxExpertTiles(16384, 128, 64), 384u);
  // Every expert has one slot more than full tiles: nothing is left over.
  const Choice c = {9 * 5, 5, 1};
  std::vector<uint32_t> experts;
  for (uint32_t i = 0; i < c.rows; ++i) experts.push_back(i / 9);
  EXPECT_EQ(SortOnHost(c, 8, experts).num_tiles, MaxExpertTiles(c.num_pairs(), 5, 8));
}

TEST(Experts, CallsThatNoKernelTakesAreRefusedByName) {
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(message(Table().route({.num_experts = 4, .top_k = 5}, nullptr)),
              HasSubstr("Route: top 5 of 4 experts"));
  EXPECT_THAT(message(Table().route({.num_experts = 128, .top_k = 65}, nullptr)),
              HasSubstr("Route: top 65"));
  EXPECT_THAT(message(Table().sort_pairs({.num_experts = 0, .top_k = 1, .tile_rows = 8}, nullptr)),
              HasSubstr("SortPairs: 0 experts"));
  EXPECT_THAT(message(Table().grouped_gemm({.tile_rows = 16, .k = 8}, nullptr)),
              HasSubstr("GroupedGemm: 0 tiles of 16 rows"));
  EXPECT_THAT(message(Table().grouped_gemm({.max_tiles = 65536, .tile_rows = 8, .k = 8}, nullptr)),
              HasSubstr("GroupedGemm: 65536 tiles"));
  EXPECT_THAT(message(Table().grouped_gemm({.tile_rows = 8, .k = 12}, nullptr)),
              HasSubstr("GroupedGemm: dim 12"));
  EXPECT_THAT(message(Table().combine({.dim = 4}, nullptr)), HasSubstr("Combine: dim 4"));
}

TEST(Experts, MutantsAreNoticed) {
  const simt_test::Suite suite = [] {
    return CheckRoute({5, 67, 4}, Logits::kTies).empty() &&
           CheckRoute({5, 40, 2}, Logits::kOneBad).empty() &&
           CheckScores({5, 40, 2}, Logits::kOneBad).empty() &&
           CheckScores({5, 67, 35}, Logits::kTies).empty() &&
           CheckSortPairs({67, 5, 2}, kExpertFewRows).empty() &&
           CheckGroupedGemm({{5, 3, 2}, 66, 264, kExpertFewRows}).empty() &&
           CheckGroupedGemm({{5, 2, 1}, 66, 264, kExpertManyRows}).empty() &&
           CheckCombine(2, 3, 1032).empty();
  };
  simt_test::ExpectAllNoticed(suite, 20);
}

}  // namespace
}  // namespace baton::kernels::cuda
