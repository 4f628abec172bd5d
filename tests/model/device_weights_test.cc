// Quantised weights on an accelerator, here the runner: kept packed or dequantised at load, logits
// and KV have the same bits.
#include "src/model/device_weights.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/simt/run_options.h"
#include "src/model/convert.h"
#include "tests/model/changed_file.h"
#include "tests/model/joined_tensors.h"
#include "tests/model/on_device.h"
#include "tests/model/test_model.h"
#include "tests/test_seed.h"

namespace baton::model {

namespace simt = kernels::simt;
using device::ThreadPool;

namespace {

namespace fs = std::filesystem;

// A tiny model in another element type, in a file of its own.
class Converted {
 public:
  Converted(const std::string& name, std::string_view type)
      : path_(fmt::format("{}baton_device_weights_{}_{}.gguf", ::testing::TempDir(), name, type)) {
    fs::remove(path_);
    ThreadPool pool(1);
    const auto file = OpenModelFile(GoldenPath("tiny_" + name + ".gguf"));
    EXPECT_TRUE(file.ok()) << file.status();
    const absl::Status status = ConvertModel(
        **file, {.type = *ParseConvertType(type), .pool = &pool, .add_keys = nullptr}, path_);
    EXPECT_TRUE(status.ok()) << status;
  }
  ~Converted() { fs::remove(path_); }
  Converted(const Converted&) = delete;
  Converted& operator=(const Converted&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Case {
  const char* model;
  const char* type;
};

class DeviceWeightsTest : public ::testing::TestWithParam<Case> {};

// Prompts that have each matrix unpacked, decode rows that read it packed, many rows of logits.
TEST_P(DeviceWeightsTest, PackedAndInBf16TheyGiveTheSameBits) {
  const Converted file(GetParam().model, GetParam().type);
  WeightsOnDevice packed(file.path(), /*keeps_packed=*/true);
  WeightsOnDevice in_bf16(file.path(), /*keeps_packed=*/false);
  ASSERT_TRUE(packed.fixture.status().ok()) << packed.fixture.status();
  ASSERT_TRUE(in_bf16.fixture.status().ok()) << in_bf16.fixture.status();
  EXPECT_EQ(packed.fixture.model().numerics_id(), in_bf16.fixture.model().numerics_id());
  EXPECT_EQ(in_bf16.model().packed_bytes(), 0u);
  EXPECT_GT(packed.model().packed_bytes(), 0u);
  // Rows of 32, which the tiny experts have, fill half of a tile.
  if (!packed.model().config().traits->experts) {
    EXPECT_LT(packed.model().weight_bytes(), in_bf16.model().weight_bytes());
    EXPECT_LT(packed.model().bytes_read_per_step(), in_bf16.model().bytes_read_per_step());
  }

  const std::vector<TokenId> tokens = RandomTokens(150, TestSeed());
  const std::span<const TokenId> all(tokens);
  const auto run = [&](const std::vector<Chunk>& chunks, bool all_rows) {
    const auto one = packed.fixture.Run(chunks, all_rows);
    const auto other = in_bf16.fixture.Run(chunks, all_rows);
    ASSERT_TRUE(one.ok()) << one.status();
    ASSERT_TRUE(other.ok()) << other.status();
    ASSERT_TRUE(std::equal(one->begin(), one->end(), other->begin(), other->end()));
  };
  run({{0, 0, all.first(70)}}, /*all_rows=*/true);
  run({{0, 70, all.subspan(70, 1)}, {1, 0, all.first(20)}}, /*all_rows=*/false);
  run({{0, 71, all.subspan(71, 1)}, {1, 20, all.subspan(20, 130)}}, /*all_rows=*/true);
  for (const uint32_t sequence : {0u, 1u}) {
    const uint32_t length = sequence == 0 ? 72 : 150;
    EXPECT_EQ(packed.fixture.KvBytes(sequence, length), in_bf16.fixture.KvBytes(sequence, length));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , DeviceWeightsTest,
    ::testing::Values(Case{"head64_llama", "q4_0"}, Case{"head64_llama", "q4_1"},
                      Case{"head64_llama", "q8_0"}, Case{"head64_qwen2", "q4_1"},
                      Case{"head128_qwen3", "q8_0"}, Case{"head64_gemma3", "q4_0"},
                      Case{"head64_qwen3moe", "q8_0"}),
    [](const auto& info) { return std::string(info.param.model) + "_" + info.param.type; });

// A file may hold q, k and v of a layer in one tensor: each part goes to its place, of one rank or
// of several.
TEST(DeviceJoinedQkvTest, GivesTheBitsOfThreeTensors) {
  ChangedFile joined("tiny_head64_qwen2.gguf");
  JoinQkv("weight", joined);
  JoinQkv("bias", joined);
  const std::string path = joined.Write("device_joined_qkv.gguf");
  const std::vector<TokenId> tokens = RandomTokens(70, TestSeed());
  for (const uint32_t num_ranks : {1u, 2u}) {
    const auto bf16 = kv::KvDtype::kBf16;
    OnDevice apart(Tiny("head64_qwen2"), 64, 96, bf16, num_ranks);
    OnDevice together(path, 64, 96, bf16, num_ranks);
    ASSERT_TRUE(apart.fixture.status().ok()) << apart.fixture.status();
    ASSERT_TRUE(together.fixture.status().ok()) << together.fixture.status();
    const auto one = apart.fixture.Run({{0, 0, tokens}});
    const auto other = together.fixture.Run({{0, 0, tokens}});
    ASSERT_TRUE(one.ok() && other.ok()) << one.status() << other.status();
    EXPECT_EQ(*one, *other) << num_ranks;
    EXPECT_EQ(apart.fixture.KvBytes(0, 70), together.fixture.KvBytes(0, 70)) << num_ranks;
  }
  fs::remove(path);
}

// A step of few rows reads packed weights with as many kernels as it has for bf16. The next 64 rows
// take one more kernel for each matrix. Unpacking the matrices of a layer, for more rows than that,
// takes one more for each matrix too.
TEST(DeviceWeightsLaunchTest, ManyRowsUnpackEachMatrixOfALayer) {
  const Converted file("head64_llama", "q8_0");
  WeightsOnDevice packed(file.path(), /*keeps_packed=*/true);
  ASSERT_TRUE(packed.fixture.status().ok()) << packed.fixture.status();
  const ModelConfig& config = packed.fixture.model().config();
  const std::vector<TokenId> tokens = RandomTokens(129, TestSeed());
  const std::span<const TokenId> all(tokens);
  const auto launches = [&](const std::vector<Chunk>& chunks) {
    const uint64_t before = simt::TotalRunStats().num_launches;
    EXPECT_TRUE(packed.fixture.Run(chunks).ok());
    return simt::TotalRunStats().num_launches - before;
  };
  const uint32_t kernels = DeviceModel::KernelsAStep(config, StepKernels::kApart);
  EXPECT_EQ(launches({{0, 0, all.first(64)}}), kernels);
  EXPECT_EQ(launches({{1, 0, all.first(65)}}), kernels + 4 * config.num_layers);
  EXPECT_EQ(launches({{2, 0, all}}), kernels + 4 * config.num_layers);
  EXPECT_EQ(launches({{2, 129, all.first(1)}}), kernels);
}

}  // namespace
}  // namespace baton::model
