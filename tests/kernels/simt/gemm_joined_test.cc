// Products that end with the work of the kernel after them, on the runner: in every order they have
// the bits of the two launches, for every number of rows, shape and path.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/gemm_segments.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/math.h"
#include "kernels/simt/arena.h"
#include "kernels/simt/run_options.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/mutation.h"
#include "tests/kernels/simt/rope_batch.h"

namespace baton::kernels::cuda {
namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;
using simt_test::FromDevice;
using simt_test::SameBits;
using testing::HasSubstr;

constexpr GemmPath kPaths[] = {GemmPath::kRows8, GemmPath::kRows32, GemmPath::kNarrow};

// The memory that every product is lent.
struct Lent {
  explicit Lent(const GemmParams& params)
      : partials(GemmPartialBytes(params.m, params.n, params.k), "partials"),
        counters(OnDevice(std::vector<uint32_t>(kGemmCounters), "counters")) {}

  void LendTo(GemmParams& params) {
    params.partials = partials.data();
    params.partial_bytes = partials.size();
    params.counters = counters.as<uint32_t>();
  }
  bool AreCountersZero() {
    for (uint32_t i = 0; i < kGemmCounters; ++i) {
      if (counters.as<uint32_t>()[i] != 0) return false;
    }
    return true;
  }

  SimBuffer partials;
  SimBuffer counters;
};

// The sums of the squares of each eight elements, which a product leaves with a residual.
std::vector<float> SquaresOf(const std::vector<Bf16>& rows) {
  std::vector<float> squares(rows.size() / 8);
  for (size_t i = 0; i < rows.size(); ++i) {
    const float value = FloatFromBf16(rows[i].bits);
    squares[i / 8] = std::fma(value, value, squares[i / 8]);
  }
  return squares;
}

// The norm of rows of k values, for the product that reads them; and by RmsNorm.
struct NormedX {
  NormedX(const std::vector<Bf16>& x, uint32_t m, uint32_t k)
      : weight(OnDevice(RandomBf16(k, 9), "weight")),
        squares(OnDevice(SquaresOf(x), "squares")),
        normed(x.size() * sizeof(Bf16), "normed") {
    SimBuffer nothing = OnDevice(std::vector<Bf16>(x.size()), "nothing");
    SimBuffer residual = OnDevice(x, "residual");
    EXPECT_TRUE(runner::Kernels()
                    .rms_norm({nothing.as<Bf16>(), residual.as<Bf16>(), weight.as<Bf16>(),
                               normed.as<Bf16>(), m, k, kEps},
                              nullptr)
                    .ok());
  }

  NormedRows Rows() { return {weight.as<Bf16>(), squares.as<float>(), kEps}; }

  static constexpr float kEps = 1e-5f;
  SimBuffer weight;
  SimBuffer squares;
  SimBuffer normed;
};

// `dim` gates and their ups from k values, of up to m rows.
struct GatedCase {
  uint32_t m;
  uint32_t dim;
  uint32_t k;
  GateKind gate = GateKind::kSilu;
  float scale = 1.0f;
  bool has_norm = false;  // of x
};

std::string Name(const GatedCase& c) {
  return fmt::format("{} x 2 x {} x {} {}", c.m, c.dim, c.k,
                     c.gate == GateKind::kSilu ? "silu" : "gelu");
}

// Operands on the runner, and what the launches make of them that do one thing each.
class Gates {
 public:
  explicit Gates(const GatedCase& c)
      : case_(c),
        x_(OnDevice(RandomBf16(size_t{c.m} * c.k, 6, c.scale), "x")),
        norm_(FromDevice<Bf16>(x_), c.m, c.k),
        w_(OnDevice(RandomBf16(size_t{2} * c.dim * c.k, 7), "w")),
        expected_(InTwoLaunches()) {}

