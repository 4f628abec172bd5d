// KvGather and KvScatter on the runner: the bits of the reference in every order, the checksum of
// the hand-off, nothing written where a checksum is wrong, every mutant noticed.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/kv_slices_reference.h"
#include "kernels/simt/run_options.h"
#include "kvcache/kv_view.h"
#include "src/base/xxh3.h"
#include "tests/drawn_bytes.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/mutation.h"
#include "tests/test_seed.h"

namespace baton::kernels::cuda {

using namespace kv;  // NOLINT(google-build-using-namespace)

namespace {

using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using simt_test::OnDevice;
using simt_test::SameBits;
using testing::HasSubstr;

const KernelTable& Table() { return runner::Kernels(); }

// How many slices of what size, which of them gets a wrong checksum, and among how many ranks each
// side is divided.
struct Shape {
  uint32_t num_slices;
  uint32_t slice_bytes;
  uint32_t bad_slice = 0xFFFFFFFFu;
  uint32_t block_ranks = 1;
  uint32_t staging_ranks = 1;
};

// Slices at every second place of the blocks, in an order of their own; staged in reverse.
std::vector<KvSlicePlace> Places(const Shape& shape) {
  std::vector<KvSlicePlace> places(shape.num_slices);
  for (uint32_t i = 0; i < shape.num_slices; ++i) {
    places[i].block_offset =
        (2 * ((i * 5 + 3) % shape.num_slices) + 1) * (shape.slice_bytes / shape.block_ranks);
    places[i].staging_offset =
        (shape.num_slices - 1 - i) * (shape.slice_bytes / shape.staging_ranks);
  }
  return places;
}

// Memory of each rank.
using RankBytes = std::vector<std::vector<std::byte>>;

RankBytes RandomRanks(uint32_t num_ranks, size_t size_bytes, uint64_t seed) {
  RankBytes ranks;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(DrawnBytes(size_bytes / num_ranks, 10 * seed + rank));
  }
  return ranks;
}

KvSide SideOf(RankBytes& ranks) {
  KvSide side;
  side.num_ranks = static_cast<uint32_t>(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) side.ranks[rank] = ranks[rank].data();
  return side;
}

// The whole slice: K of all ranks, then V.
std::vector<std::byte> Whole(const RankBytes& ranks, uint64_t offset, size_t slice_bytes) {
  const size_t piece = slice_bytes / 2 / ranks.size();
  std::vector<std::byte> slice;
  for (const size_t which : {0u, 1u}) {
    for (const std::vector<std::byte>& rank : ranks) {
      const std::byte* const begin = rank.data() + offset + which * piece;
      slice.insert(slice.end(), begin, begin + piece);
    }
  }
  return slice;
}

// Memory of both sides of a move, as the device or the reference sees it.
struct Sides {
  RankBytes blocks;
  RankBytes staging;
  std::vector<KvSlicePlace> places;
  std::vector<uint64_t> expected;
  std::vector<uint64_t> checksums;

  explicit Sides(const Shape& shape)
      : blocks(RandomRanks(shape.block_ranks,
                           size_t{2} * (shape.num_slices + 1) * shape.slice_bytes, 1)),
        staging(RandomRanks(shape.staging_ranks, size_t{shape.num_slices} * shape.slice_bytes, 2)),
        places(Places(shape)),
        expected(shape.num_slices),
        checksums(shape.num_slices, 7) {
    for (uint32_t i = 0; i < shape.num_slices; ++i) {
      const auto slice = Whole(staging, places[i].staging_offset, shape.slice_bytes);
      expected[i] = Xxh3Hash64(slice.data(), slice.size());
      if (i == shape.bad_slice) expected[i] ^= uint64_t{1} << (i % 64);
    }
  }

  KvSlicesParams Params(const Shape& shape, const uint64_t* keys) {
    return {SideOf(blocks),  SideOf(staging),  places.data(),    keys,
            expected.data(), checksums.data(), shape.num_slices, shape.slice_bytes};
  }
};

// The memory of ranks on the runner's device: guard pages around each.
class DeviceRanks {
 public:
  DeviceRanks(const RankBytes& ranks, const char* name) {
    for (const std::vector<std::byte>& rank : ranks) buffers_.push_back(OnDevice(rank, name));
  }
  KvSide side() const {
    KvSide side;
    side.num_ranks = static_cast<uint32_t>(buffers_.size());
    for (size_t rank = 0; rank < buffers_.size(); ++rank) {
      side.ranks[rank] = buffers_[rank].as<std::byte>();
    }
    return side;
  }
  bool Holds(const RankBytes& ranks) const {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (!SameBits(buffers_[rank].data(), ranks[rank].data(), ranks[rank].size())) return false;
    }
    return true;
  }

