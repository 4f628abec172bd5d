// Kernels on GPUs other than a Hopper: none asks for more shared memory than there is, and a row
// has the bits of its rules with those tensor cores whichever kernel was chosen for lack of room.
#include "tests/kernels/simt/other_gpus.h"

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/simt/attention_batch.h"
#include "tests/kernels/simt/gemm_case.h"

namespace baton::kernels::cuda {
namespace {

using simt::RunOptions;
using simt::ScopedRunOptions;
using simt_test::kOtherGpus;
using simt_test::OtherGpu;

// The most shared memory that a cta of `run`'s launches asks for.
template <typename Run>
uint32_t MostSharedBytes(const RunOptions& options, const Run& run) {
  uint32_t most = 0;
  std::thread([&] {  // sums of launches are a thread's
    ScopedRunOptions scope(options);
    run();
    most = simt::TotalRunStats().most_shared_bytes;
  })
      .join();
  return most;
}

// The runner refuses a launch that asks for more, so what runs has asked for less.
TEST(OtherGpus, ProductsOfManyRowsHaveTheBitsOfTheModelWhateverFits) {
  // As many tiles of 128 x 128 as SMs.
  const GemmCase many = {.m = 130, .n = 136, .k = 328, .bias = Bias::kFloat, .num_sms = 4};
  for (const OtherGpu& gpu : kOtherGpus) {
    const uint32_t most =
        MostSharedBytes(gpu.options(), [&] { EXPECT_EQ(Check(many), "") << gpu.name; });
    EXPECT_LE(most, gpu.shared_bytes) << gpu.name;
    EXPECT_EQ(most, gpu.shared_bytes < 128 * 1024 ? 64 * 1024 : 128 * 1024) << gpu.name;
  }
}

// Every row of a chunk and one by itself.
std::vector<AttentionCase> Cases(uint32_t dim, KvElement element) {
  std::vector<AttentionCase> cases = {
      {.num_heads = 4, .num_kv_heads = 2, .chunks = {{0, 230, 36}, {1, 19, 2}}},
      {.num_heads = 4, .num_kv_heads = 2, .window = 100, .chunks = {{0, 265, 1}, {1, 30, 1}}},
      {.num_heads = 2, .block_size = 32, .chunks = {{0, 300, 1}}, .splits_an_item = 1}};
  for (AttentionCase& c : cases) {
    c.head_dim = dim;
    c.element = element;
  }
  return cases;
}

class AttentionOnOtherGpus : public testing::TestWithParam<KvElement> {};

TEST_P(AttentionOnOtherGpus, HasTheBitsOfItsRulesWhateverFits) {
  for (const OtherGpu& gpu : kOtherGpus) {
    for (const uint32_t dim : {64u, 128u, 256u}) {
      const uint32_t most = MostSharedBytes(gpu.options(), [&] {
        for (const AttentionCase& c : Cases(dim, GetParam())) {
          AttentionBatch batch(c);
          const absl::StatusOr<std::vector<Bf16>> out = batch.Run();
          ASSERT_TRUE(out.ok()) << gpu.name << ": " << out.status();
          const std::vector<Bf16> expected = batch.ReferenceBits();
          EXPECT_TRUE(SameBits(out->data(), expected.data(), out->size() * sizeof(Bf16)))
              << gpu.name << " dim " << dim;
        }
      });
      EXPECT_LE(most, gpu.shared_bytes) << gpu.name << " dim " << dim;
    }
  }
}

TEST_P(AttentionOnOtherGpus, ARowHasTheSameBitsInAPromptAndAlone) {
  for (const OtherGpu& gpu : kOtherGpus) {
    const ScopedRunOptions scope(gpu.options());
    for (const uint32_t dim : {64u, 128u, 256u}) {
      AttentionCase c = {.head_dim = dim, .num_heads = 3, .element = GetParam()};
      c.chunks = {{1, 240, 40}};
      AttentionBatch prompt(c);
      const absl::StatusOr<std::vector<Bf16>> whole = prompt.Run();
      ASSERT_TRUE(whole.ok()) << whole.status();
      for (const uint32_t row : {0u, 16u, 39u}) {
        c.chunks = {{0, 7, 1}, {1, 240 + row, 1}};
        AttentionBatch decode(c);
        const absl::StatusOr<std::vector<Bf16>> one = decode.Run();
        ASSERT_TRUE(one.ok()) << one.status();
        const std::vector<Bf16> a = prompt.Row(*whole, row);
        const std::vector<Bf16> b = decode.Row(*one, 1);
        EXPECT_TRUE(SameBits(a.data(), b.data(), a.size() * sizeof(Bf16)))
            << gpu.name << " dim " << dim << " row " << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionOnOtherGpus,
                         testing::Values(KvElement::kBf16, KvElement::kFp8));

TEST(OtherGpus, PromptsAttendByTheKernelOfFewRowsWhereTheirOwnHasNoRoom) {
  std::vector<std::string> without;
  for (const OtherGpu& gpu : kOtherGpus) {
    const ScopedRunOptions scope(gpu.options());
    for (const KvElement element : {KvElement::kBf16, KvElement::kFp8}) {
      for (const uint32_t dim : {64u, 128u, 256u}) {
        if (runner::Kernels().has_prefill(dim, element)) continue;
        without.push_back(
            fmt::format("{} {}{}", gpu.name, dim, element == KvElement::kFp8 ? " fp8" : ""));
      }
    }
  }
  // The table in kernels/NOTES.md.
  EXPECT_THAT(without, testing::ElementsAre("sm_80 256", "sm_80 256 fp8", "sm_89 256",
                                            "sm_89 128 fp8", "sm_89 256 fp8", "sm_120 256",
                                            "sm_120 128 fp8", "sm_120 256 fp8"));
}

// Every kernel that is not chosen by the room in shared memory: no GPU lacks room for it.
TEST(OtherGpus, AllOtherKernelsFitTheLeastSharedMemory) {
  for (uint32_t i = 0; i < runner::Kernels().num_infos; ++i) {
    const KernelInfo& info = *runner::Kernels().infos[i];
    const std::string name = info.name;
    const bool is_chosen =
        name == "GemmTile128Kernel" || name.find("Wgmma") != name.npos ||
        name.rfind("AttentionPrefill", 0) == 0 || name.rfind("AttentionSpread", 0) == 0 ||
        (name.rfind("AttentionDecode", 0) == 0 && name.rfind("AttentionDecodeFew", 0) == name.npos);
    if (!is_chosen) {
      EXPECT_LE(info.shared_bytes, simt::kLeastSharedBytes) << name;
    }
  }
}

TEST(OtherGpus, HaveNoWgmma) {
  for (const OtherGpu& gpu : kOtherGpus) {
    const ScopedRunOptions scope(gpu.options());
    EXPECT_FALSE(runner::Kernels().has_wgmma()) << gpu.name;
  }
  EXPECT_TRUE(runner::Kernels().has_wgmma());
}

TEST(OtherGpus, ALaunchBeyondTheLimitNamesIt) {
  const ScopedRunOptions scope(simt_test::kOtherGpus[1].options());
  const std::string fault = Check({3, 129, 264, GemmPath::kTile128});
  EXPECT_THAT(fault, testing::HasSubstr("131072 bytes of shared memory, the limit is 101376"));
}

}  // namespace
}  // namespace baton::kernels::cuda
