// Decode steps that a device recorded: the bits of steps that are launched kernel by kernel.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"

#include "kernels/simt/run_options.h"
#include "src/model/device_batch.h"
#include "tests/model/on_device.h"
#include "tests/test_seed.h"

namespace baton::model {

namespace cuda = kernels::cuda;
namespace simt = kernels::simt;
using device::DeviceBuffer;
using device::DeviceKind;
using kernels::AttentionSpan;
using kernels::RowSampling;
using kv::KvDtype;
using kv::KvDtypeName;
using kv::KvView;

namespace {

// A model that records its decode steps beside one that does not.
class RecordedStepTest : public ::testing::TestWithParam<std::pair<const char*, KvDtype>> {
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
  const auto [name, kv_dtype] = GetParam();
  OnDevice plain(Tiny(name), 16, kMaxRows, kv_dtype);
  OnDevice recorded(Tiny(name), 16, kMaxRows, kv_dtype);
  ASSERT_TRUE(plain.fixture.status().ok()) << plain.fixture.status();
  ASSERT_TRUE(recorded.fixture.model().Prepare(recorded.fixture.view()).ok());
  const auto& model = static_cast<const DeviceModel&>(recorded.fixture.model());
  ASSERT_EQ(model.num_recorded_steps(), 2 * 17u) << "1 to 16 and 24 rows, on two grids";
  const std::vector<TokenId> tokens = RandomTokens(kMaxRows, TestSeed());
  // Each sequence has one token; the rest of its block is zeros: positions that a step leaves out
  // are numbers.
  const std::vector<Chunk> first = DecodeRows(tokens, kMaxRows, 0);
  ASSERT_TRUE(plain.fixture.Run(first).ok() && recorded.fixture.Run(first).ok());
  uint32_t at = 1;
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
                         ::testing::Values(std::pair("head64_llama", KvDtype::kBf16),
                                           std::pair("head64_llama", KvDtype::kFp8),
                                           std::pair("head64_gemma3", KvDtype::kBf16),
                                           std::pair("head64_qwen2", KvDtype::kBf16),
                                           std::pair("head64_qwen3moe", KvDtype::kBf16),
                                           std::pair("head64_lfm2", KvDtype::kBf16),
                                           std::pair("head64_lfm2_q4_0", KvDtype::kBf16),
                                           std::pair("head64_lfm2moe", KvDtype::kBf16),
                                           std::pair("head64_qwen35", KvDtype::kBf16),
                                           std::pair("head64_qwen35_q4_0", KvDtype::kBf16)),
                         [](const auto& info) {
                           return std::string(info.param.first) + "_" +
                                  std::string(KvDtypeName(info.param.second));
                         });

// Kernels of a GPU that has room for the kernel of few splits or not. Graphs of the small grid are
// of that kernel, where it has room, and no other graph is.
template <bool has_room>
const cuda::KernelTable& KernelsOfGraphs() {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable kernels = cuda::runner::Kernels();
    kernels.has_spread = [](uint32_t, cuda::KvElement) { return has_room; };
    kernels.attention_decode = [](const cuda::AttentionParams& params, void* stream) {
      EXPECT_EQ(params.is_spread, has_room && params.num_ctas == kSpreadCtas);
      return cuda::runner::Kernels().attention_decode(params, stream);
    };
    return kernels;
  }();
  return table;
}

// The tiny llama with a context of 4096 tokens instead of 512; the path of its file.
std::string LongLlama() {
  std::ifstream in(Tiny("head64_llama"), std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  constexpr std::string_view kKey = "llama.context_length";
  const size_t at = bytes.find(kKey) + kKey.size() + sizeof(uint32_t);  // behind the value's type
  const uint32_t length = 4096;
  std::memcpy(&bytes.at(at), &length, sizeof length);
  const std::string path = fmt::format("{}long_llama_{}.gguf", ::testing::TempDir(), getpid());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// A model and KV of long sequences: the same numbers in each that is made with one seed.
struct LongContexts {
  static constexpr uint32_t kPosition = 2900;
  static constexpr uint32_t kSplits = kPosition / 256 + 1;
  static constexpr uint32_t kMaxRows = 24;

  LongContexts(const std::string& path, const cuda::KernelTable& kernels, uint64_t seed)
      : device(*OpenComputeDevice(DeviceKind::kSimt)),
        fixture({.path = path,
                 .block_size = 16,
                 .max_rows = kMaxRows,
                 .max_context = 3072,
                 .num_blocks = kMaxRows * (kPosition / 16 + 1) + 1,
                 .device = device.accelerator.get(),
                 .kernels = &kernels}) {
    if (!fixture.status().ok()) return;
    std::mt19937_64 random(seed);
    const KvView& view = fixture.view();
    const std::span words(reinterpret_cast<uint16_t*>(view.base),
                          view.layout->BlockStride() * view.num_blocks / 2);
    for (uint16_t& word : words) {  // of magnitude 0.5 to 1.99
      word = static_cast<uint16_t>((random() & 0x80FF) | 0x3F00);
    }
  }

  ComputeDevice device;
  ModelFixture fixture;
};

// 22 rows are 264 splits, which have a cta each; 24 rows have more, for the other grid and kernel.
// A device without the kernel of few splits runs the other one on both grids.
TEST(DeviceModelRecordedTest, LongContextsHaveTheBitsOfStepsThatAreNotRecorded) {
  const std::string path = LongLlama();
  const uint64_t seed = TestSeed();
  LongContexts plain(path, cuda::runner::Kernels(), seed);
  LongContexts recorded(path, KernelsOfGraphs<true>(), seed);
  LongContexts unspread(path, KernelsOfGraphs<false>(), seed);
  std::filesystem::remove(path);
  ASSERT_TRUE(plain.fixture.status().ok()) << plain.fixture.status();
  for (LongContexts* on : {&recorded, &unspread}) {
    ASSERT_TRUE(on->fixture.status().ok()) << on->fixture.status();
    ASSERT_EQ(on->fixture.model().config().num_kv_heads, 1u) << "the rows do not part the grids";
    ASSERT_TRUE(on->fixture.model().Prepare(on->fixture.view()).ok());
    ASSERT_GT(static_cast<const DeviceModel&>(on->fixture.model()).num_recorded_steps(), 0u);
  }
  const std::vector<TokenId> tokens = RandomTokens(LongContexts::kMaxRows, seed);
  uint32_t at = LongContexts::kPosition;
  static_assert(22 * LongContexts::kSplits <= kSpreadCtas &&
                24 * LongContexts::kSplits > kSpreadCtas);
  for (const uint32_t num_rows : {22u, 24u}) {
    std::vector<Chunk> chunks;
    for (uint32_t i = 0; i < num_rows; ++i) {
      chunks.push_back({i, at, std::span(tokens).subspan(i, 1)});
    }
    ++at;
    const auto expected = plain.fixture.Run(chunks);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (LongContexts* on : {&recorded, &unspread}) {
      const auto got = on->fixture.Run(chunks);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, *expected) << num_rows << " rows";
    }
  }
}

// As when a device has no memory left for the thirty-first graph.
const cuda::KernelTable& KernelsThatRunShort() {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable kernels = cuda::runner::Kernels();
    kernels.sample = [](const cuda::SampleParams& params, void* stream) {
      static uint32_t num_calls = 0;
      if (++num_calls == 31) return absl::ResourceExhaustedError("no memory for a graph");
      return cuda::runner::Kernels().sample(params, stream);
    };
    return kernels;
  }();
  return table;
}

TEST(DeviceModelRecordedTest, WithoutMemoryForGraphsStepsAreLaunchedKernelByKernel) {
  const ComputeDevice device = *OpenComputeDevice(DeviceKind::kSimt);
  ModelFixture fixture({.path = Tiny("head64_llama"),
                        .block_size = 16,
                        .max_rows = 32,
                        .max_context = 64,
                        .num_blocks = 7,
                        .device = device.accelerator.get(),
                        .kernels = &KernelsThatRunShort()});
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  ASSERT_TRUE(fixture.model().Prepare(fixture.view()).ok());
  EXPECT_EQ(static_cast<const DeviceModel&>(fixture.model()).num_recorded_steps(), 0u);
  const std::vector<TokenId> tokens = RandomTokens(1, 1);
  EXPECT_TRUE(fixture.Run({{0, 0, tokens}}).ok());
}

// A step is one of the recorded kind only if all its rows decode, nobody hears of its layers and
// its KV lies where it did: the kernel that chooses tokens is in every recorded step.
TEST(DeviceModelRecordedTest, OthersAreLaunchedKernelByKernel) {
  WeightsOnDevice on(Tiny("head64_llama"), /*keeps_packed=*/false);
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
  const ModelConfig& config = on.fixture.model().config();
  const uint32_t kernels = DeviceModel::KernelsAStep(config, StepKernels::kWithNorms);
  EXPECT_EQ(launches({{0, 0, all}}, nullptr),
            DeviceModel::KernelsAStep(config, StepKernels::kJoined));
  EXPECT_EQ(launches({{0, 20, all.first(1)}}, nullptr), kernels + 1) << "a recorded step";
  EXPECT_EQ(launches({{0, 21, all.first(1)}}, &hook), kernels);
  EXPECT_EQ(hook.num_layers, config.num_layers);
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

// benchmarks/GPU.md has these numbers.
TEST(DeviceModelRecordedTest, ADecodeStepIsSoManyLaunchesALayer) {
  struct Row {
    const char* model;
    uint32_t of_layer;     // of at most kMaxNormedRows rows
    uint32_t with_more;    // and of more
    uint32_t first_norms;  // that no product has a part of, of at most kMaxNormedRows rows
  };
  constexpr uint32_t kAlways = 5;  // two gathers, last norm, output layer, choice of tokens
  constexpr uint32_t kMaxRows = 16;
  for (const Row& row : {Row{"head64_llama", 5, 7, 1}, Row{"head64_qwen3moe", 12, 12, 0}}) {
    WeightsOnDevice on(Tiny(row.model), /*keeps_packed=*/false);
    ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
    ASSERT_TRUE(on.fixture.model().Prepare(on.fixture.view()).ok());
    const uint32_t num_layers = on.fixture.model().config().num_layers;
    const std::vector<TokenId> tokens = RandomTokens(kMaxRows, 1);
    for (uint32_t num_rows = 1; num_rows <= kMaxRows; ++num_rows) {
      std::vector<Chunk> chunks;
      for (uint32_t i = 0; i < num_rows; ++i) {
        chunks.push_back({i, num_rows - 1 - i, std::span(tokens).subspan(i, 1)});
      }
      const uint64_t before = simt::TotalRunStats().num_launches;
      ASSERT_TRUE(on.fixture.Run(chunks).ok());
      const uint64_t launches = simt::TotalRunStats().num_launches - before;
      const bool is_few = num_rows <= cuda::kMaxNormedRows;
      const uint32_t around = kAlways + (is_few ? row.first_norms : 0);
      std::printf("%s, %u rows: %.2f launches a layer, %u around them\n", row.model, num_rows,
                  (static_cast<double>(launches) - around) / num_layers, around);
      EXPECT_EQ(launches, (is_few ? row.of_layer : row.with_more) * num_layers + around)
          << row.model << " " << num_rows;
    }
  }
}

}  // namespace
}  // namespace baton::model
