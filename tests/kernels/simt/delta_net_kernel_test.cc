// Gated delta nets on the runner: outputs, states and copies with the bits of the processor's
// reference operation in every order (what is not written keeps its bytes), and the same ones
// however a prompt is cut, whoever is beside it in a batch.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/delta_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/math.h"
#include "kernels/simt/run_options.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/mutation.h"

namespace baton::kernels::cuda {
namespace {

using kv::KvLayout;
using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using simt_test::FromDevice;
using simt_test::OnDevice;
using simt_test::RandomBf16;
using simt_test::RandomFloats;
using simt_test::SameBits;
using testing::HasSubstr;

constexpr uint32_t kSequences = 3;
constexpr uint32_t kSlices = 2;     // of a block; states lie in the second one
constexpr uint32_t kOffset = 4160;  // a state begins in the second block of its sequence

// Rows [position, position + num_rows) of a sequence, or so many of padding.
struct Rows {
  uint32_t sequence;
  uint32_t position;
  uint32_t num_rows;
  uint32_t copy_rows = 0;
};

struct NetCase {
  DeltaDims dims = {1, 2, 64, 16, 3};
  std::vector<Rows> rows = {{1, 0, 3}};
  uint32_t num_empty_spans = 0;  // behind the others, as a padded batch has them
};

// Memory after the launches, or after the reference.
struct NetResult {
  std::vector<Bf16> out;
  std::vector<float> arena;
  std::vector<uint32_t> broken;
};

// A batch on the host. A row's inputs depend on its sequence and position only.
class NetBatch {
 public:
  explicit NetBatch(const NetCase& c) : dims_(c.dims) {
    layout_.dtype = kv::KvDtype::kBf16;
    layout_.encoding = kv::KvEncoding::kPlain;
    layout_.num_layers = kSlices;
    layout_.num_kv_heads = 1;
    layout_.head_dim = 64;
    layout_.block_size = 16;  // slices of 4096 bytes
    const auto slice_bytes = static_cast<uint32_t>(layout_.SliceBytes());
    num_state_blocks_ = (kOffset + dims_.state_bytes() - 1) / slice_bytes + 1;
    PlaceBlocks();
    for (const Rows& rows : c.rows) AddRows(rows);
    spans_.insert(spans_.end(), c.num_empty_spans, DeltaSpan{});
    states_.resize(spans_.size() * num_state_blocks_, 0);
    taps_ = RandomFloats(size_t{dims_.num_channels()} * dims_.num_taps, 7, 0.37f);
    rates_ = RandomFloats(dims_.num_v_heads, 8, 1.0f);
    for (float& rate : rates_) rate = -0.05f - std::fabs(rate);
    dt_bias_ = RandomFloats(dims_.num_v_heads, 9, 1.0f);
    norm_ = RandomFloats(dims_.v_dim, 10, 0.7f);
  }

  const KvLayout& layout() const { return layout_; }
  const std::vector<uint32_t>& BlocksOf(uint32_t sequence) const { return blocks_[sequence]; }
  uint32_t num_blocks() const { return 2 * kSequences * num_state_blocks_ + 1; }
  // Blocks that hold what earlier steps stored, as far as anyone looks.
  std::vector<float> OldArena() const {
    return RandomFloats(num_blocks() * layout_.BlockStride() / sizeof(float), 11, 0.4f);
  }

