// When the requests of an open loop are meant to start, whatever the server does. Pure; any thread.
#ifndef BATON_LOADGEN_ARRIVALS_H_
#define BATON_LOADGEN_ARRIVALS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/loadgen/random_draws.h"

namespace baton::loadgen {

// The law of the gaps between starts.
enum class ArrivalKind : uint8_t {
  kPoisson,  // exponential gaps
  kGamma,    // gamma gaps of shape `burstiness`: coefficient of variation 1 / sqrt(burstiness)
  kFixed,    // equal gaps
  kRamp,     // Poisson whose rate moves linearly from rate to rate_end over the duration
};

// An arrival process. Rates in starts a second, > 0.
struct ArrivalSpec {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate = 1.0;
  double rate_end = 1.0;    // kRamp only
  double burstiness = 1.0;  // kGamma only; 1 = Poisson, smaller = burstier
};

// Where a list of starts ends; at least one of the two is set, kRamp needs the duration.
struct ArrivalLimit {
  uint64_t max_count = 0;   // 0 = none
  int64_t duration_us = 0;  // 0 = none
};

// `kind` poisson|gamma|fixed|ramp; `rate` "4" or, for a ramp, "1:10"; `burstiness` a number > 0.
// InvalidArgument naming the piece.
StatusOr<ArrivalSpec> ParseArrivals(std::string_view kind, std::string_view rate,
                                    std::string_view burstiness);

// Later starts are at this time: thirty thousand years, so that any stretched one is still a
// number.
inline constexpr double kMaxStartUs = 1e18;

// Starts in microseconds from the beginning of the run, ascending. ResourceExhausted above
// kMaxArrivals.
inline constexpr uint64_t kMaxArrivals = 10'000'000;
StatusOr<std::vector<int64_t>> ArrivalTimes(const ArrivalSpec& spec, const ArrivalLimit& limit,
                                            RandomDraws& draws);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_ARRIVALS_H_