 private:
  std::vector<SimBuffer> buffers_;
};

// Runs one of the two kernels and its reference; the first difference, or "".
std::string Check(const Shape& shape, bool gather) {
  Sides sides(shape);
  const auto key_words = Xxh3Keys();
  const DeviceRanks blocks(sides.blocks, "blocks");
  const DeviceRanks staging(sides.staging, "staging");
  SimBuffer places = OnDevice(sides.places, "places");
  SimBuffer expected = OnDevice(sides.expected, "expected");
  SimBuffer checksums = OnDevice(sides.checksums, "checksums");
  SimBuffer keys = OnDevice(std::vector<uint64_t>(key_words.begin(), key_words.end()), "keys");
  const KvSlicesParams params = {
      blocks.side(),       staging.side(),          places.as<KvSlicePlace>(),
      keys.as<uint64_t>(), expected.as<uint64_t>(), checksums.as<uint64_t>(),
      shape.num_slices,    shape.slice_bytes};
  const auto run = gather ? Table().kv_gather : Table().kv_scatter;
  const absl::Status status = run(params, nullptr);
  if (!status.ok()) return std::string(status.message());
  const KvSlicesParams host = sides.Params(shape, key_words.data());
  gather ? ReferenceKvGather(host) : ReferenceKvScatter(host);
  if (!SameBits(checksums.data(), sides.checksums.data(), checksums.size())) {
    return "other checksums";
  }
  if (!staging.Holds(sides.staging)) return "other staging";
  return blocks.Holds(sides.blocks) ? "" : "other blocks";
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

// Pieces that end inside a pass, a stripe of the hash, and a quad of it; sides of unequal numbers.
TEST_P(EveryOrder, RanksOnEitherSideFollowTheReference) {
  for (const auto& [blocks, staging] :
       {std::pair{2u, 1u}, {1u, 2u}, {4u, 1u}, {8u, 1u}, {2u, 4u}, {8u, 2u}, {4u, 4u}}) {
    for (const uint32_t slice_bytes : {256u, 1280u, 4352u, 33792u}) {
      EXPECT_EQ(CheckBoth({2, slice_bytes, 1, blocks, staging}), "")
          << slice_bytes << " bytes of " << blocks << " and " << staging;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(simt::AllOrders(2)));

// The layout of so many heads, whichever ranks hold them. Each piece is found where KvView says it
// is.
KvLayout LayoutOf(KvDtype dtype, uint32_t num_heads, uint32_t block_size) {
  return {.dtype = dtype,
          .encoding = dtype == KvDtype::kFp8 ? KvEncoding::kFragments : KvEncoding::kPlain,
          .num_layers = 1,
          .num_kv_heads = num_heads,
          .head_dim = 64,
          .block_size = block_size};
}

// Copies each head's piece of one block of one layer between ranks' memories and a whole slice.
RankBytes Divided(const KvLayout& layout, uint32_t num_ranks, std::vector<std::byte> slice) {
  const KvLayout part = RankLayout(layout, num_ranks);
  RankBytes ranks(num_ranks, std::vector<std::byte>(part.SliceBytes()));
  const KvView whole{slice.data(), &layout, 1};
  for (uint32_t head = 0; head < layout.num_kv_heads; ++head) {
    const KvView own{ranks[head / part.num_kv_heads].data(), &part, 1};
    for (const uint32_t which : {0u, 1u}) {
      std::memcpy(own.Piece(0, 0, which, head % part.num_kv_heads), whole.Piece(0, 0, which, head),
                  layout.PieceBytes());
    }
  }
  return ranks;
}

// Gathers a divided slice into one memory, or pulls it into those of others.
std::string CheckLayout(const KvLayout& layout, uint32_t from_ranks, uint32_t to_ranks) {
  const std::vector<std::byte> slice = DrawnBytes(layout.SliceBytes(), 3);
  const auto key_words = Xxh3Keys();
  const DeviceRanks from(Divided(layout, from_ranks, slice), "from");
  const DeviceRanks to(RankBytes(to_ranks, std::vector<std::byte>(slice.size() / to_ranks)), "to");
  SimBuffer places = OnDevice(std::vector<KvSlicePlace>(1), "places");
  SimBuffer checksums = OnDevice(std::vector<uint64_t>(1), "checksums");
  SimBuffer keys = OnDevice(std::vector<uint64_t>(key_words.begin(), key_words.end()), "keys");
  const absl::Status status =
      Table().kv_gather({from.side(), to.side(), places.as<KvSlicePlace>(), keys.as<uint64_t>(),
                         nullptr, checksums.as<uint64_t>(), 1, static_cast<uint32_t>(slice.size())},
                        nullptr);
  if (!status.ok()) return std::string(status.message());
  if (checksums.as<uint64_t>()[0] != Xxh3Hash64(slice.data(), slice.size())) return "other hash";
  return to.Holds(Divided(layout, to_ranks, slice)) ? "" : "other heads";
}

TEST(KvSlices, TheHeadsOfRanksAreThoseOfTheWholeSlice) {
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kFp8}) {
    for (const uint32_t block_size : {16u, 32u, 64u}) {
      for (const uint32_t num_heads : {1u, 2u, 4u, 8u, 16u}) {
        const KvLayout layout = LayoutOf(dtype, num_heads, block_size);
        for (const uint32_t from : {1u, 2u, 4u, 8u}) {
          for (const uint32_t to : {1u, 2u, 4u, 8u}) {
            if (num_heads % from != 0 || num_heads % to != 0) continue;
            EXPECT_EQ(CheckLayout(layout, from, to), "")
                << num_heads << " heads of " << block_size << " tokens, " << from << " to " << to;
          }
        }
      }
    }
  }
}

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
    SimBuffer blocks = OnDevice(sides.blocks[0], "blocks");
    SimBuffer places = OnDevice(sides.places, "places");
    SimBuffer expected = OnDevice(sides.expected, "expected");
    SimBuffer checksums = OnDevice(sides.checksums, "checksums");
    const uint32_t at = random.Below(shape.slice_bytes);
    sides.staging[0][at] ^= static_cast<std::byte>(1 + random.Below(255));
    SimBuffer staging = OnDevice(sides.staging[0], "staging");
    ASSERT_TRUE(
        Table()
            .kv_scatter({blocks.as<std::byte>(), staging.as<std::byte>(), places.as<KvSlicePlace>(),
                         keys.as<uint64_t>(), expected.as<uint64_t>(), checksums.as<uint64_t>(), 1,
                         shape.slice_bytes},
                        nullptr)
            .ok());
    EXPECT_NE(checksums.as<uint64_t>()[0], sides.expected[0]) << "byte " << at;
    EXPECT_TRUE(SameBits(blocks.data(), sides.blocks[0].data(), blocks.size())) << "byte " << at;
  }
}

TEST(KvSlices, WithTheBlocksAsStagingOnlyChecksumsAreWritten) {
  const Shape shape = {3, 1088};
  const std::vector<std::byte> bytes = DrawnBytes(size_t{4} * shape.slice_bytes, 3);
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

TEST(KvSlices, RanksThatCannotShareASliceAreRefusedByNumber) {
  for (const auto& [slice_bytes, num_ranks] : {std::pair{256u, 0u}, {256u, 9u}, {320u, 4u}}) {
    KvSlicesParams params = {.num_slices = 1, .slice_bytes = slice_bytes};
    params.staging.num_ranks = num_ranks;
    for (const auto kernel : {Table().kv_gather, Table().kv_scatter}) {
      const absl::Status status = kernel(params, nullptr);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(num_ranks) + " ranks"));
    }
  }
}

TEST(KvSlices, MutantsAreNoticed) {
  const simt_test::Suite suite = [] {
    return CheckBoth({2, 1088, 1}).empty() && CheckBoth({1, 33856}).empty() &&
           CheckBoth({2, 1280, 1, 2, 4}).empty();
  };
  simt_test::ExpectAllNoticed(suite, 10);
}

}  // namespace
}  // namespace baton::kernels::cuda