  // Rows [0, m) in one launch; "" or what went wrong.
  std::string Run(uint32_t m, GemmPath path) {
    SimBuffer out(size_t{m} * case_.dim * sizeof(Bf16), "out");
    GemmParams product = Params(m, out);
    product.path = path;
    Lent lent(product);
    lent.LendTo(product);
    const NormedRows norm = case_.has_norm ? norm_.Rows() : NormedRows{};
    for (int again = 0; again < 2; ++again) {  // the second launch finds the counters of the first
      std::memset(out.data(), 0xFF, out.size());
      const absl::Status status =
          runner::Kernels().gemm_gated({product, case_.gate, norm}, nullptr);
      if (!status.ok()) return std::string(status.message());
      if (!lent.AreCountersZero()) return "a counter is not set back";
      if (!SameBits(out.data(), expected_.data(), out.size())) {
        return fmt::format("{} rows of {} by path {}: other bits", m, Name(case_),
                           static_cast<int>(path));
      }
    }
    return "";
  }

 private:
  GemmParams Params(uint32_t m, SimBuffer& y) {
    return {.x = x_.as<Bf16>(),
            .w = w_.as<Bf16>(),
            .y_bf16 = y.as<Bf16>(),
            .m = m,
            .n = 2 * case_.dim,
            .k = case_.k};
  }

  // The rows of gates and ups are moved apart, because the kernel of gates takes multiples of 8.
  std::vector<Bf16> InTwoLaunches() {
    SimBuffer y(size_t{case_.m} * 2 * case_.dim * sizeof(Bf16), "gate_up");
    GemmParams product = Params(case_.m, y);
    if (case_.has_norm) product.x = norm_.normed.as<Bf16>();
    Lent lent(product);
    lent.LendTo(product);
    EXPECT_TRUE(runner::Kernels().gemm_bf16(product, nullptr).ok());
    const std::vector<Bf16> gate_up = FromDevice<Bf16>(y);
    const uint32_t wide = (case_.dim + 7) / 8 * 8;
    std::vector<Bf16> padded(size_t{case_.m} * 2 * wide);
    for (size_t half = 0; half < size_t{2} * case_.m; ++half) {
      std::memcpy(&padded[half * wide], &gate_up[half * case_.dim], case_.dim * sizeof(Bf16));
    }
    SimBuffer in = OnDevice(padded, "padded");
    SimBuffer out(size_t{case_.m} * wide * sizeof(Bf16), "gated");
    const GateMulParams gates = {in.as<Bf16>(), out.as<Bf16>(), case_.m, wide};
    EXPECT_TRUE((case_.gate == GateKind::kSilu ? runner::Kernels().silu_mul(gates, nullptr)
                                               : runner::Kernels().gelu_mul(gates, nullptr))
                    .ok());
    std::vector<Bf16> expected(size_t{case_.m} * case_.dim);
    for (size_t row = 0; row < case_.m; ++row) {
      std::memcpy(&expected[row * case_.dim], out.as<Bf16>() + row * wide,
                  case_.dim * sizeof(Bf16));
    }
    return expected;
  }

  GatedCase case_;
  SimBuffer x_;
  NormedX norm_;
  SimBuffer w_;
  std::vector<Bf16> expected_;  // [m][dim]
};

// Q, k and v of a batch from k values a row.
struct HeadsCase {
  RopeCase rope;
  uint32_t k;
  bool has_bias = false;
  bool has_norm = false;  // of x
};

// Operands on the runner, and what the launches make of them that do one thing each.
class Heads {
 public:
  explicit Heads(const HeadsCase& c)
      : case_(c),
        batch_(c.rope),
        m_(batch_.host().num_rows),
        n_((c.rope.num_heads + 2 * c.rope.num_kv_heads) * c.rope.head_dim),
        x_(OnDevice(RandomBf16(size_t{m_} * c.k, 6), "x")),
        norm_(FromDevice<Bf16>(x_), m_, c.k),
        w_(OnDevice(RandomBf16(size_t{n_} * c.k, 7, c.rope.scale), "w")),
        bias_(OnDevice(RandomBf16(n_, 8, 16.0f), "bias")),
        expected_q_(size_t{m_} * c.rope.num_heads * c.rope.head_dim * sizeof(Bf16), "q"),
        expected_(batch_.ArenaBytes(), "blocks") {
    EXPECT_TRUE(batch_
                    .RunWith(expected_q_, expected_,
                             [this](RopeAppendParams rope) {
                               SimBuffer qkv(size_t{m_} * n_ * sizeof(Bf16), "qkv");
                               GemmParams product = Params(qkv);
                               if (case_.has_norm) product.x = norm_.normed.as<Bf16>();
                               rope.qkv = qkv.as<Bf16>();
                               Lent lent(product);
                               lent.LendTo(product);
                               absl::Status status = runner::Kernels().gemm_bf16(product, nullptr);
                               if (!status.ok()) return status;
                               return runner::Kernels().rope_append(rope, nullptr);
                             })
                    .ok());
  }

