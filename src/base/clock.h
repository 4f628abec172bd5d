// The only source of time. Everything that waits, expires or measures takes a Clock, so that tests
// and simulations run on a clock they move themselves.
#ifndef BATON_BASE_CLOCK_H_
#define BATON_BASE_CLOCK_H_

#include <atomic>
#include <cstdint>

namespace baton {

// A steady and a wall clock; any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  // Microseconds since an arbitrary fixed point of this process's host; never goes back. Not
  // comparable between hosts.
  virtual int64_t NowUs() const = 0;
  // Milliseconds since the Unix epoch; may jump. For logs and `created` fields only.
  virtual int64_t WallUnixMs() const = 0;
  // WallUnixMs in microseconds, as finely as the clock knows; to lay traces of hosts side by side.
  virtual int64_t WallUnixUs() const { return WallUnixMs() * 1000; }
};

// The operating system's clocks (CLOCK_MONOTONIC, CLOCK_REALTIME); lives for the whole process.
const Clock& SystemClock();

// A clock that stands still until a test moves it; any thread.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t now_us = 1'000'000, int64_t wall_unix_ms = 1'700'000'000'000)
      : now_us_(now_us), wall_offset_ms_(wall_unix_ms - now_us / 1000) {}

  int64_t NowUs() const override { return now_us_.load(std::memory_order_acquire); }
  int64_t WallUnixMs() const override { return wall_offset_ms_ + NowUs() / 1000; }

  // Moves both clocks forward; `delta_us` >= 0.
  void AdvanceUs(int64_t delta_us) { now_us_.fetch_add(delta_us, std::memory_order_acq_rel); }
  void AdvanceMs(int64_t delta_ms) { AdvanceUs(delta_ms * 1000); }
  // Sets the steady clock; the caller never sets it back.
  void SetUs(int64_t now_us) { now_us_.store(now_us, std::memory_order_release); }

 private:
  std::atomic<int64_t> now_us_;
  const int64_t wall_offset_ms_;
};

}  // namespace baton

#endif  // BATON_BASE_CLOCK_H_
