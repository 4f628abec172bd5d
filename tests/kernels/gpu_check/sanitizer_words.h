// The meaning of a line that compute-sanitizer writes.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_SANITIZER_WORDS_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_SANITIZER_WORDS_H_

#include <cstdint>
#include <string_view>

namespace baton::kernels::gpu_check {

// Found: something is wrong; the tool goes on, and may be stopped before it exits. Tool failed: it
// could not watch the program, or not to its end, which says nothing about the program.
enum class SanitizerWord : uint8_t { kNothing, kFound, kToolFailed };

inline SanitizerWord SanitizerWordOf(std::string_view line) {
  constexpr std::string_view kMark = "========= ";
  if (!line.starts_with(kMark)) return SanitizerWord::kNothing;
  line.remove_prefix(kMark.size());
  for (const std::string_view start :
       {"Error: process didn't terminate successfully", "Error: No attachable process found"}) {
    if (line.starts_with(start)) return SanitizerWord::kToolFailed;
  }
  for (const std::string_view start : {"Invalid ", "Error: ", "Program hit", "Warning: Race",
                                       "Barrier error", "Warpgroup MMA sequence error detected",
                                       "Deadlock detected", "Uninitialized ", "Leaked "}) {
    if (line.starts_with(start)) return SanitizerWord::kFound;
  }
  return SanitizerWord::kNothing;
}

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_SANITIZER_WORDS_H_