  // In one launch, twice: the second finds the counters of the first. "" or what went wrong.
  std::string Run(GemmPath path) {
    SimBuffer q(expected_q_.size(), "q");
    SimBuffer arena(expected_.size(), "blocks");
    std::string fault;
    const absl::Status status = batch_.RunWith(q, arena, [&](RopeAppendParams rope) {
      SimBuffer qkv(size_t{m_} * n_ * sizeof(Bf16), "qkv");
      GemmParams product = Params(qkv);
      product.path = path;
      rope.qkv = qkv.as<Bf16>();
      Lent lent(product);
      lent.LendTo(product);
      const uint32_t num_arrivals = RopeArrivals(case_.rope.num_heads, case_.rope.num_kv_heads);
      SimBuffer arrivals = OnDevice(std::vector<uint32_t>(num_arrivals), "arrivals");
      absl::Status done;
      for (int again = 0; again < 2 && done.ok(); ++again) {
        done = runner::Kernels().gemm_rope(
            {product, rope, arrivals.as<uint32_t>(), case_.has_norm ? norm_.Rows() : NormedRows{}},
            nullptr);
      }
      if (!lent.AreCountersZero()) fault = "a counter is not set back";
      for (const uint32_t arrived : FromDevice<uint32_t>(arrivals)) {
        if (arrived != 0) fault = "an arrival is not set back";
      }
      return done;
    });
    if (!status.ok()) return std::string(status.message());
    if (!fault.empty()) return fault;
    if (!SameBits(q.data(), expected_q_.data(), q.size())) return "another q";
    return SameBits(arena.data(), expected_.data(), arena.size()) ? "" : "other bytes in blocks";
  }

 private:
  GemmParams Params(SimBuffer& y) {
    return {.x = x_.as<Bf16>(),
            .w = w_.as<Bf16>(),
            .y_bf16 = y.as<Bf16>(),
            .bias_bf16 = case_.has_bias ? bias_.as<Bf16>() : nullptr,
            .m = m_,
            .n = n_,
            .k = case_.k};
  }

