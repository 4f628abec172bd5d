// Models that are divided among ranks. Logits are near those of a float64 reference. A row's bits
// depend on its sequence and on the number of ranks alone. A model that cannot be divided is
// refused.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/encode_matrix.h"
#include "src/model/model_rank.h"
#include "src/model/tensor_plan.h"
#include "tests/model/golden_compare.h"
#include "tests/model/golden_file.h"
#include "tests/model/on_device.h"
#include "tests/model/rounding_bound.h"
#include "tests/test_seed.h"

namespace baton::model {

namespace cuda = kernels::cuda;
using device::Accelerator;
using device::DeviceKind;
using device::ThreadPool;
using kernels::AttentionSpan;
using kernels::RowSampling;
using kv::KvDtype;
using kv::KvDtypeName;
using kv::KvView;

namespace {

using ::testing::HasSubstr;

struct Divided {
  const char* name;
  uint32_t num_ranks;
  KvDtype kv_dtype = KvDtype::kBf16;
};

std::string NameOf(const ::testing::TestParamInfo<Divided>& info) {
  return fmt::format("{}_of_{}_{}", info.param.name, info.param.num_ranks,
                     KvDtypeName(info.param.kv_dtype));
}

class DeviceRanksTest : public ::testing::TestWithParam<Divided> {
 protected:
  OnDevice Load() const {
    return OnDevice(Tiny(GetParam().name), 16, 96, GetParam().kv_dtype, GetParam().num_ranks);
  }
};

TEST_P(DeviceRanksTest, LogitsAgreeWithTheReference) {
  OnDevice on = Load();
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const auto golden = ReadGolden(GoldenPath(fmt::format("tiny_{}.golden", GetParam().name)));
  ASSERT_TRUE(golden.ok()) << golden.status();
  const double bound = GetParam().kv_dtype == KvDtype::kFp8 ? 1.5 : TinyDeviceBound();
  const Accuracy accuracy = Compare(on.fixture, *golden, bound, 3);
  std::printf(
      "%s, %u ranks: %d rows, error worst %.2e rms %.2e of bound %.2e; argmax decided on %d\n",
      GetParam().name, GetParam().num_ranks, accuracy.num_rows, accuracy.worst, accuracy.mean,
      bound, accuracy.num_decided);
  EXPECT_LE(accuracy.worst, bound);
  EXPECT_LE(accuracy.mean, TinyDeviceBound());
  EXPECT_EQ(accuracy.num_wrong, 0);
}

// Decoded token by token by steps that were recorded; then in chunks beside others, on a model
// that recorded none.
TEST_P(DeviceRanksTest, ARowsBitsDependOnItsSequenceAlone) {
  constexpr uint32_t kPrompt = 21;
  constexpr uint32_t kTotal = 30;
  const std::vector<TokenId> tokens = RandomTokens(kTotal, TestSeed());
  const std::span<const TokenId> all(tokens);
  OnDevice on = Load();
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  ASSERT_TRUE(on.fixture.model().Prepare(on.fixture.view()).ok());
  EXPECT_GT(static_cast<const DeviceModel&>(on.fixture.model()).num_recorded_steps(), 0u);
  auto logits = on.fixture.Run({{0, 0, all.first(kPrompt)}});
  for (uint32_t i = kPrompt; i < kTotal; ++i) {
    logits = on.fixture.Run({{0, i, all.subspan(i, 1)}});
    ASSERT_TRUE(logits.ok()) << logits.status();
  }
  OnDevice again = Load();
  std::mt19937_64 random(TestSeed());
  for (uint32_t begin = 0; begin < kTotal;) {
    const uint32_t size = std::min<uint32_t>(1 + random() % 13, kTotal - begin);
    const std::vector<TokenId> other = RandomTokens(1 + random() % 20, random());
    const auto both =
        again.fixture.Run({{2 + begin, 0, other}, {1, begin, all.subspan(begin, size)}});
    ASSERT_TRUE(both.ok()) << both.status();
    begin += size;
    if (begin < kTotal) continue;
    EXPECT_TRUE(std::equal(logits->begin(), logits->end(), both->end() - on.fixture.vocab()));
  }
  EXPECT_EQ(again.fixture.KvBytes(1, kTotal), on.fixture.KvBytes(0, kTotal));
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceRanksTest,
                         ::testing::Values(Divided{"ranks8_llama", 2}, Divided{"ranks8_llama", 4},
                                           Divided{"ranks8_llama", 8},
                                           Divided{"ranks8_llama", 2, KvDtype::kFp8},
                                           Divided{"head64_qwen2", 2}, Divided{"ranks2_gemma3", 2},
                                           Divided{"ranks2_qwen3moe", 2}),
                         NameOf);

// The tokens that rank 0 chooses are of all columns.
TEST(DeviceRanks, ChoosesAmongTheTokensOfAllRanks) {
  OnDevice on(Tiny("ranks8_llama"), 16, 96, KvDtype::kBf16, 4);
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const std::vector<TokenId> tokens = RandomTokens(40, TestSeed());
  for (uint32_t i = 0; i < 4; ++i) {
    const std::span<const TokenId> prompt = std::span(tokens).subspan(10 * i, 10);
    const auto logits = on.fixture.Run({{i, 0, prompt}});
    ASSERT_TRUE(logits.ok()) << logits.status();
    RowSampling greedy = {};
    greedy.on_device = 1;
    const auto chosen = on.fixture.Choose({{4 + i, 0, prompt}}, {greedy});
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_EQ(chosen->tokens[0],
              std::max_element(logits->begin(), logits->end()) - logits->begin());
  }
}

TEST(DeviceRanks, AreAPartOfWhatDecidesBits) {
  OnDevice one(Tiny("ranks8_llama"));
  OnDevice two(Tiny("ranks8_llama"), 64, 96, KvDtype::kBf16, 2);
  ASSERT_TRUE(one.fixture.status().ok() && two.fixture.status().ok());
  EXPECT_EQ(one.fixture.model().layout(), two.fixture.model().layout());
  EXPECT_EQ(one.fixture.model().weights_id(), two.fixture.model().weights_id());
  EXPECT_NE(one.fixture.model().numerics_id(), two.fixture.model().numerics_id());
  EXPECT_THAT(two.fixture.model().numerics_text(), HasSubstr(" ranks=2"));
}

TEST(DeviceRanks, WhatCannotBeDividedIsRefusedWithItsSize) {
  const auto message = [](const char* name, uint32_t num_ranks) {
    const OnDevice on(Tiny(name), 64, 96, KvDtype::kBf16, num_ranks);
    return std::string(on.fixture.status().message());
  };
  EXPECT_THAT(message("ranks8_llama", 3), HasSubstr("among 1, 2, 4 or 8 ranks, not 3"));
  EXPECT_THAT(message("ranks8_llama", 16), HasSubstr("ranks, not 16"));
  EXPECT_THAT(
      message("head64_llama", 2),
      HasSubstr("--tensor-parallel 2: the model's heads, 3, cannot be divided among 2 ranks"));
  EXPECT_THAT(message("ranks2_gemma3", 4),
              HasSubstr("the model's KV heads, 2, cannot be divided among 4 ranks"));
}

TEST(DeviceRanks, AViewOfOtherRanksIsRefused) {
  OnDevice on(Tiny("ranks8_llama"), 16, 96, KvDtype::kBf16, 2);
  ASSERT_TRUE(on.fixture.status().ok());
  KvView view = on.fixture.view();
  view.ranks = view.ranks.first(1);
  const TokenId token = 1;
  const uint32_t block = 0;
  const AttentionSpan span{.kv = {{&block, 1}}, .first_row = 0, .num_rows = 1, .first_pos = 0};
  const ModelBatch batch{.token_ids = {&token, 1}, .spans = {&span, 1}, .logit_rows = {}};
  EXPECT_THAT(std::string(on.fixture.model().Forward(batch, view, nullptr, {}).message()),
              HasSubstr("blocks of 1 ranks, the model has 2"));
  EXPECT_FALSE(on.fixture.model().Prepare(view).ok());
}

// Sums of few rows are never added in slices by themselves.
TEST(DeviceRanks, SumsInSlicesHaveTheSameBits) {
  static const cuda::KernelTable kernels = [] {
    cuda::KernelTable table = cuda::runner::Kernels();
    table.all_reduce = [](const cuda::AllReduceParams& params, void* stream) {
      cuda::AllReduceParams in_slices = params;
      in_slices.path = cuda::AllReducePath::kSlices;
      return cuda::runner::Kernels().all_reduce(in_slices, stream);
    };
    return table;
  }();
  OnDevice whole(Tiny("ranks8_llama"), 16, 96, KvDtype::kBf16, 4);
  const ComputeDevice device = *OpenComputeDevice(DeviceKind::kSimt);
  ModelFixture slices({.path = Tiny("ranks8_llama"),
                       .block_size = 16,
                       .max_rows = 96,
                       .num_blocks = 61,
                       .device = device.accelerator.get(),
                       .kernels = &kernels,
                       .num_ranks = 4});
  ASSERT_TRUE(whole.fixture.status().ok() && slices.status().ok());
  const std::vector<TokenId> tokens = RandomTokens(40, TestSeed());
  const auto expected = whole.fixture.Run({{0, 0, tokens}});
  const auto got = slices.Run({{0, 0, tokens}});
  ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
  EXPECT_EQ(*got, *expected);
}

// ---- Ranks on devices of their own. The runner computes a launch at once, so one of a single rank
// would wait for ever: they are put off until all ranks have come, and computed as one.

template <typename Params>
absl::Status Together(const Params& params, absl::Status (*exchange)(const Params&, void*)) {
  static uint32_t next = 0;
  EXPECT_EQ(params.ranks.num_here, 1u);
  EXPECT_EQ(params.ranks.first_rank, next) << "ranks come in turn";
  next = (next + 1) % params.ranks.num_ranks;
  if (next != 0) return absl::OkStatus();
  Params all = params;
  all.ranks.first_rank = 0;
  all.ranks.num_here = all.ranks.num_ranks;
  return exchange(all, nullptr);
}

const cuda::KernelTable& KernelsOfManyDevices() {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable kernels = cuda::runner::Kernels();
    kernels.all_reduce = [](const cuda::AllReduceParams& params, void*) {
      return Together(params, cuda::runner::Kernels().all_reduce);
    };
    kernels.gather_columns = [](const cuda::GatherColumnsParams& params, void*) {
      return Together(params, cuda::runner::Kernels().gather_columns);
    };
    return kernels;
  }();
  return table;
}

TEST(DeviceRanks, OnDevicesOfTheirOwnTheyGiveTheSameBits) {
  OnDevice together(Tiny("ranks8_llama"), 16, 96, KvDtype::kBf16, 2);
  ASSERT_TRUE(together.fixture.status().ok());
  const ComputeDevice device = *OpenComputeDevice(DeviceKind::kSimt);
  const std::unique_ptr<Accelerator> peer = *device.accelerator->Share();
  ModelFixture apart({.path = Tiny("ranks8_llama"),
                      .block_size = 16,
                      .max_rows = 96,
                      .num_blocks = 61,
                      .device = device.accelerator.get(),
                      .kernels = &KernelsOfManyDevices(),
                      .num_ranks = 2,
                      .peers = {peer.get()}});
  ASSERT_TRUE(apart.status().ok()) << apart.status();
  const std::vector<TokenId> tokens = RandomTokens(40, TestSeed());
  const auto expected = together.fixture.Run({{0, 0, tokens}});
  const auto got = apart.Run({{0, 0, tokens}});
  ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
  EXPECT_EQ(*got, *expected);
  EXPECT_EQ(apart.KvBytes(0, 40), together.fixture.KvBytes(0, 40));
  EXPECT_FALSE(apart.model().Share({}).ok());
  // The runner cannot record two devices: it goes on without.
  ASSERT_TRUE(apart.model().Prepare(apart.view()).ok());
  EXPECT_EQ(static_cast<const DeviceModel&>(apart.model()).num_recorded_steps(), 0u);
  EXPECT_TRUE(apart.Run({{0, 40, std::span(tokens).first(1)}}).ok());
}

// ---- Parts of tensors.

TEST(TensorSliceTest, TakesRowsAndColumnsOfEveryMatrixWhateverTheType) {
  ThreadPool pool(1);
  const auto file = OpenModelFile(Tiny("ranks2_qwen3moe"));
  ASSERT_TRUE(file.ok());
  const GgufTensor* const tensor = (*file)->FindTensor("blk.0.ffn_down_exps.weight");
  ASSERT_NE(tensor, nullptr);
  ASSERT_EQ(tensor->DimsText(), "[32, 32, 7]");
  // Whole blocks of Q8_0 stay as they are; parts of blocks come as bf16.
  const auto rows = SliceTensor(*tensor, {8, 5}, {0, 32}, pool);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->tensor.type, tensor->type);
  EXPECT_EQ(rows->tensor.DimsText(), "[32, 5, 7]");
  constexpr size_t kRowBytes = 34;
  for (size_t matrix = 0; matrix < 7; ++matrix) {
    EXPECT_EQ(std::memcmp(rows->tensor.data.data() + matrix * 5 * kRowBytes,
                          tensor->data.data() + (matrix * 32 + 8) * kRowBytes, 5 * kRowBytes),
              0);
  }
  const auto columns = SliceTensor(*tensor, {0, 32}, {16, 16}, pool);
  ASSERT_TRUE(columns.ok());
  EXPECT_EQ(columns->tensor.type->name, "BF16");
  const auto whole = EncodeMatrix(*tensor, GgmlType::kBf16, pool);
  ASSERT_TRUE(whole.ok());
  for (size_t row = 0; row < size_t{7} * 32; ++row) {
    EXPECT_EQ(
        std::memcmp(columns->tensor.data.data() + row * 32, whole->data() + row * 64 + 32, 32), 0);
  }
}

