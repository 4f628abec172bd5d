// BusyLoop runs small kernels one after another, in a stream of a device of its own. Its thread
// waits after each few of them, as a step of decode does. Another thread does something to the
// device meanwhile, and the times show what that does to steps.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_BUSY_LOOP_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_BUSY_LOOP_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

#include "src/base/status.h"
#include "src/base/thread.h"
#include "src/device/accelerator.h"
#include "tests/kernels/gpu_check/device_body.h"

namespace baton::kernels::gpu_check {

// See the file comment. One thread beside its own.
class BusyLoop {
 public:
  // Starts steps on a share of `device`, which outlives the loop. On the runner the loop rests
  // between steps, because others need the processor.
  static StatusOr<std::unique_ptr<BusyLoop>> Start(device::Accelerator* device,
                                                   const DeviceBody& body);
  ~BusyLoop();

  // Runs `work`; microseconds of each step that ended meanwhile, and of the one under way at its
  // end, which may be the one that had to wait. An error of either.
  StatusOr<std::vector<double>> During(const std::function<Status()>& work);
  // Does nothing for the time of `rest`, and returns as the function above does.
  StatusOr<std::vector<double>> During(std::chrono::milliseconds rest);

 private:
  explicit BusyLoop(const DeviceBody& body) : body_(body) {}
  void Run();
  Status Step();

  const DeviceBody& body_;
  std::unique_ptr<device::Accelerator> device_;
  device::DeviceBuffer from_;
  device::DeviceBuffer to_;
  std::mutex mutex_;  // guards the three below
  std::condition_variable ended_;
  bool is_done_ = false;
  Status status_;
  std::vector<double> steps_us_;
  Thread thread_;  // the last: it uses the others
};

// {"num", "p50_us", "p99_us", "max_us", "samples_us"}; percentiles are nearest ranks, that of p99
// null below a thousand samples.
nlohmann::json JsonOfSteps(std::vector<double> steps_us);
// "p50 21.0, p99 40.2, most 3000.0 us": of p99 what there is.
std::string WordsOfSteps(const nlohmann::json& steps);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_BUSY_LOOP_H_
