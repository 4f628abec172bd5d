// The GPUs other than a Hopper, as the runner stands for them: whose tensor cores and how much
// shared memory, by which kernels are chosen.
#ifndef BATON_TESTS_KERNELS_SIMT_OTHER_GPUS_H_
#define BATON_TESTS_KERNELS_SIMT_OTHER_GPUS_H_

#include <string>
#include <vector>

#include "kernels/simt/run_options.h"
#include "kernels/simt/tensor_core.h"

namespace baton::kernels::simt_test {

// One of them.
struct OtherGpu {
  const char* name;
  simt::TensorMath math;
  uint32_t shared_bytes;

  simt::RunOptions options() const {
    simt::RunOptions options;
    options.tensor_math = math;
    options.max_shared_bytes = shared_bytes;
    return options;
  }
};

// Nobody knows the arithmetic of the last GPU: Hopper's stands for it.
inline constexpr OtherGpu kOtherGpus[] = {
    {"sm_80", simt::TensorMath::kAmpereBits, simt::kAmpereSharedBytes},
    {"sm_89", simt::TensorMath::kAmpereBits, simt::kLeastSharedBytes},
    {"sm_120", simt::TensorMath::kHopperBits, simt::kLeastSharedBytes}};

// Every order of a Hopper, and one of each of the others.
inline std::vector<simt::RunOptions> AllOrdersAndGpus() {
  std::vector<simt::RunOptions> all = simt::AllOrders(2);
  for (const OtherGpu& gpu : kOtherGpus) all.push_back(gpu.options());
  return all;
}

// The tensor cores whose bits this thread's launches have, when they have any.
inline simt::TensorCore CurrentCore() {
  return simt::CurrentRunOptions().tensor_math == simt::TensorMath::kAmpereBits
             ? simt::TensorCore::kAmpere
             : simt::TensorCore::kHopper;
}

}  // namespace baton::kernels::simt_test

#endif  // BATON_TESTS_KERNELS_SIMT_OTHER_GPUS_H_
