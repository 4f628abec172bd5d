// The exchanges of several ranks on the runner: every number of ranks, path and order gives the
// bits of the reference, meetings stay in step over many launches, and no rank reads what another
// has not written.
#include <array>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/exchange_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/math.h"
#include "kernels/simt/arena.h"
#include "kernels/simt/run_options.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/exchange_kernels.h"
#include "tests/kernels/simt/mutation.h"
#include "tests/test_seed.h"

namespace baton::kernels::cuda {
namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using simt_test::OnDevice;
using simt_test::SameBits;
using testing::HasSubstr;

const KernelTable& Table() { return runner::Kernels(); }

std::vector<float> RandomFloats(size_t count, uint64_t seed) {
  TestRandom random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = (static_cast<float>(random.Below(20001)) - 10000.0f) / (random.OneIn(8) ? 3.0f : 4e4f);
  }
  return values;
}

// The flags of all ranks on one device. Meetings begin near the end of their numbers, so that some
// tests pass it.
class Ranks {
 public:
  explicit Ranks(uint32_t num_ranks, uint32_t met = 0xFFFFFFFEu) {
    view_ = {.num_ranks = num_ranks, .first_rank = 0, .num_here = num_ranks, .flags = {}};
    std::vector<uint32_t> words(sizeof(ExchangeFlags) / sizeof(uint32_t), met);
    for (uint32_t r = 0; r < num_ranks; ++r) {
      flags_.push_back(OnDevice(words, "flags"));
      view_.flags[r] = flags_.back().as<ExchangeFlags>();
    }
  }
  const ExchangeRanks& view() const { return view_; }

 private:
  std::vector<SimBuffer> flags_;
  ExchangeRanks view_;
};

// The first difference from what the kernel promises, or "".
std::string CheckAllReduce(const Ranks& ranks, size_t num_elements, AllReducePath path) {
  AllReduceParams params = {
      .ranks = ranks.view(), .parts = {}, .outs = {}, .num_elements = num_elements, .path = path};
  AllReduceParams expected = params;
  std::vector<SimBuffer> buffers;
  std::vector<SimBuffer> outs;
  std::vector<std::vector<float>> parts;
  std::vector<std::vector<Bf16>> exact;
  for (uint32_t r = 0; r < params.ranks.num_ranks; ++r) {
    parts.push_back(RandomFloats(num_elements, 10 + r));
    buffers.push_back(OnDevice(parts.back(), "part"));
    outs.emplace_back(num_elements * sizeof(Bf16), "out");
    exact.emplace_back(num_elements);
    params.parts[r] = buffers[r].as<float>();
    params.outs[r] = outs[r].as<Bf16>();
    expected.parts[r] = parts[r].data();
    expected.outs[r] = exact[r].data();
  }
  if (absl::Status status = Table().all_reduce(params, nullptr); !status.ok()) {
    return std::string(status.message());
  }
  ReferenceAllReduce(expected);
  for (uint32_t r = 0; r < params.ranks.num_ranks; ++r) {
    if (!SameBits(outs[r].data(), exact[r].data(), outs[r].size())) {
      return fmt::format("{} elements, rank {} has other bits", num_elements, r);
    }
  }
  return "";
}

std::string CheckGather(const Ranks& ranks, uint32_t num_rows, uint32_t num_columns,
                        uint32_t rank_columns) {
  const size_t size_bytes = size_t{num_rows} * num_columns * sizeof(float);
  SimBuffer out(size_bytes, "out");
  std::vector<float> exact(size_t{num_rows} * num_columns);
  GatherColumnsParams params = {.ranks = ranks.view(),
                                .parts = {},
                                .out = out.as<float>(),
                                .num_rows = num_rows,
                                .num_columns = num_columns,
                                .rank_columns = rank_columns};
  GatherColumnsParams expected = params;
  std::vector<SimBuffer> buffers;
  std::vector<std::vector<float>> parts;
  for (uint32_t r = 0; r < params.ranks.num_ranks; ++r) {
    const uint32_t width = ColumnsOfRank(num_columns, rank_columns, r);
    parts.push_back(RandomFloats(size_t{num_rows} * width, 20 + r));
    buffers.push_back(OnDevice(parts.back(), "part"));
    params.parts[r] = buffers[r].as<float>();
    expected.parts[r] = parts[r].data();
  }
  if (absl::Status status = Table().gather_columns(params, nullptr); !status.ok()) {
    return std::string(status.message());
  }
  expected.out = exact.data();
  ReferenceGatherColumns(expected);
  return SameBits(out.data(), exact.data(), size_bytes) ? "" : "out has other bits";
}

// Rounds of parts that change, with the sums that exchanges in step give; "" or what differs.
std::string CheckLoop(uint32_t num_ranks, AllReducePath path) {
  constexpr size_t kElements = 40;
  constexpr uint32_t kRounds = 5;
  const Ranks ranks(num_ranks);
  simt_test::ExchangeLoopParams params = {};
  params.reduce = {
      .ranks = ranks.view(), .parts = {}, .outs = {}, .num_elements = kElements, .path = path};
  params.num_rounds = kRounds;
  std::vector<SimBuffer> buffers;
  std::vector<SimBuffer> sums;
  buffers.reserve(size_t{3} * num_ranks);
  for (uint32_t r = 0; r < num_ranks; ++r) {
    for (auto& parts : params.parts) {
      buffers.emplace_back(kElements * sizeof(float), "part");
      parts[r] = buffers.back().as<float>();
    }
    buffers.emplace_back(kElements * sizeof(Bf16), "out");
    params.reduce.outs[r] = buffers.back().as<Bf16>();
    sums.push_back(OnDevice(std::vector<float>(kElements), "sums"));
    params.sums[r] = sums[r].as<float>();
  }
  if (absl::Status status = simt_test::RunExchangeLoop(params); !status.ok()) {
    return std::string(status.message());
  }
  for (size_t e = 0; e < kElements; ++e) {
    float expected = 0;
    for (uint32_t round = 0; round < kRounds; ++round) {
      float of_round = 0;
      for (uint32_t r = 0; r < num_ranks; ++r) {
        of_round += static_cast<float>((r + 1) * (round + 1) + e);
      }
      expected += FloatFromBf16(Bf16FromFloat(of_round));
    }
    for (uint32_t r = 0; r < num_ranks; ++r) {
      if (sums[r].as<float>()[e] != expected) return fmt::format("rank {}, element {}", r, e);
    }
  }
  return "";
}

