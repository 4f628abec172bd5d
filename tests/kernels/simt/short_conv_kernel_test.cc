// ShortConv on the runner: outputs and whole blocks with the bits of its slow form in every order
// (what is not written keeps its poison), those of the processor's operation, and the same bytes
// however a prompt is cut.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/conv_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/math.h"
#include "kernels/ops.h"
#include "kernels/simt/run_options.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/mutation.h"

namespace baton::kernels::cuda {
namespace {

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
constexpr uint32_t kPositions = 70;
constexpr uint32_t kBlocks = 16;
constexpr uint32_t kSlices = 2;  // of a block, each as long as a layer; the second one is used

// Rows [first, first + count) of a sequence, or so many of padding.
struct Rows {
  uint32_t sequence;
  uint32_t first;
  uint32_t count;
};

struct ConvCase {
  uint32_t channels = 24;
  uint32_t row_elements = 32;
  uint32_t num_taps = 3;
  uint32_t block_size = 16;
  std::vector<Rows> rows = {{1, 0, 3}};
};

// The memory after a launch: outputs of all rows, and all blocks.
struct ConvResult {
  std::vector<Bf16> out;
  std::vector<std::byte> blocks;
};

// A batch on the host. A row's inputs depend on its sequence and position only.
class ConvBatch {
 public:
  explicit ConvBatch(const ConvCase& c)
      : max_blocks_((kPositions + c.block_size - 1) / c.block_size) {
    for (const Rows& rows : c.rows) {
      for (uint32_t i = 0; i < rows.count; ++i) {
        sequences_.push_back(rows.sequence);
        positions_.push_back(rows.sequence == kPaddingRow ? kPaddingRow : rows.first + i);
        const auto row =
            RandomBf16(size_t{3} * c.channels, 100 * rows.sequence + rows.first + i + 1);
        bcx_.insert(bcx_.end(), row.begin(), row.end());
      }
    }
    for (uint32_t i = 0; i < kSequences * max_blocks_; ++i) lists_.push_back(i * 5 % kBlocks);
    taps_ = RandomFloats(size_t{c.channels} * c.num_taps, 7, 0.37f);
    slice_bytes_ = size_t{c.block_size} * c.row_elements * sizeof(Bf16);
    params_ = {.bcx = bcx_.data(),
               .taps = taps_.data(),
               .positions = positions_.data(),
               .sequences = sequences_.data(),
               .block_lists = lists_.data(),
               .out = nullptr,
               .kv = {nullptr, kSlices * slice_bytes_, c.row_elements, c.block_size},
               .num_rows = static_cast<uint32_t>(sequences_.size()),
               .channels = c.channels,
               .num_taps = c.num_taps,
               .max_blocks = max_blocks_};
  }

  const ShortConvParams& host() const { return params_; }
  size_t slice_bytes() const { return slice_bytes_; }
  const std::vector<uint32_t>& lists() const { return lists_; }
  size_t OutSize() const { return size_t{params_.num_rows} * params_.channels; }
  // Blocks whose slots hold what earlier steps stored, as far as anyone looks.
  std::vector<std::byte> OldBlocks() const {
    std::vector<std::byte> blocks(kBlocks * kSlices * slice_bytes_);
    const auto values = RandomBf16(blocks.size() / sizeof(Bf16), 9);
    std::memcpy(blocks.data(), values.data(), blocks.size());
    return blocks;
  }

  absl::StatusOr<ConvResult> Run(const std::vector<std::byte>& old_blocks) const {
    SimBuffer bcx = OnDevice(bcx_, "bcx");
    SimBuffer taps = OnDevice(taps_, "taps");
    SimBuffer positions = OnDevice(positions_, "positions");
    SimBuffer sequences = OnDevice(sequences_, "sequences");
    SimBuffer lists = OnDevice(lists_, "block_lists");
    SimBuffer blocks = OnDevice(old_blocks, "blocks");
    SimBuffer out(OutSize() * sizeof(Bf16), "out");
    ShortConvParams params = params_;
    params.bcx = bcx.as<Bf16>();
    params.taps = taps.as<float>();
    params.positions = positions.as<uint32_t>();
    params.sequences = sequences.as<uint32_t>();
    params.block_lists = lists.as<uint32_t>();
    params.out = out.as<Bf16>();
    params.kv.base = blocks.data() + slice_bytes_;
    if (absl::Status status = runner::Kernels().short_conv(params, nullptr); !status.ok()) {
      return status;
    }
    return ConvResult{FromDevice<Bf16>(out), FromDevice<std::byte>(blocks)};
  }

  // By the slow form; rows of padding keep the poison of memory that nobody wrote.
  ConvResult Reference(std::vector<std::byte> blocks) const {
    ConvResult result = {std::vector<Bf16>(OutSize(), Bf16{0xFFFF}), {}};
    ShortConvParams params = params_;
    params.out = result.out.data();
    params.kv.base = blocks.data() + slice_bytes_;
    ReferenceShortConvBits(params);
    result.blocks = std::move(blocks);
    return result;
  }

