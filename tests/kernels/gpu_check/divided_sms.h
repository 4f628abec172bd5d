// Whether a GPU was divided between two workers: where the driver refuses to, each has all of it,
// and they take turns.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_DIVIDED_SMS_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_DIVIDED_SMS_H_

#include <cstdint>

#include "src/base/status.h"

namespace baton::kernels::gpu_check {

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

// Times of the same work on the larger part and on the smaller. Computing limits this work.
struct PartGrowth {
  double first_us;
  double second_us;
};

// Rounds that a multiprocessor needs when it computes its tiles one after another.
inline uint32_t RoundsOf(uint32_t num_tiles, uint32_t num_sms) {
  return (num_tiles + num_sms - 1) / num_sms;
}

// FailedPrecondition with the numbers when the time of so many tiles did not grow as the rounds do,
// by half of that at least: clocks differ, but other multiprocessors computed too.
inline absl::Status CheckGrowth(const DividedSms& sms, uint32_t num_tiles,
                                const PartGrowth& growth) {
  const uint32_t first = RoundsOf(num_tiles, sms.first);
  const uint32_t second = RoundsOf(num_tiles, sms.second);
  const double expected = static_cast<double>(second) / first;
  const double grown = growth.second_us / growth.first_us;
  if (grown >= (1 + expected) / 2) return absl::OkStatus();
  return FailedPrecondition("{:.2f} times the time in {} rounds of tiles instead of {}", grown,
                            second, first);
}

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_DIVIDED_SMS_H_
