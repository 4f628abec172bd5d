// KvGather and KvScatter on the runner: the bits of the reference in every order, the checksum of
// the hand-off, nothing written where a checksum is wrong, every mutant noticed.
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/kv_slices_reference.h"
#include "kernels/simt/run_options.h"
#include "src/base/xxh3.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/mutation.h"
#include "tests/test_seed.h"

namespace baton::cuda {
namespace {

using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using simt_test::OnDevice;
using simt_test::SameBits;
using testing::HasSubstr;

const KernelTable& Table() { return runner::Kernels(); }

std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  TestRandom random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  return bytes;
}

// Slices at every second place of the blocks, in an order of their own; staged in reverse.
std::vector<KvSlicePlace> Places(uint32_t num_slices, uint64_t slice_bytes) {
  std::vector<KvSlicePlace> places(num_slices);
  for (uint32_t i = 0; i < num_slices; ++i) {
    places[i].block_offset = (2 * ((i * 5 + 3) % num_slices) + 1) * slice_bytes;
    places[i].staging_offset = (num_slices - 1 - i) * slice_bytes;
  }
  return places;
}

// How many slices of what size, and which of them gets a wrong checksum.
struct Shape {
  uint32_t num_slices;
  uint32_t slice_bytes;
  uint32_t bad_slice = 0xFFFFFFFFu;
};

// Memory of both sides of a move, as the device or the reference sees it.
struct Sides {
  std::vector<std::byte> blocks;
  std::vector<std::byte> staging;
  std::vector<KvSlicePlace> places;
  std::vector<uint64_t> expected;
  std::vector<uint64_t> checksums;

  explicit Sides(const Shape& shape)
      : blocks(RandomBytes(size_t{2} * (shape.num_slices + 1) * shape.slice_bytes, 1)),
        staging(RandomBytes(size_t{shape.num_slices} * shape.slice_bytes, 2)),
        places(Places(shape.num_slices, shape.slice_bytes)),
        expected(shape.num_slices),
        checksums(shape.num_slices, 7) {
    for (uint32_t i = 0; i < shape.num_slices; ++i) {
      expected[i] = Xxh3Hash64(staging.data() + places[i].staging_offset, shape.slice_bytes);
      if (i == shape.bad_slice) expected[i] ^= uint64_t{1} << (i % 64);
    }
  }