 private:
  uint32_t max_blocks_;
  size_t slice_bytes_ = 0;
  std::vector<uint32_t> sequences_;
  std::vector<uint32_t> positions_;
  std::vector<uint32_t> lists_;
  std::vector<Bf16> bcx_;
  std::vector<float> taps_;
  ShortConvParams params_;
};

// The first difference from the slow form, or "".
std::string CheckConv(const ConvCase& c) {
  const ConvBatch batch(c);
  const auto got = batch.Run(batch.OldBlocks());
  if (!got.ok()) return std::string(got.status().message());
  const ConvResult expected = batch.Reference(batch.OldBlocks());
  for (size_t i = 0; i < expected.out.size(); ++i) {
    if (got->out[i].bits == expected.out[i].bits) continue;
    return fmt::format("out of row {} channel {}", i / c.channels, i % c.channels);
  }
  return got->blocks == expected.blocks ? "" : "other bytes in the blocks";
}

const std::vector<ConvCase>& Cases() {
  static const std::vector<ConvCase> cases = {
      {.rows = {}},
      {.rows = {{0, 0, 1}}},
      // Predecessors in the batch, in blocks, before the sequence; the end of a block.
      {.rows = {{2, 14, 3}, {0, 15, 1}, {kPaddingRow, 0, 2}, {1, 1, 2}}},
      {.channels = 8, .row_elements = 8, .num_taps = 1, .rows = {{0, 3, 2}, {1, 16, 1}}},
      // Rows of more than one cta, and of one whose threads are all within.
      {.channels = 1032, .row_elements = 1280, .num_taps = 4, .rows = {{1, 2, 2}, {0, 40, 1}}},
      {.channels = 1024, .row_elements = 1024, .num_taps = 5, .rows = {{2, 0, 6}}},
      {.num_taps = 16, .block_size = 32, .rows = {{1, 30, 4}, {2, 5, 20}, {kPaddingRow, 0, 1}}},
      {.channels = 40,
       .row_elements = 128,
       .block_size = 64,
       .rows = {{kPaddingRow, 0, 1}, {0, 69, 1}, {1, 63, 2}, {kPaddingRow, 0, 3}}}};
  return cases;
}

class ShortConvInEveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(ShortConvInEveryOrder, HasTheBitsOfItsSlowForm) {
  for (size_t i = 0; i < Cases().size(); ++i) EXPECT_EQ(CheckConv(Cases()[i]), "") << i;
}

INSTANTIATE_TEST_SUITE_P(, ShortConvInEveryOrder, testing::ValuesIn(AllOrders(2)));

// The outputs of sequence 1 in these steps, by position, and all blocks after them.
ConvResult InSteps(const ConvCase& c, const std::vector<std::vector<Rows>>& steps) {
  ConvResult result = {{}, ConvBatch(c).OldBlocks()};
  for (const std::vector<Rows>& rows : steps) {
    ConvCase step = c;
    step.rows = rows;
    const auto got = ConvBatch(step).Run(result.blocks);
    EXPECT_TRUE(got.ok()) << got.status();
    if (!got.ok()) return result;
    result.blocks = got->blocks;
    size_t row = 0;
    for (const Rows& of : rows) {
      const auto first = got->out.begin() + row * c.channels;
      if (of.sequence == 1)
        result.out.insert(result.out.end(), first, first + of.count * c.channels);
      row += of.count;
    }
  }
  return result;
}

bool SameSequence(const ConvResult& a, const ConvResult& b) {
  return SameBits(a.out.data(), b.out.data(), a.out.size() * sizeof(Bf16)) &&
         a.out.size() == b.out.size() && a.blocks == b.blocks;
}

TEST(ShortConv, ARowsBitsAndBlocksAreTheSameHoweverAPromptIsCut) {
  for (const uint32_t num_taps : {3u, 7u}) {
    const ConvCase c = {.num_taps = num_taps};
    const ConvResult once = InSteps(c, {{{1, 0, 35}}});
    EXPECT_EQ(once.out.size(), size_t{35} * c.channels);
    EXPECT_TRUE(SameSequence(once, InSteps(c, {{{1, 0, 1}}, {{1, 1, 16}}, {{1, 17, 18}}})));
    EXPECT_TRUE(SameSequence(once, InSteps(c, {{{1, 0, 31}}, {{1, 31, 2}}, {{1, 33, 2}}})));
    std::vector<std::vector<Rows>> decoded;
    for (uint32_t i = 0; i < 35; ++i) decoded.push_back({{kPaddingRow, 0, i % 3}, {1, i, 1}});
    EXPECT_TRUE(SameSequence(once, InSteps(c, decoded)));
  }
}

// Neighbours in a batch change nothing of a sequence.
TEST(ShortConv, NeighboursChangeNothing) {
  const ConvCase c = {};
  const ConvResult alone = InSteps(c, {{{1, 0, 20}}});
  const ConvResult among = InSteps(c, {{{0, 0, 3}, {1, 0, 20}, {2, 5, 2}}});
  EXPECT_TRUE(SameBits(alone.out.data(), among.out.data(), alone.out.size() * sizeof(Bf16)));
}

// The operation of the processor, given the same numbers, stores the same rows and computes what
// the kernel rounds.
TEST(ShortConv, IsTheOperationOfTheProcessor) {
  const ConvCase c = {.channels = 40, .row_elements = 64, .num_taps = 4, .rows = {{1, 0, 37}}};
  const ConvBatch batch(c);
  const ShortConvParams& host = batch.host();
  kv::KvLayout layout;
  layout.dtype = kv::KvDtype::kBf16;
  layout.encoding = kv::KvEncoding::kPlain;
  layout.num_layers = 2;  // slices of a layer of its own, and of another
  layout.num_kv_heads = 1;
  layout.head_dim = c.row_elements / 2;
  layout.block_size = c.block_size;
  std::vector<std::byte> arena(kBlocks * layout.BlockStride(), std::byte{0x5C});
  std::vector<float> bcx;
  for (size_t i = 0; i < size_t{3} * c.channels * host.num_rows; ++i) {
    bcx.push_back(FloatFromBf16(host.bcx[i].bits));
  }
  std::vector<float> taps(size_t{c.channels} * c.num_taps);
  for (size_t i = 0; i < taps.size(); ++i) {
    taps[i % c.num_taps * c.channels + i / c.num_taps] = host.taps[i];
  }
  std::vector<float> out(batch.OutSize());
  const auto first_block = batch.lists().begin() + host.max_blocks;  // of sequence 1
  const std::vector<uint32_t> blocks(first_block, first_block + host.max_blocks);
  const AttentionSpan span = {{blocks}, 0, host.num_rows, 0};
  const ShortConvArgs args = {.kv = {arena.data(), &layout, kBlocks},
                              .first_slice = 1,
                              .num_slices = 1,
                              .spans = {&span, 1},
                              .bcx = bcx.data(),
                              .channels = c.channels,
                              .taps = taps.data(),
                              .num_taps = c.num_taps,
                              .out = out.data()};
  device::ThreadPool pool(1);
  ReferenceOps().conv_append(pool, args);
  ReferenceOps().short_conv(pool, args);
  const auto got = batch.Run(batch.OldBlocks());
  ASSERT_TRUE(got.ok()) << got.status();
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(got->out[i].bits, Bf16FromFloat(out[i])) << i;
  for (uint32_t i = 0; i < layout.BlocksFor(host.num_rows); ++i) {
    const std::byte* mine = got->blocks.data() + (2 * size_t{blocks[i]} + 1) * batch.slice_bytes();
    EXPECT_TRUE(SameBits(mine, args.kv.Piece(blocks[i], 1, 0, 0), batch.slice_bytes())) << i;
  }
}

TEST(ShortConv, RefusesShapesByName) {
  const auto message = [](ConvBlocks kv, uint32_t channels, uint32_t num_taps) {
    return std::string(
        runner::Kernels()
            .short_conv({.kv = kv, .channels = channels, .num_taps = num_taps}, nullptr)
            .message());
  };
  EXPECT_THAT(message({nullptr, 4096, 32, 16}, 12, 3), HasSubstr("ShortConv: dim 12"));
  EXPECT_THAT(message({nullptr, 4096, 32, 16}, 40, 3), HasSubstr("rows of 32 elements for 40"));
  EXPECT_THAT(message({nullptr, 4096, 36, 16}, 32, 3), HasSubstr("rows of 36"));
  EXPECT_THAT(message({nullptr, 4096, 32, 48}, 32, 3), HasSubstr("block_size 48"));
  EXPECT_THAT(message({nullptr, 1008, 32, 16}, 32, 3), HasSubstr("stride of 1008"));
  EXPECT_THAT(message({nullptr, 1032, 32, 16}, 32, 3), HasSubstr("stride of 1032"));
  EXPECT_THAT(message({nullptr, 4096, 32, 16}, 32, 0), HasSubstr("0 taps"));
  EXPECT_THAT(message({nullptr, 4096, 32, 16}, 32, 17), HasSubstr("17 taps"));
  EXPECT_EQ(message({nullptr, 1024, 32, 16}, 32, 16), "");  // no rows: nothing to do
}

TEST(ShortConv, MutantsAreNoticed) {
  const simt_test::Suite suite = [] {
    for (const size_t i : {2, 4}) {
      if (!CheckConv(Cases()[i]).empty()) return false;
    }
    return true;
  };
  simt_test::ExpectAllNoticed(suite, 9);
}

}  // namespace
}  // namespace baton::kernels::cuda
