// One run of a primitive on words, compared with what must come out.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_WORD_CHECK_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_WORD_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/gpu_check/primitives.h"
#include "tests/kernels/gpu_check/report.h"
#include "tests/kernels/gpu_check/stages.h"

namespace baton::gpu_check {

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
};

// Launches it and compares; the finding keeps the first words of what went in and came out.
Finding RunCheck(const StageInput& input, const WordCheck& check);
// What came out; the launch's error.
absl::Status LaunchAndRead(const StageInput& input, const WordCheck& check,
                           std::vector<uint32_t>& got);

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_WORD_CHECK_H_
