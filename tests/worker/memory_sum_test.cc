// The sum of memory that a worker logs at start.
#include "src/worker/memory_sum.h"

#include <string>

#include "gtest/gtest.h"

#include "src/base/limits.h"

namespace baton::worker {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A decode worker of smollm2:135m with a context of 2048 tokens and 1000 blocks of 16.
MemoryFacts DemoFacts() {
  MemoryFacts facts;
  facts.weight_bytes = 92 * kMiB;
  facts.num_blocks = 1000;
  facts.block_bytes = 360 << 10;
  facts.tokenizer_bytes = 600 << 10;
  facts.num_layers = 30;
  facts.max_context = 2048;
  facts.vocab_size = 49152;
  return facts;
}

uint64_t NeedOf(const MemoryFacts& facts, std::string_view name) {
  for (const MemoryNeed& need : MemoryNeeds(facts)) {
    if (need.name == name) return need.bytes;
  }
  return 0;
}

TEST(MemorySumTest, EachNeedIsItsLimitTimesItsSize) {
  const MemoryFacts facts = DemoFacts();
  const uint64_t order = 1024 * 8 + 64 * 4 + 256;  // biases, stop tokens, the rest
  const uint64_t prompt = 2048 * 4;
  EXPECT_EQ(NeedOf(facts, "weights"), 92 * kMiB);
  EXPECT_EQ(NeedOf(facts, "KV pool"), 368'640'000u);
  EXPECT_EQ(NeedOf(facts, "logits"), 78 * kMiB) << "256 + 16 + 144 rows of 49,152 floats";
  EXPECT_EQ(NeedOf(facts, "requests"), 1024 * (prompt + order) + (256 + 16 + 1024) * prompt);
  EXPECT_EQ(NeedOf(facts, "inbox"), 8192 * (prompt + order));
  EXPECT_EQ(NeedOf(facts, "hand-offs"), 1000u * 30 * 9);
  EXPECT_EQ(NeedOf(facts, "prefix changes"), (4 * 1000 + 2 * 1000 + 4096) * 24u);
  EXPECT_EQ(NeedOf(facts, "tokens for routers"), 64 * kMiB);
  EXPECT_EQ(NeedOf(facts, "gRPC messages"), 1024 * kMiB);
  EXPECT_EQ(NeedOf(facts, "KV connections"), 20 * kMiB);
  EXPECT_EQ(NeedOf(facts, "queues of KV peers"), (256 * (6 + 16 + 4) + 64 * 16) * kMiB);
}

TEST(MemorySumTest, OtherConfigurationsHaveOtherSums) {
  MemoryFacts facts = DemoFacts();
  facts.shares_weights = true;
  EXPECT_EQ(NeedOf(facts, "weights"), 0u);
  EXPECT_EQ(NeedOf(facts, "shared weights"), 92 * kMiB);
  facts.num_routers = 2;
  EXPECT_EQ(NeedOf(facts, "tokens for routers"), 128 * kMiB);
  EXPECT_EQ(NeedOf(facts, "prefix changes"), (4 * 1000 + 2 * (2 * 1000 + 4096)) * 24u);
  facts.has_prefix_cache = false;
  EXPECT_EQ(NeedOf(facts, "prefix changes"), 0u);
  EXPECT_EQ(NeedOf(facts, "guesses"), 0u);
  facts.has_guesses = true;
  EXPECT_EQ(NeedOf(facts, "guesses"), 256 * (4'096 + 2'048) * 4u) << "pairs and places";
  EXPECT_EQ(NeedOf(facts, "logits"), 102 * kMiB) << "128 rows more";
  EXPECT_EQ(NeedOf(facts, "sampling"), 0u);
  facts.num_threads = 16;
  EXPECT_EQ(NeedOf(facts, "sampling"), 9 * kMiB) << "12 bytes a token of the vocabulary, a thread";
  facts.has_tls = true;
  EXPECT_EQ(NeedOf(facts, "KV connections"), (256u + 2 * 64) * (323 << 10)) << "121 MiB";
  facts.has_endpoint = false;
  EXPECT_EQ(NeedOf(facts, "KV connections"), 0u);
  EXPECT_EQ(NeedOf(facts, "queues of KV peers"), 0u);
  facts.max_context = limits::kMaxContextTokens;
  facts.num_blocks = 1u << 20;
  facts.num_layers = 128;
  EXPECT_EQ(NeedOf(facts, "hand-offs"), (uint64_t{1} << 27) * 9) << "above 32 bits in larger pools";
  EXPECT_GT(NeedOf(facts, "inbox"), uint64_t{32} << 30) << "8192 prompts of 4 MiB";
}

TEST(MemorySumTest, TheLineHasBothSumsAndTheirParts) {
  EXPECT_EQ(
      MemoryText(MemoryNeeds(DemoFacts())),
      "522.1 MiB at start (weights 92 MiB, KV pool 351.6 MiB, logits 78 MiB, tokenizer 600 "
      "KiB) and at most 9.7 GiB with every queue full (requests 26.6 MiB, inbox 132 MiB, "
      "hand-offs 263.7 KiB, prefix changes 236.6 KiB, grammars 512 MiB, tokens for routers 64 "
      "MiB, gRPC messages 1 GiB, KV connections 20 MiB, queues of KV peers 7.5 GiB)");
}

TEST(MemorySumTest, WhatLiesOnADeviceIsNamed) {
  MemoryFacts facts = DemoFacts();
  facts.host_copy_bytes = facts.num_blocks * facts.block_bytes;
  facts.staging_bytes = 256 * kMiB;
  const std::string text = MemoryText(MemoryNeeds(facts));
  EXPECT_NE(text.find("KV pool 351.6 MiB, its copy on the host 351.6 MiB, KV staging 256 MiB"),
            std::string::npos)
      << text;
  facts.weight_bytes = 0;
  EXPECT_EQ(MemoryText(MemoryNeeds(facts)).find("weights"), std::string::npos)
      << "the neighbour of the process holds them";
}

}  // namespace
}  // namespace baton::worker