constexpr std::array kPaths = {AllReducePath::kWhole, AllReducePath::kSlices};

class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(EveryOrder, AllReduceHasTheBitsOfTheReference) {
  for (const uint32_t num_ranks : {1u, 2u, 3u}) {
    const Ranks ranks(num_ranks);
    for (const AllReducePath path : kPaths) {
      // None, fewer than there are slices, and no multiple of what a cta takes.
      for (const size_t count : {0u, 8u, 4104u}) EXPECT_EQ(CheckAllReduce(ranks, count, path), "");
    }
  }
}

TEST_P(EveryOrder, GatherColumnsHasTheBitsOfTheReference) {
  const Ranks ranks(3);
  EXPECT_EQ(CheckGather(ranks, 0, 7, 3), "");
  EXPECT_EQ(CheckGather(ranks, 5, 67, 23), "");
  // The last rank has none.
  EXPECT_EQ(CheckGather(ranks, 3, 128, 64), "");
}

TEST_P(EveryOrder, RoundsOfExchangesStayInStep) {
  for (const AllReducePath path : kPaths) EXPECT_EQ(CheckLoop(2, path), "");
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(AllOrders(2)));

TEST(Exchange, EightRanks) {
  const Ranks ranks(8);
  for (const AllReducePath path : kPaths) {
    EXPECT_EQ(CheckAllReduce(ranks, 8 * 67, path), "");
    EXPECT_EQ(CheckLoop(8, path), "");
  }
  EXPECT_EQ(CheckGather(ranks, 2, 263, 64), "");
  EXPECT_EQ(CheckAllReduce(ranks, 48 * 1024, AllReducePath::kAuto), "");
}

// More than any rank adds alone.
TEST(Exchange, LargePartsAreAddedInSlices) {
  const Ranks ranks(2);
  EXPECT_EQ(CheckAllReduce(ranks, (size_t{512} << 10) / sizeof(float) + 8, AllReducePath::kAuto),
            "");
}

TEST(Exchange, CallsThatNoKernelTakesAreRefusedByName) {
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  AllReduceParams params = {};
  params.ranks = {.num_ranks = 2, .first_rank = 1, .num_here = 2, .flags = {}};
  EXPECT_THAT(message(Table().all_reduce(params, nullptr)),
              HasSubstr("AllReduce: 2 ranks from 1 on, of 2"));
  params.ranks = {.num_ranks = 9, .first_rank = 0, .num_here = 1, .flags = {}};
  EXPECT_THAT(message(Table().all_reduce(params, nullptr)), HasSubstr("of 9"));
  params.ranks = {.num_ranks = 2, .first_rank = 1, .num_here = 1, .flags = {}};
  params.num_elements = 12;
  EXPECT_THAT(message(Table().all_reduce(params, nullptr)), HasSubstr("AllReduce: 12 elements"));
  GatherColumnsParams gather = {};
  gather.ranks = params.ranks;
  gather.num_columns = 65;
  gather.rank_columns = 32;
  EXPECT_THAT(message(Table().gather_columns(gather, nullptr)),
              HasSubstr("GatherColumns: 65 columns of 2 ranks that have at most 32"));
}

TEST(Exchange, ARankThatNeverComesIsFound) {
  const Ranks ranks(2);
  SimBuffer part = OnDevice(std::vector<float>(8), "part");
  SimBuffer out(8 * sizeof(Bf16), "out");
  AllReduceParams params = {.ranks = ranks.view(), .parts = {}, .outs = {}, .num_elements = 8};
  params.ranks.num_here = 1;
  for (uint32_t r = 0; r < 2; ++r) {
    params.parts[r] = part.as<float>();
    params.outs[r] = out.as<Bf16>();
  }
  EXPECT_THAT(std::string(Table().all_reduce(params, nullptr).message()), HasSubstr("deadlock"));
}

TEST(Exchange, MutantsAreNoticed) {
  const simt_test::Suite suite = [] {
    const Ranks alone(1);  // overlaps, as on a device of its own
    const Ranks ranks(3);
    return CheckAllReduce(alone, 8, AllReducePath::kWhole).empty() &&
           CheckGather(alone, 1, 8, 8).empty() &&
           CheckAllReduce(ranks, 2056, AllReducePath::kWhole).empty() &&
           CheckAllReduce(ranks, 2056, AllReducePath::kSlices).empty() &&
           CheckGather(ranks, 3, 67, 23).empty() && CheckLoop(2, AllReducePath::kWhole).empty() &&
           CheckLoop(2, AllReducePath::kSlices).empty();
  };
  simt_test::ExpectAllNoticed(suite, 6);
}

}  // namespace
}  // namespace baton::kernels::cuda
