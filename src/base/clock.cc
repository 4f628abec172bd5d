#include "src/base/clock.h"

#include <time.h>

#include <cstddef>
#include <new>

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
  // Never destroyed: threads may still read it while statics are torn down. Its place is static,
  // because a pool's thread may be the first to ask, in a step that allocates nothing.
  alignas(OsClock) static std::byte place[sizeof(OsClock)];
  static const OsClock* const clock = new (place) OsClock;
  return *clock;
}

}  // namespace baton
