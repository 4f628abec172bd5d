// The forward pass with the arithmetic and the shared memory of other GPUs than a Hopper: a row's
// bits depend on its sequence alone there too, and KV that another such device made gives the same.
#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/simt_device.h"
#include "tests/kernels/simt/other_gpus.h"
#include "tests/model/on_device.h"
#include "tests/test_seed.h"

namespace baton::model {

namespace cuda = kernels::cuda;
namespace simt = kernels::simt;
namespace simt_test = kernels::simt_test;
using kv::KvDtype;
using kv::KvLayout;

namespace {

using simt_test::OtherGpu;

constexpr uint32_t kPrompt = 70;  // more than one item of prefill, and more rows than are spread
constexpr uint32_t kTotal = 76;

// A tiny model on such a GPU.
class OnGpu {
 public:
  OnGpu(const OtherGpu& gpu, const std::string& name, KvDtype kv_dtype)
      : device_(OptionsOf(gpu)),
        fixture_({.path = Tiny(name),
                  .kv_dtype = kv_dtype,
                  .block_size = 32,
                  .max_rows = 96,
                  .max_context = 512,
                  .num_blocks = 61,
                  .device = &device_,
                  .kernels = &cuda::runner::Kernels()}) {}

  ModelFixture& fixture() { return fixture_; }

  // The logits of the last token.
  std::vector<float> Run(uint32_t sequence, uint32_t first, std::span<const TokenId> tokens) {
    auto logits = fixture_.Run({{sequence, first, tokens}});
    EXPECT_TRUE(logits.ok()) << logits.status();
    return logits.ok() ? *std::move(logits) : std::vector<float>();
  }
  // As a transfer does.
  void TakeKv(const std::vector<std::byte>& bytes) {
    const KvLayout& layout = *fixture_.view().layout;
    const std::byte* from = bytes.data();
    for (const uint32_t block : fixture_.Blocks(0, kPrompt)) {
      std::memcpy(fixture_.view().base + size_t{block} * layout.BlockStride(), from,
                  layout.BlockBytes());
      from += layout.BlockBytes();
    }
  }

 private:
  static simt::RunOptions OptionsOf(const OtherGpu& gpu) {
    simt::RunOptions options = gpu.options();
    options.detect_races = false;  // kernel tests look for them
    return options;
  }

  simt::SimtDevice device_;
  ModelFixture fixture_;
};

using Param = std::tuple<OtherGpu, KvDtype>;
class OtherGpuTest : public ::testing::TestWithParam<Param> {};

TEST_P(OtherGpuTest, ChunkedDecodedAndHandedOverHaveTheSameBits) {
  const auto& [gpu, kv_dtype] = GetParam();
  const std::vector<TokenId> tokens = RandomTokens(kTotal, TestSeed());
  const std::span<const TokenId> all(tokens);
  OnGpu first(gpu, "head64_llama", kv_dtype);
  ASSERT_TRUE(first.fixture().status().ok()) << first.fixture().status();
  std::vector<float> decoded = first.Run(0, 0, all.first(kPrompt));
  const std::vector<std::byte> handed_over = first.fixture().KvBytes(0, kPrompt);
  for (uint32_t i = kPrompt; i < kTotal; ++i) decoded = first.Run(0, i, all.subspan(i, 1));
  const std::vector<std::byte> kv = first.fixture().KvBytes(0, kTotal);

  EXPECT_EQ(first.Run(1, 0, all), decoded) << "as one prompt";
  EXPECT_EQ(first.fixture().KvBytes(1, kTotal), kv);

  std::vector<float> chunked;
  for (uint32_t begin = 0; begin < kTotal; begin += 29) {
    chunked = first.Run(2, begin, all.subspan(begin, std::min(kTotal - begin, 29u)));
  }
  EXPECT_EQ(chunked, decoded) << "in chunks";
  EXPECT_EQ(first.fixture().KvBytes(2, kTotal), kv);

  OnGpu second(gpu, "head64_llama", kv_dtype);
  ASSERT_TRUE(second.fixture().status().ok()) << second.fixture().status();
  EXPECT_EQ(second.fixture().model().numerics_id(), first.fixture().model().numerics_id());
  second.TakeKv(handed_over);
  std::vector<float> elsewhere;
  for (uint32_t i = kPrompt; i < kTotal; ++i) elsewhere = second.Run(0, i, all.subspan(i, 1));
  EXPECT_EQ(elsewhere, decoded) << "decoded by another device";
  EXPECT_EQ(second.fixture().KvBytes(0, kTotal), kv);
}

INSTANTIATE_TEST_SUITE_P(, OtherGpuTest,
                         ::testing::Combine(::testing::ValuesIn(simt_test::kOtherGpus),
                                            ::testing::Values(KvDtype::kBf16, KvDtype::kFp8)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) == KvDtype::kFp8 ? "_fp8" : "");
                         });

TEST(OtherGpuNumericsTest, EachArithmeticHasItsNameAndSharedMemoryHasNone) {
  std::set<std::string_view> names;
  for (const simt::TensorMath math :
       {simt::TensorMath::kHopperBits, simt::TensorMath::kAmpereBits, simt::TensorMath::kFloat}) {
    simt::RunOptions options;
    options.tensor_math = math;
    const simt::SimtDevice all(options);
    options.max_shared_bytes = simt::kLeastSharedBytes;
    const simt::SimtDevice least(options);
    EXPECT_EQ(all.arithmetic(), least.arithmetic());
    names.insert(all.arithmetic());
  }
  EXPECT_EQ(names.size(), 3u);
}

}  // namespace
}  // namespace baton::model