  KvSlicesParams Params(const Shape& shape, const uint64_t* keys) {
    return {blocks.data(),   staging.data(),   places.data(),    keys,
            expected.data(), checksums.data(), shape.num_slices, shape.slice_bytes};
  }
};

// Runs one of the two kernels and its reference; the first difference, or "".
std::string Check(const Shape& shape, bool gather) {
  Sides sides(shape);
  const auto key_words = Xxh3Keys();
  SimBuffer blocks = OnDevice(sides.blocks, "blocks");
  SimBuffer staging = OnDevice(sides.staging, "staging");
  SimBuffer places = OnDevice(sides.places, "places");
  SimBuffer expected = OnDevice(sides.expected, "expected");
  SimBuffer checksums = OnDevice(sides.checksums, "checksums");
  SimBuffer keys = OnDevice(std::vector<uint64_t>(key_words.begin(), key_words.end()), "keys");
  const KvSlicesParams params = {blocks.as<std::byte>(),    staging.as<std::byte>(),
                                 places.as<KvSlicePlace>(), keys.as<uint64_t>(),
                                 expected.as<uint64_t>(),   checksums.as<uint64_t>(),
                                 shape.num_slices,          shape.slice_bytes};
  const auto run = gather ? Table().kv_gather : Table().kv_scatter;
  const absl::Status status = run(params, nullptr);
  if (!status.ok()) return std::string(status.message());
  const KvSlicesParams host = sides.Params(shape, key_words.data());
  gather ? ReferenceKvGather(host) : ReferenceKvScatter(host);
  if (!SameBits(checksums.data(), sides.checksums.data(), checksums.size())) {
    return "other checksums";
  }
  if (!SameBits(staging.data(), sides.staging.data(), staging.size())) return "other staging";
  if (!SameBits(blocks.data(), sides.blocks.data(), blocks.size())) return "other blocks";
  return "";
}

std::string CheckBoth(const Shape& shape) {
  const std::string gather = Check(shape, true);
  return gather.empty() ? Check(shape, false) : gather;
}

class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

// Around each size at which the hash or a round changes its course: a stripe, a KiB, a pass of 4
// KiB, a round of 16 KiB.
TEST_P(EveryOrder, SlicesAndChecksumsAreThoseOfTheReference) {
  for (const uint32_t slice_bytes : {256u, 320u, 960u, 1024u, 1088u, 2048u, 4032u, 4096u, 4160u,
                                     6208u, 12288u, 16320u, 16384u, 16448u, 33856u}) {
    EXPECT_EQ(CheckBoth({2, slice_bytes, 1}), "") << slice_bytes;
  }
  for (const uint32_t num_slices : {0u, 1u, 7u, 13u}) {
    EXPECT_EQ(CheckBoth({num_slices, 1344, 5}), "") << num_slices;
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(simt::AllOrders(2)));

TEST(KvSlices, SlicesOfLargeModelsFollowTheReference) {
  EXPECT_EQ(CheckBoth({3, 65536, 0}), "");  // 8 kv heads of 128, blocks of 16 tokens
  EXPECT_EQ(CheckBoth({1, 1048576}), "");   // 64 rounds
}

// The checksum is the hand-off's: any change of a byte is found.
TEST(KvSlices, AnyDamagedByteKeepsASliceOutOfItsBlock) {
  const Shape shape = {1, 1344};
  TestRandom random(TestSeed());
  const auto key_words = Xxh3Keys();
  SimBuffer keys = OnDevice(std::vector<uint64_t>(key_words.begin(), key_words.end()), "keys");
  for (int round = 0; round < 200; ++round) {
    Sides sides(shape);
    SimBuffer blocks = OnDevice(sides.blocks, "blocks");
    SimBuffer places = OnDevice(sides.places, "places");
    SimBuffer expected = OnDevice(sides.expected, "expected");
    SimBuffer checksums = OnDevice(sides.checksums, "checksums");
    const uint32_t at = random.Below(shape.slice_bytes);
    sides.staging[at] ^= static_cast<std::byte>(1 + random.Below(255));
    SimBuffer staging = OnDevice(sides.staging, "staging");
    ASSERT_TRUE(
        Table()
            .kv_scatter({blocks.as<std::byte>(), staging.as<std::byte>(), places.as<KvSlicePlace>(),
                         keys.as<uint64_t>(), expected.as<uint64_t>(), checksums.as<uint64_t>(), 1,
                         shape.slice_bytes},
                        nullptr)
            .ok());
    EXPECT_NE(checksums.as<uint64_t>()[0], sides.expected[0]) << "byte " << at;
    EXPECT_TRUE(SameBits(blocks.data(), sides.blocks.data(), blocks.size())) << "byte " << at;
  }
}

TEST(KvSlices, WithTheBlocksAsStagingOnlyChecksumsAreWritten) {
  const Shape shape = {3, 1088};
  const std::vector<std::byte> bytes = RandomBytes(size_t{4} * shape.slice_bytes, 3);
  const auto key_words = Xxh3Keys();
  SimBuffer blocks = OnDevice(bytes, "blocks");
  std::vector<KvSlicePlace> where;
  std::vector<uint64_t> wanted;
  for (const uint64_t at : {3u, 0u, 2u}) {
    where.push_back({at * shape.slice_bytes, at * shape.slice_bytes});
    wanted.push_back(Xxh3Hash64(bytes.data() + at * shape.slice_bytes, shape.slice_bytes));
  }
  // One slice happens to have the checksum that is named: it is copied onto itself.
  const std::vector<uint64_t> named = {0, wanted[1], 0};
  SimBuffer places = OnDevice(where, "places");
  SimBuffer expected = OnDevice(named, "expected");
  SimBuffer checksums = OnDevice(std::vector<uint64_t>(3, 7), "checksums");
  SimBuffer keys = OnDevice(std::vector<uint64_t>(key_words.begin(), key_words.end()), "keys");
  const KvSlicesParams params = {blocks.as<std::byte>(),    blocks.as<std::byte>(),
                                 places.as<KvSlicePlace>(), keys.as<uint64_t>(),
                                 expected.as<uint64_t>(),   checksums.as<uint64_t>(),
                                 shape.num_slices,          shape.slice_bytes};
  ASSERT_TRUE(Table().kv_scatter(params, nullptr).ok());
  EXPECT_TRUE(SameBits(checksums.data(), wanted.data(), checksums.size()));
  EXPECT_TRUE(SameBits(blocks.data(), bytes.data(), blocks.size()));
}

TEST(KvSlices, SizesThatNoKernelTakesAreRefusedByName) {
  for (const uint32_t slice_bytes : {0u, 64u, 192u, 272u, kMaxKvSliceBytes + 64}) {
    const KvSlicesParams params = {.num_slices = 1, .slice_bytes = slice_bytes};
    for (const auto kernel : {Table().kv_gather, Table().kv_scatter}) {
      const absl::Status status = kernel(params, nullptr);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(slice_bytes)));
    }
  }
}

TEST(KvSlices, MutantsAreNoticed) {
  const simt_test::Suite suite = [] {
    return CheckBoth({2, 1088, 1}).empty() && CheckBoth({1, 33856}).empty();
  };
  simt_test::ExpectAllNoticed(suite, 10);
}

}  // namespace
}  // namespace baton::cuda
