// Seeds of property tests. The ordinary run takes fixed ones, so that what it says of a commit is
// the same every time. BATON_TEST_SEED=random (scripts/test_full.sh) adds a fresh one, which is
// printed, and BATON_TEST_SEED=<number> replays one.
#ifndef BATON_TESTS_TEST_SEED_H_
#define BATON_TESTS_TEST_SEED_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include "src/base/split_mix.h"

namespace baton {

// Seeds to run a property with: 1..num_fixed, with BATON_TEST_SEED=random one more, with
// BATON_TEST_SEED=<number> that alone. num_fixed >= 1.
inline std::vector<uint64_t> TestSeeds(uint64_t num_fixed) {
  const char* const text = std::getenv("BATON_TEST_SEED");
  const bool is_random = text != nullptr && std::string_view(text) == "random";
  if (text != nullptr && !is_random) return {std::strtoull(text, nullptr, 0)};
  std::vector<uint64_t> seeds;
  for (uint64_t i = 1; i <= num_fixed; ++i) seeds.push_back(i);
  if (is_random) {
    std::random_device device;
    seeds.push_back(uint64_t{device()} << 32 | device());
    std::printf("BATON_TEST_SEED=%llu\n", static_cast<unsigned long long>(seeds.back()));
  }
  return seeds;
}

// One seed, for a property that runs with one: 1, a fresh one that is printed, or the given one.
inline uint64_t TestSeed() { return TestSeeds(1).back(); }

// A small generator with the draws that tests need; the same on every platform.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}

  // SplitMix64.
  uint64_t Next() { return SplitMix(state_ += kSplitMixStep); }
  // Uniform in [0, end); end >= 1.
  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(Next() % end); }
  // Uniform in [first, last].
  uint32_t Between(uint32_t first, uint32_t last) { return first + Below(last - first + 1); }
  bool OneIn(uint32_t n) { return Below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace baton

#endif  // BATON_TESTS_TEST_SEED_H_