  HeadsCase case_;
  RopeBatch batch_;
  uint32_t m_;
  uint32_t n_;
  SimBuffer x_;
  NormedX norm_;
  SimBuffer w_;
  SimBuffer bias_;
  SimBuffer expected_q_;
  SimBuffer expected_;
};

// One segment and several; heads of a tile, of two and of four; rows of padding and of prompts.
std::vector<HeadsCase> HeadsCases(KvElement element) {
  return {{{.rows = {{0, 0, 1}}, .element = element}, 40},
          {{.interleaved = true,
            .rows = {{2, 14, 3}, {0, 15, 1}, {kPaddingRow, 0, 2}},
            .element = element},
           584,
           true},
          {{.head_dim = 128,
            .block_size = 32,
            .q_norm = true,
            .k_norm = true,
            .rows = {{1, 30, 4}, {kPaddingRow, 0, 1}, {2, 62, 4}},
            .element = element},
           264},
          {{.head_dim = 256,
            .num_heads = 1,
            .block_size = 64,
            .k_norm = true,
            .rows = {{kPaddingRow, 0, 1}, {0, 69, 1}, {1, 63, 1}},
            .element = element},
           72,
           true}};
}

// A product of up to m rows that is added to a residual of n columns.
struct SumCase {
  uint32_t m;
  uint32_t n;
  uint32_t k;
};

// Operands on the runner, and the residual that the two launches leave.
class Sums {
 public:
  explicit Sums(const SumCase& c)
      : case_(c),
        x_(OnDevice(RandomBf16(size_t{c.m} * c.k, 6), "x")),
        w_(OnDevice(RandomBf16(size_t{c.n} * c.k, 7, 0.1f), "w")),
        residual_(RandomBf16(size_t{c.m} * c.n, 8)) {
    SimBuffer added(residual_.size() * sizeof(Bf16), "added");
    SimBuffer residual = OnDevice(residual_, "residual");
    SimBuffer weight = OnDevice(RandomBf16(c.n, 9), "weight");
    SimBuffer normed(added.size(), "normed");
    GemmParams product = Params(c.m, added);
    Lent lent(product);
    lent.LendTo(product);
    EXPECT_TRUE(runner::Kernels().gemm_bf16(product, nullptr).ok());
    EXPECT_TRUE(runner::Kernels()
                    .rms_norm({added.as<Bf16>(), residual.as<Bf16>(), weight.as<Bf16>(),
                               normed.as<Bf16>(), c.m, c.n, 1e-5f},
                              nullptr)
                    .ok());
    expected_ = FromDevice<Bf16>(residual);
  }

  // Rows [0, m) in one launch; "" or what went wrong.
  std::string Run(uint32_t m) {
    const size_t count = size_t{m} * case_.n;
    SimBuffer residual =
        OnDevice(std::vector<Bf16>(residual_.begin(), residual_.begin() + count), "residual");
    SimBuffer squares(count / 8 * sizeof(float), "squares");
    GemmParams product = Params(m, residual);
    product.path = GemmPath::kNarrow;
    Lent lent(product);
    lent.LendTo(product);
    const absl::Status status = runner::Kernels().gemm_sum({product, squares.as<float>()}, nullptr);
    if (!status.ok()) return std::string(status.message());
    if (!lent.AreCountersZero()) return "a counter is not set back";
    if (!SameBits(residual.data(), expected_.data(), residual.size())) {
      return fmt::format("{} x {} x {}: another residual", m, case_.n, case_.k);
    }
    const std::vector<float> expected = SquaresOf(FromDevice<Bf16>(residual));
    return SameBits(squares.data(), expected.data(), squares.size()) ? "" : "other squares";
  }

 private:
  GemmParams Params(uint32_t m, SimBuffer& y) {
    return {.x = x_.as<Bf16>(),
            .w = w_.as<Bf16>(),
            .y_bf16 = y.as<Bf16>(),
            .m = m,
            .n = case_.n,
            .k = case_.k};
  }

