// The KV pool's size, and what a user is told when it cannot be.
#include "src/worker/pool_size.h"

#include <cstdlib>
#include <regex>
#include <string>

#include "fmt/format.h"
#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::worker {

using kv::KvDtype;
using kv::KvEncoding;
using kv::KvLayout;

namespace {

// SmolLM2-135M: 360 KiB a block of 16 tokens.
KvLayout DemoLayout() {
  return {.dtype = KvDtype::kBf16,
          .encoding = KvEncoding::kPaired,
          .num_layers = 30,
          .num_kv_heads = 3,
          .head_dim = 64,
          .block_size = 16};
}

TEST(PoolSizeTest, DefaultIsOneGibibyteOrOneFullSequence) {
  const KvLayout layout = DemoLayout();
  EXPECT_EQ(*NumPoolBlocks(0, {layout, 2048}), kDefaultKvBytes / layout.BlockStride());
  // 64 Ki tokens need more than 1 GiB.
  EXPECT_EQ(*NumPoolBlocks(0, {layout, 65'536}), 65'536u / 16 + 1);
  EXPECT_EQ(*NumPoolBlocks(0, {layout, 65'537}), 65'536u / 16 + 2);
}

TEST(PoolSizeTest, ExactlyOneSequenceAndABlockFits) {
  const KvLayout layout = DemoLayout();
  const uint64_t needed = (2048 / 16 + 1) * uint64_t{layout.BlockStride()};
  EXPECT_EQ(*NumPoolBlocks(needed, {layout, 2048}), 129u);
  EXPECT_EQ(NumPoolBlocks(needed - 1, {layout, 2048}).status().code(),
            StatusCode::kResourceExhausted);
}

TEST(PoolSizeTest, AWindowNeedsItsBlocksAlone) {
  KvLayout layout = DemoLayout();
  const SequenceNeed need = {.layout = layout, .max_context = 65'536, .window_blocks = 40};
  const uint64_t bytes = 41 * uint64_t{layout.BlockStride()};
  EXPECT_EQ(*NumPoolBlocks(bytes, need), 41u);
  const std::string refusal(NumPoolBlocks(bytes - 1, need).status().message());
  EXPECT_NE(refusal.find(fmt::format("give --kv-memory {} or --max-context {}", bytes, 39 * 16)),
            std::string::npos)
      << refusal;
  const SequenceNeed shorter = {.layout = layout, .max_context = 320, .window_blocks = 40};
  EXPECT_EQ(*NumPoolBlocks(21 * uint64_t{layout.BlockStride()}, shorter), 21u);
  EXPECT_EQ(*NumPoolBlocks(0, need), kDefaultKvBytes / layout.BlockStride());
}

TEST(PoolSizeTest, RefusalHasNeedAndHaveAndTheFlagThatFits) {
  const KvLayout layout = DemoLayout();
  const Status status = NumPoolBlocks(40'000'000, {layout, 2048}).status();
  EXPECT_EQ(std::string(status.message()),
            "--kv-memory is too small: one sequence of --max-context 2048 tokens and a block need "
            "47554560 bytes, given are 40000000; give --kv-memory 47554560 or --max-context 1712");
  // A pool of one block holds no sequence, and --max-context 0 would mean the model's own.
  const Status tiny = NumPoolBlocks(1, {layout, 2048}).status();
  EXPECT_EQ(std::string(tiny.message()).find(" or --max-context"), std::string::npos) << tiny;
}

// Following the advice helps, whichever flag is changed, and the advised context is the longest.
TEST(PoolSizeTest, AdviceIsTrue) {
  const std::regex advice("give --kv-memory ([0-9]+)(?: or --max-context ([0-9]+))?$");
  uint32_t num_refusals = 0;
  for (const uint64_t seed : TestSeeds(20)) {
    TestRandom random(seed);
    for (int i = 0; i < 200; ++i) {
      KvLayout layout = DemoLayout();
      layout.num_layers = random.Between(1, 80);
      layout.block_size = 2 * random.Between(1, 64);
      const uint32_t max_context = random.Between(1, 200'000);
      const uint64_t bytes = 1 + random.Next() % (uint64_t{4} << 30);
      const auto blocks = NumPoolBlocks(bytes, {layout, max_context});
      if (blocks.ok()) {
        ASSERT_LE(uint64_t{*blocks} * layout.BlockStride(), bytes);
        continue;
      }
      ++num_refusals;
      const std::string text(blocks.status().message());
      std::smatch found;
      ASSERT_TRUE(std::regex_search(text, found, advice)) << text;
      const uint64_t enough = std::stoull(found[1]);
      EXPECT_TRUE(NumPoolBlocks(enough, {layout, max_context}).ok()) << text << " seed " << seed;
      EXPECT_FALSE(NumPoolBlocks(enough - 1, {layout, max_context}).ok())
          << "not the least: " << text;
      if (!found[2].matched) continue;
      const uint32_t fits = static_cast<uint32_t>(std::stoul(found[2]));
      ASSERT_GT(fits, 0u) << text;
      EXPECT_TRUE(NumPoolBlocks(bytes, {layout, fits}).ok()) << text << " seed " << seed;
      EXPECT_FALSE(NumPoolBlocks(bytes, {layout, fits + 1}).ok()) << "not the longest: " << text;
    }
  }
  EXPECT_GT(num_refusals, 100u);
}

}  // namespace
}  // namespace baton::worker