  absl::StatusOr<NetResult> Run(const std::vector<float>& old_arena) const {
    SimBuffer x = OnDevice(x_, "x");
    SimBuffer z = OnDevice(z_, "z");
    SimBuffer gates = OnDevice(gates_, "gates");
    SimBuffer taps = OnDevice(taps_, "taps");
    SimBuffer rates = OnDevice(rates_, "rates");
    SimBuffer dt_bias = OnDevice(dt_bias_, "dt_bias");
    SimBuffer norm = OnDevice(norm_, "norm");
    SimBuffer spans = OnDevice(spans_, "spans");
    SimBuffer row_spans = OnDevice(row_spans_, "row_spans");
    SimBuffer states = OnDevice(states_, "states");
    SimBuffer copies = OnDevice(copies_, "copies");
    SimBuffer broken = OnDevice(std::vector<uint32_t>(spans_.size()), "broken");
    SimBuffer arena = OnDevice(old_arena, "arena");
    // Numbers: with poison a row of padding that is computed would look as one that is not.
    SimBuffer inputs = OnDevice(std::vector<float>(x_.size()), "inputs");
    SimBuffer out(OutSize() * sizeof(Bf16), "out");
    DeltaParams params = Sizes();
    params.x = x.as<Bf16>();
    params.z = z.as<Bf16>();
    params.gates = gates.as<float>();
    params.taps = taps.as<float>();
    params.rates = rates.as<float>();
    params.dt_bias = dt_bias.as<float>();
    params.norm = norm.as<float>();
    params.spans = spans.as<DeltaSpan>();
    params.row_spans = row_spans.as<uint32_t>();
    params.states = states.as<uint32_t>();
    params.copies = copies.as<uint32_t>();
    params.broken = broken.as<uint32_t>();
    params.inputs = inputs.as<float>();
    params.out = out.as<Bf16>();
    params.state.base = arena.data() + layout_.SliceBytes();
    const KernelTable& table = runner::Kernels();
    for (const auto launch : {table.delta_inputs, table.delta_scan, table.delta_gate}) {
      if (absl::Status status = launch(params, nullptr); !status.ok()) return status;
    }
    return NetResult{FromDevice<Bf16>(out), FromDevice<float>(arena), FromDevice<uint32_t>(broken)};
  }

  // By the processor's operation; rows of padding keep the poison of memory that nobody wrote.
  NetResult Reference(const std::vector<float>& old_arena) const {
    NetResult result = {std::vector<Bf16>(OutSize(), Bf16{0xFFFF}), old_arena,
                        std::vector<uint32_t>(spans_.size())};
    std::vector<float> gates = gates_;
    DeltaParams params = Sizes();
    params.x = x_.data();
    params.z = z_.data();
    params.gates = gates.data();
    params.taps = taps_.data();
    params.rates = rates_.data();
    params.dt_bias = dt_bias_.data();
    params.norm = norm_.data();
    params.spans = spans_.data();
    params.row_spans = row_spans_.data();
    params.states = states_.data();
    params.copies = copies_.data();
    params.broken = result.broken.data();
    params.out = result.out.data();
    auto* const arena = reinterpret_cast<std::byte*>(result.arena.data());
    params.state.base = arena + layout_.SliceBytes();
    ReferenceDeltaNet(params, {{arena, &layout_, num_blocks()}, 1});
    return result;
  }

 private:
  // Blocks of a sequence lie apart; after those of all come those of their copies.
  void PlaceBlocks() {
    for (uint32_t list = 0; list < 2 * kSequences; ++list) {
      std::vector<uint32_t> blocks;
      for (uint32_t i = 0; i < num_state_blocks_; ++i) blocks.push_back(i * 2 * kSequences + list);
      std::reverse(blocks.begin(), blocks.end());
      blocks_.push_back(std::move(blocks));
    }
  }

  void AddRows(const Rows& rows) {
    const bool is_padding = rows.sequence == kPaddingRow;
    const auto span = is_padding ? kPaddingRow : static_cast<uint32_t>(spans_.size());
    if (!is_padding) {
      const auto num_copies = static_cast<uint32_t>(copies_.size() / num_state_blocks_);
      const auto first_row = static_cast<uint32_t>(row_spans_.size());
      spans_.push_back({first_row, rows.num_rows, rows.position, rows.copy_rows, num_copies});
      const std::vector<uint32_t>& state = blocks_[rows.sequence];
      states_.insert(states_.end(), state.begin(), state.end());
      const std::vector<uint32_t>& copy = blocks_[kSequences + rows.sequence];
      if (rows.copy_rows > 0) copies_.insert(copies_.end(), copy.begin(), copy.end());
    }
    for (uint32_t i = 0; i < rows.num_rows; ++i) {
      row_spans_.push_back(span);
      const uint64_t seed = 100 * rows.sequence + rows.position + i + 1;
      const auto x = RandomBf16(dims_.num_channels(), seed);
      const auto z = RandomBf16(dims_.value_size(), seed + 5000);
      const auto gates = RandomFloats(size_t{2} * dims_.num_v_heads, seed + 9000, 1.3f);
      x_.insert(x_.end(), x.begin(), x.end());
      z_.insert(z_.end(), z.begin(), z.end());
      gates_.insert(gates_.end(), gates.begin(), gates.end());
    }
  }