  SumCase case_;
  SimBuffer x_;
  SimBuffer w_;
  std::vector<Bf16> residual_;  // [m][n], before
  std::vector<Bf16> expected_;  // and after
};

class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(EveryOrder, GatesHaveTheBitsOfTwoLaunches) {
  // One segment in one stage, and in four; three segments.
  for (const GatedCase& c :
       {GatedCase{3, 33, 40}, GatedCase{17, 31, 256, GateKind::kGelu}, GatedCase{9, 35, 584}}) {
    Gates gates(c);
    for (const GemmPath path : kPaths) EXPECT_EQ(gates.Run(c.m, path), "");
  }
}

TEST_P(EveryOrder, HeadsHaveTheBitsOfTwoLaunches) {
  for (const KvElement element : {KvElement::kBf16, KvElement::kFp8}) {
    for (const HeadsCase& c : HeadsCases(element)) {
      Heads heads(c);
      for (const GemmPath path : kPaths) {
        EXPECT_EQ(heads.Run(path), "")
            << c.rope.head_dim << " dims, path " << static_cast<int>(path);
      }
    }
  }
}

TEST_P(EveryOrder, NormsHaveTheBitsOfALaunchForEach) {
  // One segment, and several; a norm of two trees that end in the middle of one.
  for (const SumCase& c : {SumCase{3, 72, 40}, SumCase{8, 136, 584}}) {
    EXPECT_EQ(Sums(c).Run(c.m), "");
  }
  for (const GatedCase& c : {GatedCase{3, 33, 40}, GatedCase{8, 35, 584, GateKind::kGelu}}) {
    GatedCase normed = c;
    normed.has_norm = true;
    EXPECT_EQ(Gates(normed).Run(c.m, GemmPath::kNarrow), "");
  }
  HeadsCase heads = HeadsCases(KvElement::kBf16)[1];
  heads.has_norm = true;
  EXPECT_EQ(Heads(heads).Run(GemmPath::kNarrow), "");
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(AllOrders(2)));

TEST(GemmGated, EveryNumberOfRowsHasTheBitsOfTwoLaunches) {
  for (const GatedCase& c :
       {GatedCase{kMaxJoinedRows, 34, 72}, GatedCase{kMaxJoinedRows, 9, 600, GateKind::kGelu}}) {
    Gates gates(c);
    for (uint32_t m = 1; m <= kMaxJoinedRows; ++m) {
      EXPECT_EQ(gates.Run(m, GemmPath::kAuto), "");
      for (const GemmPath path : kPaths) EXPECT_EQ(gates.Run(m, path), "");
    }
  }
}

TEST(GemmGated, UglyShapesHaveTheBitsOfTwoLaunches) {
  for (const uint32_t dim : {1u, 7u, 8u, 31u, 32u, 33u, 64u, 65u, 131u}) {
    for (const uint32_t k : {8u, 64u, 72u, 264u}) {
      Gates gates({5, dim, k, k % 3 == 0 ? GateKind::kSilu : GateKind::kGelu});
      for (const GemmPath path : kPaths) EXPECT_EQ(gates.Run(5, path), "");
    }
  }
}

TEST(GemmGated, HugeAndTinyValuesHaveTheBitsOfTwoLaunches) {
  for (const float scale : {100.0f, 1e20f, 1e-20f, 0.0f}) {
    for (const GateKind gate : {GateKind::kSilu, GateKind::kGelu}) {
      Gates gates({3, 40, 328, gate, scale});
      for (const GemmPath path : kPaths) EXPECT_EQ(gates.Run(3, path), "");
    }
  }
}

TEST(GemmGated, CallsThatNoKernelTakesAreRefusedByName) {
  SimBuffer y(64, "y");
  const GatedGemmParams good = {{.y_bf16 = y.as<Bf16>(), .m = 1, .n = 2, .k = 8}, GateKind::kSilu};
  const auto message = [](const GatedGemmParams& params) {
    return std::string(runner::Kernels().gemm_gated(params, nullptr).message());
  };
  GatedGemmParams params = good;
  params.product.k = 4;
  EXPECT_THAT(message(params), HasSubstr("GemmGated: dim 4"));
  params = good;
  params.product.n = 3;
  EXPECT_THAT(message(params), HasSubstr("GemmGated: 3 rows of w; they are even"));
  params = good;
  params.product.y_bf16 = nullptr;
  params.product.y_float = y.as<float>();
  EXPECT_THAT(message(params), HasSubstr("y is bf16"));
  params = good;
  params.product.bias_float = y.as<float>();
  EXPECT_THAT(message(params), HasSubstr("has no bias"));
  params = good;
  params.product.m = kMaxJoinedRows + 1;
  EXPECT_THAT(message(params), HasSubstr("33 rows, or a path of many; it takes 32"));
  params = good;
  params.product.path = GemmPath::kTile64;
  EXPECT_THAT(message(params), HasSubstr("or a path of many"));
  params = good;
  params.product.k = 512;
  EXPECT_THAT(message(params), HasSubstr("0 bytes for partial sums, 16384 are needed"));
  params.product.m = 0;
  EXPECT_EQ(message(params), "") << "nothing to do";
}

// Mutants of a ring whose slots are filled again, which is so in other suites: GemmNormed's here,
// and GemmNarrow's.
const std::vector<simt_test::Equivalent>& MutantsOfReusedSlots() {
  static const std::vector<simt_test::Equivalent> mutants = {
      {"simt::wgmma_wait<1>();", simt::Mutation::kWaitForFewer, "no slot is given back"},
      {"if (i > 0 && simt::lane() == 0) simt::mbar_arrive(&memory.empty[(i - 1) % "
       "Shared::kSlots]);",
       simt::Mutation::kDropArrive, "nobody waits for a slot"}};
  return mutants;
}

TEST(GemmGated, MutantsAreNoticed) {
  Gates whole({3, 34, 8});
  Gates spread({9, 34, 264, GateKind::kGelu});
  const simt_test::Suite suite = [&] {
    return whole.Run(3, GemmPath::kRows8).empty() && whole.Run(3, GemmPath::kNarrow).empty() &&
           spread.Run(9, GemmPath::kRows32).empty() && spread.Run(9, GemmPath::kNarrow).empty();
  };
  simt_test::ExpectAllNoticed(suite, 30, MutantsOfReusedSlots());
}

TEST(GemmRope, EveryNumberOfRowsHasTheBitsOfTwoLaunches) {
  for (uint32_t m = 1; m <= kMaxJoinedRows; ++m) {
    const uint32_t head_dim = m % 3 == 0 ? 128 : 64;
    HeadsCase c = {{.head_dim = head_dim, .num_heads = 1, .k_norm = true}, 72};
    // Two prompts and a row of padding between them, as far as there are rows.
    c.rope.rows = {{1, m, (m + 1) / 2}};
    if (m > 2) c.rope.rows.push_back({kPaddingRow, 0, 1});
    if (m > 1) c.rope.rows.push_back({2, 3, m / 2 - (m > 2 ? 1 : 0)});
    c.rope.element = m % 2 == 0 ? KvElement::kBf16 : KvElement::kFp8;
    Heads heads(c);
    EXPECT_EQ(heads.Run(GemmPath::kAuto), "") << m;
    for (const GemmPath path : kPaths) EXPECT_EQ(heads.Run(path), "") << m << " rows";
  }
}

TEST(GemmRope, CallsThatNoKernelTakesAreRefusedByName) {
  SimBuffer y(64, "y");
  RopeGemmParams good = {
      {.y_bf16 = y.as<Bf16>(), .m = 1, .n = 4 * 128, .k = 8},
      {.qkv = y.as<Bf16>(), .kv = {nullptr, 8192, 1, 128, 16}, .num_rows = 1, .num_heads = 2},
      y.as<uint32_t>()};
  const auto message = [](const RopeGemmParams& params) {
    return std::string(runner::Kernels().gemm_rope(params, nullptr).message());
  };
  RopeGemmParams params = good;
  params.product.k = 4;
  EXPECT_THAT(message(params), HasSubstr("GemmRope: dim 4"));
  params = good;
  params.rope.kv.head_dim = 96;
  EXPECT_THAT(message(params), HasSubstr("GemmRope: head_dim 96"));
  params = good;
  params.product.n = 384;
  EXPECT_THAT(message(params), HasSubstr("1 x 384 is not what 1 rows of 512 are read from"));
  params = good;
  params.rope.num_rows = 2;
  EXPECT_THAT(message(params), HasSubstr("2 rows of 512"));
  params = good;
  params.rope.qkv = nullptr;
  EXPECT_THAT(message(params), HasSubstr("is not what"));
  params.product.y_bf16 = nullptr;
  params.product.y_float = y.as<float>();
  EXPECT_THAT(message(params), HasSubstr("is not what"));
  params = good;
  params.arrivals = nullptr;
  EXPECT_THAT(message(params), HasSubstr("no arrivals"));
  params = good;
  params.product.m = params.rope.num_rows = kMaxJoinedRows + 1;
  EXPECT_THAT(message(params), HasSubstr("33 rows, or a path of many"));
  params = good;
  params.product.m = params.rope.num_rows = 0;
  EXPECT_EQ(message(params), "") << "nothing to do";
}

TEST(GemmRope, MutantsAreNoticed) {
  Heads one(HeadsCases(KvElement::kBf16)[1]);
  Heads two(HeadsCases(KvElement::kFp8)[2]);
  const simt_test::Suite suite = [&] {
    return one.Run(GemmPath::kRows8).empty() && two.Run(GemmPath::kNarrow).empty() &&
           two.Run(GemmPath::kRows8).empty();
  };
  simt_test::ExpectAllNoticed(suite, 40, MutantsOfReusedSlots());
}

TEST(GemmNormed, EveryNumberOfRowsHasTheBitsOfALaunchForEach) {
  Sums sums({kMaxNormedRows, 200, 328});
  Gates gates({kMaxNormedRows, 40, 328, GateKind::kSilu, 1.0f, true});
  for (uint32_t m = 1; m <= kMaxNormedRows; ++m) {
    EXPECT_EQ(sums.Run(m), "");
    EXPECT_EQ(gates.Run(m, GemmPath::kNarrow), "");
    // Heads of a tile, and of two that meet.
    HeadsCase heads = {{.head_dim = m % 2 == 0 ? 64u : 128u, .rows = {{1, 3, m}}}, 328};
    heads.has_norm = true;
    EXPECT_EQ(Heads(heads).Run(GemmPath::kNarrow), "") << m << " rows";
  }
}

// The largest norm; one tree, a part of one, and trees that a warp has in turns.
TEST(GemmNormed, EveryWidthHasTheBitsOfALaunchForEach) {
  for (const uint32_t dim : {8u, 56u, 64u, 248u, 256u, 264u, 1032u, kMaxNormedDim}) {
    EXPECT_EQ(Sums({2, dim, 72}).Run(2), "");
    for (const float scale : {1.0f, 1e15f, 0.0f}) {
      EXPECT_EQ(Gates({2, 9, dim, GateKind::kSilu, scale, true}).Run(2, GemmPath::kNarrow), "")
          << dim;
    }
  }
}

// Squares that overflow and that vanish; rows of infinities, whose norm is NaN.
TEST(GemmNormed, HugeAndTinyValuesHaveTheBitsOfALaunchForEach) {
  for (const float scale : {1e25f, 1e-25f, INFINITY}) {
    EXPECT_EQ(Gates({3, 40, 328, GateKind::kSilu, scale, true}).Run(3, GemmPath::kNarrow), "")
        << scale;
  }
}

// So many rows of w are one segment, which takes more stages than the ring has slots.
GatedCase ManyTiles(uint32_t m) {
  return {m, 32 * kGemmTargetTiles - 3, 9 * 64 + 8, GateKind::kSilu, 1.0f, true};
}

TEST(GemmNormed, SlotsAreUsedAgain) {
  RunOptions options;
  options.tensor_math = simt::TensorMath::kFloat;
  ScopedRunOptions scope(options);
  Gates gates(ManyTiles(3));
  EXPECT_EQ(gates.Run(3, GemmPath::kNarrow), "");
}

TEST(GemmNormed, CallsThatNoKernelTakesAreRefusedByName) {
  SimBuffer y(64, "y");
  SumGemmParams good = {{.y_bf16 = y.as<Bf16>(), .m = 1, .n = 8, .k = 8, .path = GemmPath::kNarrow},
                        y.as<float>()};
  const auto message = [](const SumGemmParams& params) {
    return std::string(runner::Kernels().gemm_sum(params, nullptr).message());
  };
  SumGemmParams params = good;
  params.product.n = 12;
  EXPECT_THAT(message(params), HasSubstr("GemmSum: a norm of 1 x 12"));
  params = good;
  params.product.n = kMaxNormedDim + 8;
  EXPECT_THAT(message(params), HasSubstr("a norm of 1 x 4104, or a path without wgmma"));
  params = good;
  params.product.m = kMaxNormedRows + 1;
  EXPECT_THAT(message(params), HasSubstr("a norm of 9 x 8"));
  params = good;
  params.product.path = GemmPath::kAuto;
  EXPECT_THAT(message(params), HasSubstr("or a path without wgmma"));
  params = good;
  params.product.y_bf16 = nullptr;
  params.product.y_float = y.as<float>();
  EXPECT_THAT(message(params), HasSubstr("the residual is bf16"));
  params = good;
  params.squares = nullptr;
  EXPECT_THAT(message(params), HasSubstr("GemmSum: a norm without its squares"));
  GatedGemmParams gated = {good.product, GateKind::kSilu, {y.as<Bf16>(), y.as<float>(), 1e-5f}};
  gated.product.path = GemmPath::kRows8;
  EXPECT_THAT(std::string(runner::Kernels().gemm_gated(gated, nullptr).message()),
              HasSubstr("GemmGated: a norm of 1 x 8, or a path without wgmma"));
  gated.product.path = GemmPath::kNarrow;
  gated.norm.squares = nullptr;
  EXPECT_THAT(std::string(runner::Kernels().gemm_gated(gated, nullptr).message()),
              HasSubstr("GemmGated: a norm without its squares"));
}

// True when all products of few stages have their bits.
bool NormsAreRight(Sums& whole, Sums& spread, Gates& gates) {
  return whole.Run(3).empty() && spread.Run(7).empty() && gates.Run(3, GemmPath::kNarrow).empty();
}

TEST(GemmNormed, MutantsAreNoticed) {
  Sums whole({3, 72, 8});
  Sums spread({7, 72, 264});
  Gates gates({3, 9, 264, GateKind::kSilu, 1.0f, true});
  const simt_test::Suite suite = [&] { return NormsAreRight(whole, spread, gates); };
  std::vector<simt_test::Equivalent> equivalents = MutantsOfReusedSlots();
  equivalents.push_back(
      {"simt::sync_block();  // the last stage may lie in the slot", simt::Mutation::kDropSyncBlock,
       "the runner's wgmma ends in all warps of a warpgroup at once; a GPU's does "
       "not promise it, and cp.async of GatedRows does not do it"});
  simt_test::ExpectAllNoticed(suite, 30, equivalents);
}

// The mutants that a suite meets.
std::vector<simt::Mutant> MutantsOf(const simt_test::Suite& suite) {
  simt::MutantRecorder recorder;
  EXPECT_TRUE(suite()) << "without a mutant";
  return recorder.Found();
}

// Mutants that few stages do not meet, or do not notice. In fast arithmetic: many ctas take long.
TEST(GemmNormed, MutantsOfSlotsThatAreUsedAgainAreNoticed) {
  Sums whole({3, 72, 8});
  Sums spread({7, 72, 264});
  Gates gates({3, 9, 264, GateKind::kSilu, 1.0f, true});
  const std::vector<simt::Mutant> met =
      MutantsOf([&] { return NormsAreRight(whole, spread, gates); });
  RunOptions fast;
  fast.tensor_math = simt::TensorMath::kFloat;
  ScopedRunOptions scope(fast);
  Gates many(ManyTiles(1));
  const simt_test::Suite suite = [&] {
    ScopedRunOptions each(fast);
    return many.Run(1, GemmPath::kNarrow).empty();
  };
  uint32_t num_mutants = 0;
  for (const simt::Mutant& mutant : MutantsOf(suite)) {
    const std::string line = simt_test::SourceLine(mutant.file, mutant.line);
    const bool is_known = std::find(met.begin(), met.end(), mutant) != met.end();
    const bool is_listed = std::any_of(MutantsOfReusedSlots().begin(), MutantsOfReusedSlots().end(),
                                       [&](const simt_test::Equivalent& one) {
                                         return one.text == line && one.mutation == mutant.mutation;
                                       });
    if (is_known && !is_listed) continue;
    EXPECT_TRUE(simt_test::IsNoticed(mutant, suite)) << line << MutationName(mutant.mutation);
    ++num_mutants;
  }
  EXPECT_GE(num_mutants, 3u);
}

}  // namespace
}  // namespace baton::kernels::cuda