// Codes take the scales of their rows and columns with them; cuts within a group give bf16.
TEST(TensorSliceTest, OfFp8HasTheScalesOfItsCodes) {
  ThreadPool pool(1);
  constexpr uint32_t kRows = 6;
  constexpr uint32_t kColumns = 160;
  for (const uint32_t group : {64u, kColumns}) {
    const uint32_t groups = (kColumns - 1) / group + 1;
    TestRandom random(3);
    std::vector<std::byte> codes(size_t{2} * kRows * kColumns);
    for (std::byte& code : codes) code = static_cast<std::byte>(random.Below(0x7F));
    std::vector<float> values;
    for (uint32_t i = 0; i < 2 * kRows * groups; ++i) {
      values.push_back(static_cast<float>(1 + random.Below(1000)) / 512.0f);
    }
    const Fp8Scales scales = {values, group};
    const GgufTensorType type = Fp8TensorType(scales);
    const GgufTensor tensor = {.name = "fp8",
                               .type = &type,
                               .num_dims = 3,
                               .dims = {kColumns, kRows, 2, 1},
                               .data = codes};
    const auto whole = *EncodeMatrix(tensor, GgmlType::kBf16, pool);
    for (const IndexRange columns :
         {IndexRange{0, kColumns}, IndexRange{64, 64}, IndexRange{128, 32}, IndexRange{32, 96}}) {
      const auto slice = SliceTensor(tensor, {2, 3}, columns, pool);
      ASSERT_TRUE(slice.ok()) << slice.status();
      const bool cuts = group == 64 && columns.first % 64 != 0;
      EXPECT_EQ(slice->tensor.fp8() == nullptr, cuts);
      const auto part = *EncodeMatrix(slice->tensor, GgmlType::kBf16, pool);
      for (uint64_t row = 0; row < 6; ++row) {
        const uint64_t from = (row / 3 * kRows + 2 + row % 3) * kColumns + columns.first;
        EXPECT_EQ(std::memcmp(part.data() + row * columns.count * 2, whole.data() + from * 2,
                              columns.count * 2),
                  0)
            << "group " << group << " row " << row << " columns from " << columns.first;
      }
    }
  }
}

