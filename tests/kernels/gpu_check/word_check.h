// One run of a primitive on words, compared with what must come out.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_WORD_CHECK_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_WORD_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/gpu_check/primitives.h"
#include "tests/kernels/gpu_check/report.h"
#include "tests/kernels/gpu_check/stages.h"

namespace baton::kernels::gpu_check {

// One run of a primitive and what must come out.
struct WordCheck {
  std::string name;
  Launch launch = nullptr;
  std::vector<uint32_t> in;
  std::vector<uint32_t> out;  // before the launch
  std::vector<uint32_t> expected;
  uint32_t num_ctas = 1;
  uint32_t count = 0;
  bool any_nan = false;      // which NaN a NaN is does not count
  bool hopper_only = false;  // the instruction
  bool is_mma = false;       // expects bits that are known of some tensor cores only
  std::string drawn = {};    // how `in` comes of its seed, in words; empty: as the check says
};

// Words of outputs: those of the largest product, 64 x 256.
inline constexpr size_t kRawWords = 64 * 256;
inline constexpr size_t kRawInputWords = 32 * kMmaWords;  // 32 tiles of mma

// Launches it and compares. The finding keeps what went in and came out, to be committed as
// goldens: the outputs of tensor cores always whole, of those that try every number the first
// kRawWords; inputs up to kRawInputWords, of larger ones that are drawn from a seed `drawn` and the
// digest, by which one sees that they were drawn again. All of stage 1 is 12 MiB.
Finding RunCheck(const StageInput& input, const WordCheck& check);
// Runs the check as RunCheck does, and adds it to the report.
absl::Status AddCheck(const StageInput& input, const WordCheck& check, Report& report);
// Launches the check and reads its output; the launch's error.
absl::Status LaunchAndRead(const StageInput& input, const WordCheck& check,
                           std::vector<uint32_t>& got);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_WORD_CHECK_H_
