// RopeAppend on the runner: values within the tolerance in every order, whole blocks as they must
// be (what is not written keeps its poison), and the same bytes however a prompt is cut.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/attention_reference.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/kv_rows_reference.h"
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

constexpr double kRelative = 5e-6;  // of a pair's larger products, before the rounding to bf16
// Compares one head with the reference; copies the kernel's bits to where they are expected.
struct HeadCheck {
  const Bf16* got;
  std::byte* expected;
  size_t at;  // in RotatedRows
};

bool HeadFollows(const RotatedRows& exact, const HeadCheck& head, uint32_t dim) {
  for (uint32_t i = 0; i < dim; ++i) {
    const double absolute = kRelative * exact.magnitudes[head.at + i];
    if (!IsRoundingOf(head.got[i], exact.values[head.at + i], {0, absolute})) return false;
  }
  std::memcpy(head.expected, head.got, size_t{dim} * sizeof(Bf16));
  return true;
}

// The first difference from what the kernel promises, or "".
std::string CheckRope(const RopeCase& c) {
  const RopeBatch batch(c);
  const RopeAppendParams& host = batch.host();
  const size_t dim = c.head_dim;
  SimBuffer q(size_t{host.num_rows} * c.num_heads * dim * sizeof(Bf16), "q");
  SimBuffer arena(batch.ArenaBytes(), "blocks");
  const absl::Status status = batch.Run(q, arena);
  if (!status.ok()) return std::string(status.message());

  const RotatedRows exact = ReferenceRotate(host);
  std::vector<std::byte> expected_q(q.size(), std::byte{0xFF});
  std::vector<std::byte> expected(arena.size(), std::byte{0xFF});
  for (uint32_t row = 0; row < host.num_rows; ++row) {
    const uint32_t sequence = host.sequences[row];
    if (sequence == kPaddingRow) continue;
    const size_t at = size_t{row} * (c.num_heads + c.num_kv_heads) * dim;
    for (uint32_t head = 0; head < c.num_heads; ++head) {
      const size_t q_at = (size_t{row} * c.num_heads + head) * dim;
      if (!HeadFollows(exact, {q.as<Bf16>() + q_at, expected_q.data() + q_at * 2, at + head * dim},
                       c.head_dim)) {
        return fmt::format("q of row {} head {}", row, head);
      }
    }
    const uint32_t position = host.positions[row];
    const uint32_t block = host.block_lists[sequence * host.max_blocks + position / c.block_size];
    const bool is_last = row + 1 == host.num_rows || host.sequences[row + 1] != sequence;
    const uint32_t token = position % c.block_size;
    const Bf16* v =
        host.qkv +
        (size_t{row} * (c.num_heads + 2 * c.num_kv_heads) + c.num_heads + c.num_kv_heads) * dim;
    for (uint32_t head = 0; head < c.num_kv_heads; ++head) {
      const size_t k_at = batch.SliceBytes() + host.kv.KeyOffset(block, head, token);
      const size_t v_at = k_at + host.kv.ValueOffset();
      if (!HeadFollows(exact,
                       {reinterpret_cast<const Bf16*>(arena.data() + k_at), expected.data() + k_at,
                        at + (c.num_heads + head) * dim},
                       c.head_dim)) {
        return fmt::format("k of row {} head {}", row, head);
      }
      std::memcpy(expected.data() + v_at, v + head * dim, dim * 2);
      const size_t behind = is_last ? (c.block_size - 1 - token) * host.kv.RowBytes() : 0;
      std::memset(expected.data() + k_at + dim * 2, 0, behind);
      std::memset(expected.data() + v_at + dim * 2, 0, behind);
    }
  }
  if (!SameBits(q.data(), expected_q.data(), q.size())) return "q of padding";
  return SameBits(arena.data(), expected.data(), arena.size()) ? "" : "other bytes in the blocks";
}

// Where one row's K of one head lies, and how many slots after it are to be zeros.
struct RowPlace {
  size_t piece;
  uint32_t token;
  uint32_t num_behind;
};

