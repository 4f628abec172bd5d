// ClockLog: what nvidia-smi says of clocks, temperature, power and reasons to run slower, before,
// during and after a stage. One thread.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_CLOCK_LOG_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_CLOCK_LOG_H_

#include <string>

#include "nlohmann/json.hpp"

#include "tests/kernels/gpu_check/program.h"

namespace baton::kernels::gpu_check {

// See the file comment.
class ClockLog {
 public:
  // Starts asking every quarter of a second. Where there is no nvidia-smi, or it knows no such
  // question, Json() says so.
  void Start();
  // The columns and every line so far: {"columns": [..], "lines": [[..], ..]} or {"not_run": ".."}.
  nlohmann::json Json();

 private:
  std::string why_not_ = "not asked";
  std::string columns_;
  std::string text_;
  Program program_;
};

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_CLOCK_LOG_H_
