// The tools that the kernel tests share: the list of bodies under test, seeded data, bit
// comparison, and the raw blocks of weight types.
#ifndef BATON_TESTS_KERNELS_KERNEL_FIXTURES_H_
#define BATON_TESTS_KERNELS_KERNEL_FIXTURES_H_

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/ops.h"

namespace baton::kernels {

// One set of bodies that can run on this machine.
struct Body {
  std::string name;  // letters and digits, for test names
  const Ops* ops;
  bool fused;  // must agree with the reference bit for bit
};

// All bodies: shipped ones this processor runs, and the test-only builds.
const std::vector<Body>& Bodies();
std::string BodyName(const ::testing::TestParamInfo<Body>& info);
void PrintTo(const Body& body, std::ostream* out);

// The seed of this run (tests/test_seed.h), the same at each call.
uint64_t RunSeed();

// Random data; the stream is a function of (RunSeed(), salt).
class Random {
 public:
  explicit Random(uint64_t salt) : engine_(RunSeed() * 0x9E3779B97F4A7C15u + salt) {}
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(engine_() % bound); }
  // Roughly normal, standard deviation `scale`, with 1 % outliers of 30 times that, as activations
  // have.
  float Activation(float scale = 1.0f);
  std::vector<float> Activations(size_t count, float scale = 1.0f);
  std::vector<std::byte> Bytes(size_t count);

 private:
  std::mt19937_64 engine_;
};

// Random raw rows [n, k] of a weight type with scales of about 0.01, as a model file would hold
// them.
std::vector<std::byte> RandomRaw(Random* random, WeightType type, uint32_t n, uint32_t k);

// Where the fp16 scale of a raw block lies (a min follows it); MXFP4 has none.
size_t ScaleAt(WeightType type);

// An element by its format's definition, exact in double: product of scale and digit, plus min.
struct RawTerms {
  double product = 0;
  double min = 0;
};
RawTerms RawElementTerms(WeightType type, std::span<const std::byte> raw, uint32_t k, uint32_t row,
                         uint32_t i);
// Their sum, also exact.
double RawElement(WeightType type, std::span<const std::byte> raw, uint32_t k, uint32_t row,
                  uint32_t i);

// 0 when a and b hold the same bits and no NaN; else the number of elements that differ or are NaN.
size_t CountDifferent(std::span<const float> a, std::span<const float> b);

// Bit equality for fused bodies; `tolerance` relative to |expected| + floor for the portable one.
void ExpectAgree(const Body& body, std::span<const float> actual, std::span<const float> expected,
                 double tolerance, double floor = 0);

// Memory for A16 activations.
struct A16Buffer {
  A16Buffer(uint32_t rows, uint32_t k)
      : q(size_t{rows} * k, INT16_MIN),
        scale(size_t{rows} * (k / 32)),
        sum(scale.size()),
        half_sum(2 * sum.size()),
        half_total(2 * sum.size()),
        k(k) {}
  A16View view() {
    return {q.data(), scale.data(), sum.data(), half_sum.data(), half_total.data(), k};
  }
  std::vector<int16_t> q;
  std::vector<float> scale;
  std::vector<float> sum;
  std::vector<float> half_sum;
  std::vector<int32_t> half_total;
  uint32_t k;
};

// Every weight type.
std::vector<WeightType> WeightTypes();
// Rows of this length suit every type and are not longer than needed: `k` rounded up to whole
// blocks.
inline uint32_t WholeBlocks(WeightType type, uint32_t k) {
  const uint32_t block = TraitsOf(type).block_elements;
  return (k + block - 1) / block * block;
}

inline constexpr float kPoison = -1.2345e33f;

}  // namespace baton::kernels

#endif  // BATON_TESTS_KERNELS_KERNEL_FIXTURES_H_