// Puts what must be in the slots of a row of fp8 into `expected`, if bf16 gave `row`.
void ExpectCodes(const KvBlocks& kv, const Bf16* row, const RowPlace& place,
                 std::vector<std::byte>& expected) {
  std::byte* const piece = expected.data() + place.piece;
  ReferenceStoreRow(kv, row, piece, place.token);
  const uint32_t next = place.token + 1;
  std::memset(piece + next * kv.RowBytes(), 0, place.num_behind * kv.RowBytes());
  std::memset(piece + kv.ScaleOffset(next), 0, size_t{place.num_behind} * kKvScaleBytes);
}

// In fp8 the blocks hold what the bf16 of the same case becomes, byte for byte, and q is the same;
// the first difference, or "".
std::string CheckCodes(RopeCase c) {
  const RopeBatch wide(c);
  c.element = KvElement::kFp8;
  const RopeBatch batch(c);
  const RopeAppendParams& host = batch.host();
  const KvBlocks& kv = host.kv;
  SimBuffer wide_q(size_t{host.num_rows} * c.num_heads * c.head_dim * sizeof(Bf16), "q");
  SimBuffer wide_arena(wide.ArenaBytes(), "blocks");
  SimBuffer q(wide_q.size(), "q");
  SimBuffer arena(batch.ArenaBytes(), "blocks");
  for (const absl::Status& status : {wide.Run(wide_q, wide_arena), batch.Run(q, arena)}) {
    if (!status.ok()) return std::string(status.message());
  }
  std::vector<std::byte> expected(arena.size(), std::byte{0xFF});
  for (uint32_t row = 0; row < host.num_rows; ++row) {
    const uint32_t sequence = host.sequences[row];
    if (sequence == kPaddingRow) continue;
    const uint32_t position = host.positions[row];
    const uint32_t block = host.block_lists[sequence * host.max_blocks + position / c.block_size];
    const bool is_last = row + 1 == host.num_rows || host.sequences[row + 1] != sequence;
    const uint32_t token = position % c.block_size;
    const uint32_t num_behind = is_last ? c.block_size - 1 - token : 0;
    for (uint32_t piece = 0; piece < 2 * c.num_kv_heads; ++piece) {
      const size_t from = wide.SliceBytes() + wide.host().kv.KeyOffset(block, piece, token);
      ExpectCodes(kv, reinterpret_cast<const Bf16*>(wide_arena.data() + from),
                  {batch.SliceBytes() + kv.KeyOffset(block, piece, 0), token, num_behind},
                  expected);
    }
  }
  if (!SameBits(q.data(), wide_q.data(), q.size())) return "another q";
  return SameBits(arena.data(), expected.data(), arena.size()) ? "" : "other bytes in the blocks";
}

const std::vector<RopeCase>& Cases() {
  static const std::vector<RopeCase> cases = {
      {.rows = {}},
      {.rows = {{0, 0, 1}}},
      {.interleaved = true, .rows = {{2, 14, 3}, {0, 15, 1}, {kPaddingRow, 0, 2}}},
      {.head_dim = 128,
       .num_heads = 9,
       .num_kv_heads = 3,
       .block_size = 32,
       .q_norm = true,
       .k_norm = true,
       .rows = {{1, 30, 4}, {2, 62, 2}}},
      {.head_dim = 256,
       .num_heads = 16,
       .block_size = 64,
       .interleaved = true,
       .k_norm = true,
       .rows = {{kPaddingRow, 0, 1}, {0, 69, 1}, {1, 63, 1}, {kPaddingRow, 0, 3}}},
      {.num_heads = 5, .num_kv_heads = 5, .q_norm = true, .scale = 1e15f, .rows = {{1, 0, 17}}},
      {.interleaved = true, .q_norm = true, .scale = 0.0f, .rows = {{1, 0, 2}}}};
  return cases;
}

class RopeInEveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(RopeInEveryOrder, FollowsTheReference) {
  for (size_t i = 0; i < Cases().size(); ++i) {
    EXPECT_EQ(CheckRope(Cases()[i]), "") << i;
    EXPECT_EQ(CheckCodes(Cases()[i]), "") << i << " in fp8";
  }
}

INSTANTIATE_TEST_SUITE_P(, RopeInEveryOrder, testing::ValuesIn(AllOrders(2)));

