#include "src/base/clock.h"

#include <time.h>

namespace baton {
namespace {

// Reads the kernel's clocks.
class OsClock final : public Clock {
 public:
  int64_t NowUs() const override { return Read(CLOCK_MONOTONIC) / 1000; }
  int64_t WallUnixMs() const override { return Read(CLOCK_REALTIME) / 1'000'000; }
  int64_t WallUnixUs() const override { return Read(CLOCK_REALTIME) / 1000; }

 private:
  static int64_t Read(clockid_t id) {
    timespec now{};
    clock_gettime(id, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
};

}  // namespace

const Clock& SystemClock() {
  // Never destroyed: threads may still read it while statics are torn down.
  static const OsClock* const clock = new OsClock;
  return *clock;
}

}  // namespace baton