// Rows in any order, some left out, each with its scales; elements of a vector.
TEST(TensorSliceTest, PickedRowsHaveTheirScales) {
  ThreadPool pool(1);
  constexpr uint32_t kRows = 6;
  constexpr uint32_t kColumns = 160;
  const std::vector<uint32_t> picked = {5, 0, 3};
  for (const uint32_t group : {64u, kColumns}) {
    const uint32_t groups = (kColumns - 1) / group + 1;
    TestRandom random(3);
    std::vector<std::byte> codes(size_t{kRows} * kColumns);
    for (std::byte& code : codes) code = static_cast<std::byte>(random.Below(0x7F));
    std::vector<float> values;
    for (uint32_t i = 0; i < kRows * groups; ++i) {
      values.push_back(static_cast<float>(1 + random.Below(1000)) / 512.0f);
    }
    const Fp8Scales scales = {values, group};
    const GgufTensorType type = Fp8TensorType(scales);
    const GgufTensor tensor = {.name = "fp8",
                               .type = &type,
                               .num_dims = 2,
                               .dims = {kColumns, kRows, 1, 1},
                               .data = codes};
    const auto whole = *EncodeMatrix(tensor, GgmlType::kBf16, pool);
    const TensorSlice slice = PickRows(tensor, picked);
    EXPECT_EQ(slice.tensor.DimsText(), "[160, 3]");
    const auto part = *EncodeMatrix(slice.tensor, GgmlType::kBf16, pool);
    for (size_t i = 0; i < picked.size(); ++i) {
      EXPECT_EQ(std::memcmp(part.data() + i * kColumns * 2,
                            whole.data() + size_t{picked[i]} * kColumns * 2, kColumns * 2),
                0)
          << "group " << group << " row " << i;
    }
  }
  const std::vector<float> vector = {1, 2, 3};
  GgufTensor norm = {.name = "norm", .type = FindGgufTensorType(0), .num_dims = 1};
  norm.dims = {3, 1, 1, 1};
  norm.data = std::as_bytes(std::span(vector));
  const std::vector<uint32_t> order = {2, 0, 1};
  EXPECT_EQ(FloatsOf(PickRows(norm, order).tensor), (std::vector<float>{3, 1, 2}));
}

TEST(LogitsOfRankTest, CoverTheVocabularyInTilesWithoutOverlap) {
  for (const uint32_t vocab : {1u, 63u, 64u, 263u, 49152u, 151936u}) {
    ModelConfig config;
    config.vocab_size = vocab;
    for (const uint32_t count : {1u, 2u, 4u, 8u}) {
      uint64_t next = 0;
      for (uint32_t rank = 0; rank < count; ++rank) {
        const IndexRange part = LogitsOfRank(config, {rank, count});
        if (part.count > 0) {
          EXPECT_EQ(part.first, next);
          EXPECT_EQ(part.first % 64, 0u);
        }
        next += part.count;
      }
      EXPECT_EQ(next, vocab);
    }
  }
}

}  // namespace
}  // namespace baton::model
