#include "scheduler/roofline.h"

#include <algorithm>
#include <string_view>

#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::scheduler {
namespace {

// Llama-3.1-8B in bf16: 32 layers of 6144 x 4096, 4096 x 4096, 28672 x 4096 and 4096 x 14336
// weights, 8 of 32 heads for K and V, 128256 x 4096 output weights.
constexpr RooflineModel kLlama8b = {.num_layers = 32,
                                    .layer_weight_bytes = 436'207'616,
                                    .layer_flops_per_row = 436'207'616,
                                    .attention_flops_per_key = 16'384,
                                    .kv_bytes_per_token = 131'072,
                                    .output_weight_bytes = 1'050'673'152,
                                    .output_flops_per_row = 1'050'673'152,
                                    .num_launches = 0};

const DeviceLimits& Device(std::string_view name) {
  const DeviceLimits* const device = FindDevice(name);
  EXPECT_NE(device, nullptr) << name;
  return *device;
}
const DeviceLimits& H200() { return Device("NVIDIA H200"); }
const DeviceLimits& H100() { return Device("NVIDIA H100 80GB HBM3"); }

StepShape Decode(uint32_t rows, uint32_t context) {
  StepShape shape;
  for (uint32_t i = 0; i < rows; ++i) shape.AddDecode(context - 1);
  return shape;
}

StepShape Prefill(uint32_t first_pos, uint32_t num_tokens) {
  StepShape shape;
  shape.AddPrefill(first_pos, num_tokens);
  return shape;
}

double LimitUs(const DeviceLimits& device, const StepShape& shape) {
  return StepLimit(device, kLlama8b, shape).total_us();
}

// A model of any size, and a step of any shape.
RooflineModel RandomModel(TestRandom* random) {
  const uint64_t heads = random->Between(1, 64);
  const uint64_t hidden = 128 * heads;
  return {.num_layers = random->Between(1, 100),
          .layer_weight_bytes = hidden * random->Between(1, 100'000),
          .layer_flops_per_row = hidden * random->Between(1, 100'000),
          .attention_flops_per_key = 4 * hidden,
          .kv_bytes_per_token = uint64_t{random->Between(1, 1'000'000)},
          .output_weight_bytes = hidden * random->Between(1, 300'000),
          .output_flops_per_row = hidden * random->Between(1, 300'000),
          .num_launches = random->Below(1'000),
          .exchange_bytes_per_row = hidden * random->Below(3'000)};
}

StepShape RandomShape(TestRandom* random) {
  StepShape shape;
  for (uint32_t chunks = random->Below(3); chunks > 0; --chunks) {
    shape.AddPrefill(random->Below(8'000), random->Between(1, 2'000));
    shape.logit_rows += random->Below(2);
  }
  for (uint32_t rows = random->Below(65); rows > 0; --rows) shape.AddDecode(random->Below(8'000));
  return shape;
}

TEST(RooflineTest, DecodeOfLlama8bHasTheHandComputedLimit) {
  // (32 x 436,207,616 + 1,050,673,152 + 1024 x 131,072) bytes = 15.1435 GB, over 4.3 TB/s.
  EXPECT_NEAR(LimitUs(H200(), Decode(1, 1024)), 3'521.75, 0.01);
  EXPECT_NEAR(1e6 / LimitUs(H200(), Decode(1, 1024)), 284, 0.5);
  EXPECT_NEAR(1e6 / LimitUs(H100(), Decode(1, 1024)), 198, 0.5);
  const StepTimes times = StepLimit(H200(), kLlama8b, Decode(1, 1024));
  EXPECT_NEAR(times.layers_us, 3'246.20, 0.01);
  EXPECT_NEAR(times.attention_us, 31.21, 0.01);
  EXPECT_NEAR(times.output_us, 244.34, 0.01);
  EXPECT_EQ(times.launches_us, 0);
}

TEST(RooflineTest, PrefillOfLlama8bHasTheHandComputedLimit) {
  // 2048 rows x 13.96 Gflop over 790 Tflop/s, and 2,098,176 pairs x 32 x 16,384 flop.
  const StepTimes times = StepLimit(H200(), kLlama8b, Prefill(0, 2048));
  EXPECT_NEAR(times.layers_us, 36'186.5, 0.1);
  EXPECT_NEAR(times.attention_us, 1'392.5, 0.1);
  EXPECT_EQ(times.output_us, 0) << "no logits are wanted";
}

TEST(RooflineTest, RisesWithRowsContextAndLogits) {
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(testing::Message() << "BATON_TEST_SEED=" << seed);
    TestRandom random(seed);
    for (int i = 0; i < 300; ++i) {
      const RooflineModel model = RandomModel(&random);
      const StepShape shape = RandomShape(&random);
      for (const DeviceLimits& device : KnownDevices()) {
        const double before = StepLimit(device, model, shape).total_us();
        StepShape more = shape;
        more.AddDecode(random.Below(8'000));
        EXPECT_GE(StepLimit(device, model, more).total_us(), before);
        more = shape;
        more.AddPrefill(random.Below(8'000), random.Between(1, 500));
        EXPECT_GE(StepLimit(device, model, more).total_us(), before);
        more = shape;
        more.kv_tokens += 100;
        more.attention_keys += 100;
        EXPECT_GE(StepLimit(device, model, more).total_us(), before);
        more = shape;
        ++more.logit_rows;
        EXPECT_GE(StepLimit(device, model, more).total_us(), before);
      }
    }
  }
}

TEST(RooflineTest, OneStepNeverTakesLongerThanItsRowsInTwo) {
  TestRandom random(TestSeed());
  for (int i = 0; i < 300; ++i) {
    const RooflineModel model = RandomModel(&random);
    const StepShape a = RandomShape(&random);
    const StepShape b = RandomShape(&random);
    StepShape both = a;
    both.prefill_tokens += b.prefill_tokens;
    both.decode_rows += b.decode_rows;
    both.attention_keys += b.attention_keys;
    both.kv_tokens += b.kv_tokens;
    both.logit_rows += b.logit_rows;
    const double apart =
        StepLimit(H200(), model, a).total_us() + StepLimit(H200(), model, b).total_us();
    EXPECT_LE(StepLimit(H200(), model, both).total_us(), apart * (1 + 1e-12));
  }
}

TEST(RooflineTest, IsLinearWhereOneLimitBinds) {
  // Memory: another thousand positions cost what reading them does, however long the context is.
  const double step = LimitUs(H200(), Decode(8, 2'000)) - LimitUs(H200(), Decode(8, 1'000));
  EXPECT_NEAR(step, 8e3 * 131'072 / 4.3e6, 1e-6);
  EXPECT_NEAR(LimitUs(H200(), Decode(8, 8'000)) - LimitUs(H200(), Decode(8, 7'000)), step, 1e-6);
  // Few rows read the weights once between them.
  EXPECT_EQ(StepLimit(H200(), kLlama8b, Decode(8, 1)).layers_us,
            StepLimit(H200(), kLlama8b, Decode(1, 1)).layers_us);
  // Tensor cores: twice the rows are twice the time.
  EXPECT_NEAR(StepLimit(H200(), kLlama8b, Prefill(0, 4096)).layers_us,
              2 * StepLimit(H200(), kLlama8b, Prefill(0, 2048)).layers_us, 1e-6);
}

TEST(RooflineTest, LaunchesAddAndAnEmptyStepIsFree) {
  RooflineModel model = kLlama8b;
  model.num_launches = 292;
  const double without = LimitUs(H200(), Decode(1, 1024));
  EXPECT_NEAR(StepLimit(H200(), model, Decode(1, 1024)).total_us() - without, 292 * 0.9, 1e-9);
  EXPECT_EQ(StepLimit(H200(), model, StepShape{}).total_us(), 0);
}

// The first estimate of a shape, between its limit and, for decode, four times that: half of the
// limits are trusted, and a sum is at most twice its larger term.
void ExpectEstimateInBounds(const DeviceLimits& device, const RooflineModel& model,
                            const StepShape& shape) {
  const double limit_us = StepLimit(device, model, shape).total_us();
  const auto estimate_us =
      static_cast<double>(StepCost(FirstEstimate(device, model)).PredictUs(shape));
  EXPECT_GE(estimate_us + 1, limit_us) << device.name;
  if (shape.prefill_tokens == 0 && shape.decode_rows > 0) {
    EXPECT_LE(estimate_us - 1, 4 * limit_us) << device.name;
  }
}

TEST(RooflineTest, TheFirstEstimateIsNeverBelowTheLimit) {
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(testing::Message() << "BATON_TEST_SEED=" << seed);
    TestRandom random(seed);
    for (int i = 0; i < 300; ++i) {
      const RooflineModel model = RandomModel(&random);
      StepShape shape = RandomShape(&random);
      shape.logit_rows = std::min(shape.logit_rows, shape.prefill_tokens + shape.decode_rows);
      for (const DeviceLimits& device : KnownDevices()) {
        ExpectEstimateInBounds(device, model, shape);
      }
    }
  }
}

ChunkAsk Within(int64_t target_us) {
  return {.limit = 512, .layers_us = target_us, .total_us = target_us};
}

TEST(RooflineTest, TheFirstChunkOfAKnownDeviceIsAsLongAsItsTargetAllows) {
  const StepCost known(FirstEstimate(H200(), kLlama8b));
  EXPECT_EQ(StepCost().MaxChunk({}, Within(100'000)), 100u);
  EXPECT_EQ(known.MaxChunk({}, Within(100'000)), 512u);
  EXPECT_LT(known.MaxChunk({}, Within(20'000)), 512u);
}

TEST(RooflineTest, DevicesAreFoundByTheirWholeName) {
  for (const DeviceLimits& device : KnownDevices()) {
    EXPECT_EQ(FindDevice(device.name), &device);
    EXPECT_GT(device.read_bytes_per_s, 100e9);
    EXPECT_GT(device.bf16_flops_per_s / device.read_bytes_per_s, 100) << "operations a byte";
    EXPECT_GT(device.l2_bytes, 1e6);
    EXPECT_LT(device.link_bytes_per_s, device.read_bytes_per_s);
    EXPECT_GE(device.memory_bytes, 48'000'000'000u);
  }
  EXPECT_EQ(KnownDevices().size(), 5u);
  for (const char* name : {"", "NVIDIA", "NVIDIA H100 PCIe", "NVIDIA H2000", "NVIDIA H20"}) {
    EXPECT_EQ(FindDevice(name), nullptr) << name;
  }
}

}  // namespace
}  // namespace baton::scheduler
