// Whether a GPU was divided between two workers: where the driver refuses to, each has all of it,
// and they take turns.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_DIVIDED_SMS_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_DIVIDED_SMS_H_

#include <cstdint>

#include "src/base/status.h"

namespace baton::gpu_check {

// Multiprocessors of the whole device, and of the part of each.
struct DividedSms {
  uint32_t whole;
  uint32_t first;
  uint32_t second;
};

// FailedPrecondition with the numbers unless both have some and no more than there are.
inline absl::Status CheckDividedSms(const DividedSms& sms) {
  if (sms.first > 0 && sms.second > 0 && uint64_t{sms.first} + sms.second <= sms.whole) {
    return absl::OkStatus();
  }
  return FailedPrecondition(
      "the GPU is not divided, {} and {} of {} multiprocessors: the log has the driver's words",
      sms.first, sms.second, sms.whole);
}

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_DIVIDED_SMS_H_