TEST(RopeAppend, RotatesWithTheStatedRoundings) {
  const RopeBatch batch({.rows = {{1, 5, 1}}});
  const RopeAppendParams& host = batch.host();
  SimBuffer q(size_t{2} * 64 * sizeof(Bf16), "q");
  SimBuffer arena(batch.ArenaBytes(), "blocks");
  ASSERT_TRUE(batch.Run(q, arena).ok());
  for (uint32_t i = 0; i < 32; ++i) {
    const float x0 = FloatFromBf16(host.qkv[i].bits);
    const float x1 = FloatFromBf16(host.qkv[i + 32].bits);
    const float cos = host.cos_sin[5 * 64 + 2 * i];
    const float sin = host.cos_sin[5 * 64 + 2 * i + 1];
    EXPECT_EQ(q.as<Bf16>()[i].bits, Bf16FromFloat(std::fma(x0, cos, -(x1 * sin))));
    EXPECT_EQ(q.as<Bf16>()[i + 32].bits, Bf16FromFloat(std::fma(x1, cos, x0 * sin)));
  }
}

// Rows of every order of magnitude, of zeros, and those that become infinities and NaN.
TEST(RopeAppend, CodesOfAnyRowAreThoseOfItsBf16) {
  for (const float scale : {0.0f, 1e-38f, 1e-20f, 1e-14f, 3e-3f, 5e3f, 1e5f, 1e30f, HUGE_VALF}) {
    for (uint32_t first = 0; first < 3; ++first) {
      EXPECT_EQ(CheckCodes({.scale = scale, .rows = {{first, first, 12}}}), "") << scale;
    }
  }
}

class RopeAppendOf : public testing::TestWithParam<KvElement> {};

TEST_P(RopeAppendOf, BlocksHaveTheSameBytesHoweverAPromptIsCut) {
  const auto blocks_of = [](const std::vector<std::vector<Rows>>& batches) {
    const RopeCase whole = {.element = GetParam()};
    SimBuffer arena(RopeBatch(whole).ArenaBytes(), "blocks");
    for (const auto& rows : batches) {
      RopeCase c = {.q_norm = true, .k_norm = true, .element = GetParam()};
      c.rows = rows;
      SimBuffer q(size_t{20} * 2 * 64 * sizeof(Bf16), "q");
      EXPECT_TRUE(RopeBatch(c).Run(q, arena).ok());
    }
    return FromDevice<std::byte>(arena);
  };
  const auto once = blocks_of({{{1, 0, 19}}});
  EXPECT_EQ(once, blocks_of({{{1, 0, 7}}, {{1, 7, 9}}, {{1, 16, 3}}}));
  EXPECT_EQ(once, blocks_of({{{1, 0, 18}}, {{kPaddingRow, 0, 1}, {1, 18, 1}}}));
}

INSTANTIATE_TEST_SUITE_P(, RopeAppendOf, testing::Values(KvElement::kBf16, KvElement::kFp8));

TEST(RopeAppend, RefusesShapesByName) {
  const auto message = [](const KvBlocks& kv, uint32_t num_heads) {
    return std::string(
        runner::Kernels().rope_append({.kv = kv, .num_heads = num_heads}, nullptr).message());
  };
  EXPECT_THAT(message({nullptr, 4096, 1, 96, 16}, 1), HasSubstr("RopeAppend: head_dim 96"));
  EXPECT_THAT(message({nullptr, 4096, 1, 64, 48}, 1), HasSubstr("block_size 48"));
  EXPECT_THAT(message({nullptr, 4096, 1, 64, 16}, 17), HasSubstr("17 heads on 1 kv heads"));
  EXPECT_THAT(message({nullptr, 8192, 2, 64, 16}, 3), HasSubstr("3 heads on 2"));
  EXPECT_THAT(message({nullptr, 4080, 1, 64, 16}, 1), HasSubstr("stride of 4080"));
  EXPECT_EQ(message({nullptr, 4096, 1, 64, 16}, 16), "");  // no rows: nothing to do
}

TEST(RopeAppend, MutantsAreNoticed) {
  const simt_test::Suite suite = [] {
    for (const size_t i : {2, 3}) {
      if (!CheckRope(Cases()[i]).empty() || !CheckCodes(Cases()[i]).empty()) return false;
    }
    return true;
  };
  simt_test::ExpectAllNoticed(suite, 10);
}

}  // namespace
}  // namespace baton::kernels::cuda
