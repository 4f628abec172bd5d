// Decode steps that a device recorded: the bits of steps that are launched kernel by kernel.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/simt/run_options.h"
#include "tests/model/on_device.h"
#include "tests/test_seed.h"

namespace baton {
namespace {

// A model that records its decode steps beside one that does not.
class RecordedStepTest : public ::testing::TestWithParam<const char*> {
 protected:
  // `count` rows of one step, each of a sequence of its own, which is `at` long.
  static std::vector<Chunk> DecodeRows(std::span<const TokenId> tokens, uint32_t count,
                                       uint32_t at) {
    std::vector<Chunk> chunks;
    for (uint32_t i = 0; i < count; ++i) chunks.push_back({i, at, tokens.subspan(i, 1)});
    return chunks;
  }
};

// Every number of rows, those that are padded too, and rows whose logits are taken beside rows
// whose tokens are chosen: the bits of a step that is launched kernel by kernel.
TEST_P(RecordedStepTest, HasTheBitsOfAStepThatIsNotRecorded) {
  constexpr uint32_t kMaxRows = 26;
  OnDevice plain(Tiny(GetParam()), 16, kMaxRows);
  OnDevice recorded(Tiny(GetParam()), 16, kMaxRows);
  ASSERT_TRUE(plain.fixture.status().ok()) << plain.fixture.status();
  ASSERT_TRUE(recorded.fixture.model().Prepare(recorded.fixture.view()).ok());
  const auto& model = static_cast<const DeviceModel&>(recorded.fixture.model());
  ASSERT_EQ(model.num_recorded_steps(), 2 * 17u) << "1 to 16 and 24 rows, on two grids";
  const std::vector<TokenId> tokens = RandomTokens(kMaxRows, TestSeed());
  uint32_t at = 0;
  for (const uint32_t num_rows : {1u, 3u, 16u, 17u, 24u, 26u, 2u}) {
    const std::vector<Chunk> chunks = DecodeRows(tokens, num_rows, at++);
    std::vector<RowSampling> sampling(num_rows);
    for (uint32_t i = 0; i < num_rows; i += 2) {
      sampling[i] = {.seed = TestSeed() + i, .temperature = 0.7f, .on_device = 1};
    }
    const auto expected = plain.fixture.Choose(chunks, sampling);
    const auto got = recorded.fixture.Choose(chunks, sampling);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    EXPECT_EQ(got->tokens, expected->tokens) << num_rows << " rows";
    EXPECT_EQ(got->logits, expected->logits) << num_rows << " rows";
  }
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(recorded.fixture.KvBytes(i, at), plain.fixture.KvBytes(i, at));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RecordedStepTest,
                         ::testing::Values("head64_llama", "head64_gemma3", "head64_qwen3moe"),
                         [](const auto& info) { return std::string(info.param); });

// A step is one of the recorded kind only if all its rows decode, nobody hears of its layers and
// its KV lies where it did: the kernel that chooses tokens is in every recorded step.
TEST(DeviceModelRecordedTest, OthersAreLaunchedKernelByKernel) {
  OnDevice on(Tiny("head64_llama"));
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  ASSERT_TRUE(on.fixture.model().Prepare(on.fixture.view()).ok());
  const std::vector<TokenId> tokens = RandomTokens(20, 1);
  const std::span<const TokenId> all(tokens);
  struct Hook : LayerHook {
    void OnLayerStored(uint32_t /*layer*/) override { ++num_layers; }
    uint32_t num_layers = 0;
  } hook;
  const auto launches = [&](const std::vector<Chunk>& chunks, LayerHook* with) {
    const uint64_t before = simt::TotalRunStats().num_launches;
    EXPECT_TRUE(on.fixture.Run(chunks, false, with).ok());
    return simt::TotalRunStats().num_launches - before;
  };
  const uint32_t kernels = DeviceModel::KernelsAStep(on.fixture.model().config());
  EXPECT_EQ(launches({{0, 0, all}}, nullptr), kernels);
  EXPECT_EQ(launches({{0, 20, all.first(1)}}, nullptr), kernels + 1) << "a recorded step";
  EXPECT_EQ(launches({{0, 21, all.first(1)}}, &hook), kernels);
  EXPECT_EQ(hook.num_layers, on.fixture.model().config().num_layers);
  EXPECT_EQ(launches({{0, 22, all.first(2)}}, nullptr), kernels) << "two rows of one sequence";
  const DeviceBuffer elsewhere = *DeviceBuffer::Create(
      on.device.accelerator.get(), on.fixture.view().layout->BlockStride(), "other KV");
  const KvView moved = {elsewhere.data(), on.fixture.view().layout, 1};
  const uint32_t block = 0;
  const AttentionSpan span{.kv = {{&block, 1}}, .first_row = 0, .num_rows = 1, .first_pos = 0};
  const uint32_t row = 0;
  std::vector<float> logits(on.fixture.vocab());
  const uint64_t before = simt::TotalRunStats().num_launches;
  ASSERT_TRUE(on.fixture.model()
                  .Forward({all.first(1), {&span, 1}, {&row, 1}}, moved, nullptr, logits)
                  .ok());
  EXPECT_EQ(simt::TotalRunStats().num_launches - before, kernels);
}

}  // namespace
}  // namespace baton