  size_t OutSize() const { return row_spans_.size() * dims_.value_size(); }

  DeltaParams Sizes() const {
    DeltaParams params = {};
    params.state = {nullptr, layout_.BlockStride(), static_cast<uint32_t>(layout_.SliceBytes()),
                    kOffset};
    params.dims = dims_;
    params.num_rows = static_cast<uint32_t>(row_spans_.size());
    params.num_spans = static_cast<uint32_t>(spans_.size());
    params.num_state_blocks = num_state_blocks_;
    params.eps = 1e-6f;
    return params;
  }

  DeltaDims dims_;
  KvLayout layout_;
  uint32_t num_state_blocks_ = 0;
  std::vector<std::vector<uint32_t>> blocks_;  // of each sequence, then of each one's copy
  std::vector<DeltaSpan> spans_;
  std::vector<uint32_t> row_spans_;
  std::vector<uint32_t> states_;
  std::vector<uint32_t> copies_;
  std::vector<Bf16> x_;
  std::vector<Bf16> z_;
  std::vector<float> gates_;
  std::vector<float> taps_;
  std::vector<float> rates_;
  std::vector<float> dt_bias_;
  std::vector<float> norm_;
};

// Equal bits, or both no number: the payload of a NaN is nobody's.
bool SameFloat(float a, float b) {
  return SameBits(&a, &b, sizeof(a)) || (std::isnan(a) && std::isnan(b));
}

std::string Difference(const NetResult& got, const NetResult& expected) {
  for (size_t i = 0; i < expected.out.size(); ++i) {
    const float mine = FloatFromBf16(got.out[i].bits);
    if (!SameFloat(mine, FloatFromBf16(expected.out[i].bits))) {
      return fmt::format("output {}: {}, not {}", i, mine, FloatFromBf16(expected.out[i].bits));
    }
  }
  for (size_t i = 0; i < expected.arena.size(); ++i) {
    if (!SameFloat(got.arena[i], expected.arena[i])) {
      return fmt::format("arena {}: {}, not {}", i, got.arena[i], expected.arena[i]);
    }
  }
  return got.broken == expected.broken ? "" : "other states are broken";
}

std::string CheckFrom(const NetCase& c, const std::vector<float>& arena) {
  const NetBatch batch(c);
  const auto got = batch.Run(arena);
  if (!got.ok()) return std::string(got.status().message());
  return Difference(*got, batch.Reference(arena));
}

// The first difference from the reference, or "".
std::string CheckNet(const NetCase& c) { return CheckFrom(c, NetBatch(c).OldArena()); }

const std::vector<NetCase>& Cases() {
  static const std::vector<NetCase> cases = {
      {.rows = {}},
      {.rows = {{0, 0, 1}}},
      // The start of a sequence, fewer rows than taps, copies, padding, a span of no rows.
      {.dims = {2, 4, 64, 16, 4},
       .rows = {{1, 0, 2}, {kPaddingRow, 0, 2}, {0, 5, 1, 1}, {2, 9, 6, 4}},
       .num_empty_spans = 2},
      // Tiles of columns that are not full, rows of a matrix that slices cut, units beyond one cta.
      {.dims = {1, 2, 128, 48, 2}, .rows = {{2, 3, 2, 1}, {1, 0, 1, 1}}},
      {.dims = {3, 9, 64, 80, 5}, .rows = {{kPaddingRow, 0, 1}, {0, 4, 3}}},
      {.dims = {1, 1, 64, 32, 16}, .rows = {{0, 40, 17, 16}, {1, 2, 3, 2}}}};
  return cases;
}

class DeltaNetInEveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(DeltaNetInEveryOrder, HasTheBitsOfTheProcessor) {
  for (size_t i = 0; i < Cases().size(); ++i) EXPECT_EQ(CheckNet(Cases()[i]), "") << i;
}

INSTANTIATE_TEST_SUITE_P(, DeltaNetInEveryOrder, testing::ValuesIn(AllOrders(2)));

// The outputs of sequence 1 in these steps, and all blocks after them.
NetResult InSteps(const DeltaDims& dims, const std::vector<std::vector<Rows>>& steps) {
  NetResult result = {{}, NetBatch({.dims = dims}).OldArena(), {}};
  for (const std::vector<Rows>& rows : steps) {
    const auto got = NetBatch({.dims = dims, .rows = rows}).Run(result.arena);
    EXPECT_TRUE(got.ok()) << got.status();
    if (!got.ok()) return result;
    result.arena = got->arena;
    auto row = got->out.begin();
    for (const Rows& of : rows) {
      const auto end = row + of.num_rows * dims.value_size();
      if (of.sequence == 1) result.out.insert(result.out.end(), row, end);
      row = end;
    }
  }
  return result;
}

bool SameOutputs(const NetResult& a, const NetResult& b) {
  return a.out.size() == b.out.size() &&
         SameBits(a.out.data(), b.out.data(), a.out.size() * sizeof(Bf16));
}

TEST(DeltaNet, ARowsBitsAndStatesAreTheSameHoweverAPromptIsCut) {
  for (const DeltaDims& dims : {DeltaDims{1, 2, 64, 16, 4}, DeltaDims{1, 1, 128, 16, 7}}) {
    const NetResult once = InSteps(dims, {{{1, 0, 20}}});
    EXPECT_EQ(once.out.size(), size_t{20} * dims.value_size());
    std::vector<std::vector<Rows>> decoded;
    for (uint32_t i = 0; i < 20; ++i) decoded.push_back({{kPaddingRow, 0, i % 3}, {1, i, 1}});
    const std::vector<std::vector<Rows>> few_first = {{{1, 0, 1}}, {{1, 1, 2}}, {{1, 3, 17}}};
    const std::vector<std::vector<Rows>> few_last = {{{1, 0, 16}}, {{1, 16, 3}}, {{1, 19, 1}}};
    for (const auto& steps : {few_first, few_last, decoded}) {
      const NetResult cut = InSteps(dims, steps);
      EXPECT_TRUE(SameOutputs(once, cut));
      EXPECT_TRUE(SameBits(once.arena.data(), cut.arena.data(), once.arena.size() * sizeof(float)));
    }
  }
}

TEST(DeltaNet, NeighboursChangeNothing) {
  const DeltaDims dims = {1, 2, 64, 16, 3};
  const NetResult alone = InSteps(dims, {{{1, 0, 9}}});
  EXPECT_TRUE(SameOutputs(alone, InSteps(dims, {{{0, 0, 3}, {1, 0, 9}, {2, 5, 2}}})));
}

// A copy is the state that a prompt of so many tokens leaves, and goes on as it does.
TEST(DeltaNet, ACopyIsTheStateOfTheShorterPrompt) {
  const DeltaDims dims = {1, 2, 64, 16, 4};
  const NetBatch batch({.dims = dims});
  const NetResult copied = InSteps(dims, {{{1, 0, 9, 6}}});
  const NetResult shorter = InSteps(dims, {{{1, 0, 6}}});
  const size_t stride = batch.layout().BlockStride() / sizeof(float);
  const size_t slice = batch.layout().SliceBytes() / sizeof(float);
  size_t at = kOffset / sizeof(float);
  for (size_t i = 0; i < dims.state_bytes() / sizeof(float); ++i, ++at) {
    const size_t copy = batch.BlocksOf(kSequences + 1)[at / slice] * stride + slice + at % slice;
    const size_t own = batch.BlocksOf(1)[at / slice] * stride + slice + at % slice;
    ASSERT_EQ(copied.arena[copy], shorter.arena[own]) << i;
  }
}

// An infinity in what earlier steps stored of a sequence, at byte `byte` of its state; and whether
// each span's copy is broken by it.
struct Infinity {
  NetCase net;
  uint32_t sequence;
  uint32_t byte;
  std::vector<uint32_t> broken;
};

std::string CheckInfinity(const Infinity& infinity) {
  const NetBatch batch(infinity.net);
  std::vector<float> arena = batch.OldArena();
  const size_t slice_bytes = batch.layout().SliceBytes();
  const size_t at = kOffset + infinity.byte;
  const size_t block = batch.BlocksOf(infinity.sequence)[at / slice_bytes];
  arena[(block * batch.layout().BlockStride() + slice_bytes + at % slice_bytes) / sizeof(float)] =
      std::numeric_limits<float>::infinity();
  if (batch.Reference(arena).broken != infinity.broken) return "the reference has other ones";
  return CheckFrom(infinity.net, arena);
}

const std::vector<Infinity>& Infinities() {
  // In a head's matrix, in an input of v that has left the tail at the copy, and in one of q that
  // has not: no matrix depends on q.
  static const NetCase& many = Cases()[2];
  static const DeltaDims small = {1, 1, 64, 16, 5};
  static const std::vector<Infinity> infinities = {
      {many, 2, 0, {0, 0, 1, 0, 0}},
      {many, 2, many.dims.state_bytes() - 4, {0, 0, 1, 0, 0}},
      {{.dims = small, .rows = {{0, 0, 1, 1}, {2, 9, 2, 1}}},
       2,
       small.matrix_bytes() + 3 * small.num_channels() * 4,
       {0, 1}}};
  return infinities;
}

// A state that holds no number is told of its span alone, and harms no other.
TEST(DeltaNet, ACopyThatHoldsNoNumberIsTold) {
  for (size_t i = 0; i < Infinities().size(); ++i) {
    EXPECT_EQ(CheckInfinity(Infinities()[i]), "") << i;
  }
}

TEST(DeltaNet, RefusesShapesByName) {
  const auto message = [](const DeltaDims& dims, uint32_t slice_bytes, uint32_t num_blocks,
                          uint32_t offset = 64) {
    DeltaParams params = {};
    params.dims = dims;
    params.state = {nullptr, 4096, slice_bytes, offset};
    params.num_state_blocks = num_blocks;
    std::string first;
    const KernelTable& table = runner::Kernels();
    for (const auto launch : {table.delta_inputs, table.delta_scan, table.delta_gate}) {
      const absl::Status status = launch(params, nullptr);
      if (first.empty()) first = std::string(status.message());
      EXPECT_EQ(status.ok(), first.empty());
    }
    return first;
  };
  EXPECT_THAT(message({1, 2, 96, 16, 4}, 4096, 9), HasSubstr("DeltaInputs: k_dim 96"));
  EXPECT_THAT(message({1, 2, 64, 24, 4}, 4096, 9), HasSubstr("v_dim 24"));
  EXPECT_THAT(message({2, 3, 64, 16, 4}, 4096, 9), HasSubstr("3 heads of v for 2 of k"));
  EXPECT_THAT(message({1, 2, 64, 16, 1}, 4096, 9), HasSubstr("1 taps"));
  EXPECT_THAT(message({1, 2, 64, 16, 17}, 4096, 9), HasSubstr("17 taps"));
  EXPECT_THAT(message({1, 2, 64, 16, 4}, 4104, 9), HasSubstr("slices of 4104 bytes"));
  EXPECT_THAT(message({1, 2, 64, 32, 4}, 64, 900), HasSubstr("slices of 64 bytes"));
  EXPECT_THAT(message({1, 2, 64, 16, 4}, 4096, 9, 32), HasSubstr("offset of 32"));
  EXPECT_THAT(message({1, 2, 64, 16, 4}, 4096, 2), HasSubstr("does not fit in 2 blocks"));
  EXPECT_EQ(message({1, 2, 64, 16, 4}, 4096, 3), "");  // no rows: nothing to do
}

// ---- ClearBlocks.

std::string CheckClear(uint32_t block_bytes, const std::vector<uint32_t>& blocks) {
  constexpr uint32_t kBlocks = 7;
  constexpr uint32_t kStride = 20480;
  std::vector<uint32_t> expected(kBlocks * kStride / 4, 0xABCDEF01u);
  SimBuffer memory = OnDevice(expected, "blocks");
  SimBuffer list = OnDevice(blocks, "list");
  const absl::Status status =
      runner::Kernels().clear_blocks({.base = memory.data(),
                                      .blocks = list.as<uint32_t>(),
                                      .block_stride_bytes = kStride,
                                      .block_bytes = block_bytes,
                                      .num_blocks = static_cast<uint32_t>(blocks.size())},
                                     nullptr);
  if (!status.ok()) return std::string(status.message());
  for (const uint32_t block : blocks) {
    std::fill_n(expected.begin() + block * kStride / 4, block_bytes / 4, 0u);
  }
  return FromDevice<uint32_t>(memory) == expected ? "" : "other bytes";
}

TEST_P(DeltaNetInEveryOrder, ClearBlocksZerosThoseBlocksAlone) {
  EXPECT_EQ(CheckClear(16, {3}), "");
  EXPECT_EQ(CheckClear(16384, {0, 6}), "");
  EXPECT_EQ(CheckClear(16400, {5, 1, 2}), "");
  EXPECT_EQ(CheckClear(16400, {}), "");
  EXPECT_THAT(CheckClear(0, {1}), HasSubstr("ClearBlocks: blocks of 0 bytes"));
  EXPECT_THAT(CheckClear(24, {1}), HasSubstr("ClearBlocks: blocks of 24 bytes"));
}

// ---- SigmoidMul.

std::string CheckSigmoid(uint32_t rows, uint32_t dim) {
  const std::vector<Bf16> gate = RandomBf16(size_t{rows} * dim, 3, 12.0f);
  std::vector<Bf16> x = RandomBf16(size_t{rows} * dim, 4);
  SimBuffer gates = OnDevice(gate, "gate");
  SimBuffer values = OnDevice(x, "x");
  const absl::Status status =
      runner::Kernels().sigmoid_mul({gates.as<Bf16>(), values.as<Bf16>(), rows, dim}, nullptr);
  if (!status.ok()) return std::string(status.message());
  ReferenceSigmoidMulBits({gate.data(), x.data(), rows, dim});
  const std::vector<Bf16> got = FromDevice<Bf16>(values);
  return SameBits(got.data(), x.data(), x.size() * sizeof(Bf16)) ? "" : "other bits";
}

TEST_P(DeltaNetInEveryOrder, SigmoidMulHasTheBitsOfTheProcessor) {
  for (const uint32_t dim : {8u, 1024u, 1032u}) EXPECT_EQ(CheckSigmoid(3, dim), "") << dim;
  EXPECT_EQ(CheckSigmoid(0, 8), "");
  EXPECT_THAT(CheckSigmoid(1, 12), HasSubstr("SigmoidMul: dim 12"));
}

// The exponential of these kernels is that of the processor's vectors on every magnitude.
TEST(SigmoidMul, HasTheBitsOfTheProcessorForEveryBf16) {
  std::vector<Bf16> gate;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7FFFu) <= 0x7F80u) gate.push_back({static_cast<uint16_t>(bits)});
  }
  gate.resize(gate.size() / 8 * 8);
  std::vector<Bf16> x(gate.size(), Bf16{0x3F8B});
  const auto rows = static_cast<uint32_t>(gate.size() / 8);
  SimBuffer gates = OnDevice(gate, "gate");
  SimBuffer values = OnDevice(x, "x");
  ASSERT_TRUE(
      runner::Kernels().sigmoid_mul({gates.as<Bf16>(), values.as<Bf16>(), rows, 8}, nullptr).ok());
  ReferenceSigmoidMulBits({gate.data(), x.data(), rows, 8});
  const std::vector<Bf16> got = FromDevice<Bf16>(values);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i].bits, x[i].bits) << gate[i].bits;
}

TEST(DeltaNet, MutantsAreNoticed) {
  const simt_test::Suite suite = [] {
    for (const size_t i : {2, 3}) {
      if (!CheckNet(Cases()[i]).empty()) return false;
    }
    for (const size_t i : {0, 2}) {
      if (!CheckInfinity(Infinities()[i]).empty()) return false;
    }
    return CheckClear(16400, {5, 1}).empty() && CheckSigmoid(2, 1032).empty();
  };
  simt_test::ExpectAllNoticed(
      suite, 30,
      {{"simt::sync_warp();  // k is read again", simt::Mutation::kDropSyncWarp,
        "It orders nothing: between the two others the token stays."}});
}

}  // namespace
}  // namespace baton::kernels::cuda
