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

// The same work, which computing binds, on the larger part and on the smaller.
struct PartGrowth {
  double first_us;
  double second_us;
};

// FailedPrecondition with the numbers when the time did not grow with the share that is missing, by
// half of what it should at least: clocks differ, but other multiprocessors computed too.
inline absl::Status CheckGrowth(const DividedSms& sms, const PartGrowth& growth) {
  const double expected = static_cast<double>(sms.first) / sms.second;
  const double grown = growth.second_us / growth.first_us;
  if (grown >= (1 + expected) / 2) return absl::OkStatus();
  return FailedPrecondition("{:.2f} times the time on {:.2f} times fewer multiprocessors", grown,
                            expected);
}

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_DIVIDED_SMS_H_
