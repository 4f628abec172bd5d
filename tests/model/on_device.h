// Tiny models on the runner of CUDA sources, and tokens for them.
#ifndef BATON_TESTS_MODEL_ON_DEVICE_H_
#define BATON_TESTS_MODEL_ON_DEVICE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/model/compute_device.h"
#include "tests/model/golden_file.h"
#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"
#include "tests/test_seed.h"

namespace baton::model {

// A model on its own device.
struct OnDevice {
  explicit OnDevice(const std::string& name, uint32_t block_size = 64, uint32_t max_rows = 96,
                    kv::KvDtype kv_dtype = kv::KvDtype::kBf16, uint32_t num_ranks = 1)
      : device(*OpenComputeDevice(device::DeviceKind::kSimt)),
        fixture({.path = name,
                 .kv_dtype = kv_dtype,
                 .block_size = block_size,
                 .max_rows = max_rows,
                 .max_context = 512,
                 .num_blocks = 61,  // prime
                 .device = device.accelerator.get(),
                 .kernels = device.kernels,
                 .num_ranks = num_ranks}) {}

  ComputeDevice device;
  ModelFixture fixture;
};

// As OnDevice, with weights that stay packed or not.
struct WeightsOnDevice {
  WeightsOnDevice(const std::string& path, bool keeps_packed, const FastMode& fast = {})
      : device(*OpenComputeDevice(device::DeviceKind::kSimt)),
        fixture({.path = path,
                 .block_size = 64,
                 .max_rows = 200,
                 .max_context = 512,
                 .num_blocks = 61,
                 .device = device.accelerator.get(),
                 .kernels = device.kernels,
                 .keeps_packed = keeps_packed,
                 .fast = fast}) {}

  const DeviceModel& model() { return dynamic_cast<const DeviceModel&>(fixture.model()); }

  ComputeDevice device;
  ModelFixture fixture;
};

inline std::string Tiny(const std::string& name) { return GoldenPath("tiny_" + name + ".gguf"); }

inline std::vector<TokenId> RandomTokens(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> out(count);
  for (TokenId& token : out) token = static_cast<TokenId>(random() % 263);
  return out;
}

// The bytes of a sequence's blocks, copied as a hand-off copies them.
inline void CopyBlocks(ModelFixture& from, ModelFixture& to, uint32_t sequence,
                       uint32_t num_tokens) {
  const kv::KvLayout& layout = *from.view().layout;
  const auto copy = [&](std::span<const uint32_t> source, std::span<const uint32_t> dest,
                        size_t count) {
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(to.view().base + dest[i] * layout.BlockStride(),
                  from.view().base + source[i] * layout.BlockStride(), layout.BlockBytes());
    }
  };
  copy(from.Blocks(sequence, num_tokens), to.Blocks(sequence, num_tokens),
       layout.BlocksFor(num_tokens));
  copy(from.StateBlocks(sequence), to.StateBlocks(sequence), layout.state_blocks);
}

// A prompt of any length in odd chunks, handed over as blocks, then decoded elsewhere: the bits of
// one device that computes it whole. `load` gives an OnDevice.
template <typename Load>
void ExpectToGoOnFromBlocksAlone(const Load& load) {
  const std::vector<TokenId> tokens = RandomTokens(90, TestSeed());
  const std::span<const TokenId> all(tokens);
  for (const uint32_t prompt : {1u, 3u, 16u, 17u, 70u}) {
    OnDevice whole = load();
    OnDevice p = load();
    OnDevice d = load();
    ASSERT_TRUE(p.fixture.status().ok()) << p.fixture.status();
    const auto expected = whole.fixture.Run({{0, 0, all.first(prompt + 6)}}, /*all_rows=*/true);
    ASSERT_TRUE(expected.ok()) << expected.status();
    uint32_t size = 1;
    for (uint32_t begin = 0; begin < prompt; begin += size, size = 2 * size + 1) {
      size = std::min(size, prompt - begin);
      ASSERT_TRUE(p.fixture.Run({{0, begin, all.subspan(begin, size)}}).ok());
    }
    CopyBlocks(p.fixture, d.fixture, 0, prompt);
    for (uint32_t i = prompt; i < prompt + 6; ++i) {
      const auto got = d.fixture.Run({{0, i, all.subspan(i, 1)}});
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_TRUE(std::equal(got->begin(), got->end(), expected->begin() + i * got->size()))
          << "prompt " << prompt << " position " << i;
    }
    EXPECT_EQ(d.fixture.KvBytes(0, prompt + 6), whole.fixture.KvBytes(0, prompt + 6)) << prompt;
  }
}

// Steps of a tiny model have the same bits whether its matrices are packed on the device or bf16.
inline void ExpectEqualPackedAndInBf16(const std::string& name) {
  WeightsOnDevice packed(Tiny(name), /*keeps_packed=*/true);
  WeightsOnDevice in_bf16(Tiny(name), /*keeps_packed=*/false);
  ASSERT_TRUE(packed.fixture.status().ok()) << packed.fixture.status();
  ASSERT_TRUE(in_bf16.fixture.status().ok()) << in_bf16.fixture.status();
  EXPECT_GT(packed.model().packed_bytes(), 0u);
  EXPECT_EQ(in_bf16.model().packed_bytes(), 0u);
  EXPECT_LT(packed.model().weight_bytes(), in_bf16.model().weight_bytes());
  const std::vector<TokenId> tokens = RandomTokens(140, TestSeed());
  const std::span<const TokenId> all(tokens);
  const std::vector<std::vector<Chunk>> steps = {
      {{0, 0, all.first(130)}}, {{0, 130, all.subspan(130, 1)}}, {{0, 131, all.subspan(131, 9)}}};
  for (const std::vector<Chunk>& step : steps) {
    const auto one = packed.fixture.Run(step);
    const auto other = in_bf16.fixture.Run(step);
    ASSERT_TRUE(one.ok() && other.ok()) << one.status() << other.status();
    EXPECT_EQ(*one, *other);
  }
  EXPECT_EQ(packed.fixture.KvBytes(0, 140), in_bf16.fixture.KvBytes(0, 140));
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_ON_DEVICE_H_
