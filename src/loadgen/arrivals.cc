#include "src/loadgen/arrivals.h"

#include <algorithm>
#include <cmath>

#include "src/loadgen/quantity.h"

namespace baton::loadgen {
namespace {

StatusOr<double> ParseRate(std::string_view text) {
  const StatusOr<double> rate = ParseNumber(text);
  if (!rate.ok() || *rate <= 0.0 || *rate > 1e6) {
    return InvalidArgument("--rate: '{}' is not a number of starts a second in (0, 1000000]", text);
  }
  return rate;
}

// A gap in seconds; `kind` is not kRamp.
double NextGap(const ArrivalSpec& spec, RandomDraws& draws) {
  if (spec.kind == ArrivalKind::kFixed) return 1.0 / spec.rate;
  if (spec.kind == ArrivalKind::kGamma) {
    return draws.Gamma(spec.burstiness) / (spec.burstiness * spec.rate);
  }
  return draws.Exponential() / spec.rate;
}

// The time at which the expected number of starts of the ramp reaches `expected`:
// rate * t + slope * t^2 / 2 = expected. Infinite when a falling ramp never gets there.
double RampTime(const ArrivalSpec& spec, double duration_s, double expected) {
  const double slope = (spec.rate_end - spec.rate) / duration_s;
  const double root = spec.rate * spec.rate + 2.0 * slope * expected;
  if (root < 0.0) return INFINITY;
  // This form of the solution does not cancel and also holds for slope 0.
  return 2.0 * expected / (spec.rate + std::sqrt(root));
}

}  // namespace

StatusOr<ArrivalSpec> ParseArrivals(std::string_view kind, std::string_view rate,
                                    std::string_view burstiness) {
  ArrivalSpec spec;
  const std::vector<std::string_view> rates = SplitAt(rate, ':');
  if (kind == "poisson") {
    spec.kind = ArrivalKind::kPoisson;
  } else if (kind == "gamma") {
    spec.kind = ArrivalKind::kGamma;
  } else if (kind == "fixed") {
    spec.kind = ArrivalKind::kFixed;
  } else if (kind == "ramp") {
    spec.kind = ArrivalKind::kRamp;
  } else {
    return InvalidArgument("--arrivals: '{}' is not one of poisson, gamma, fixed, ramp", kind);
  }
  if (rates.size() != (spec.kind == ArrivalKind::kRamp ? 2u : 1u)) {
    return InvalidArgument("--rate: '{}' must be {}", rate,
                           spec.kind == ArrivalKind::kRamp
                               ? "FIRST:LAST for a ramp"
                               : "one number; FIRST:LAST is for --arrivals ramp");
  }
  BATON_ASSIGN_OR_RETURN(spec.rate, ParseRate(rates.front()));
  BATON_ASSIGN_OR_RETURN(spec.rate_end, ParseRate(rates.back()));
  const StatusOr<double> shape = ParseNumber(burstiness);
  if (!shape.ok() || *shape < 0.001 || *shape > 1000.0) {
    return InvalidArgument("--burstiness: '{}' is not a number in [0.001, 1000]", burstiness);
  }
  spec.burstiness = *shape;
  return spec;
}

StatusOr<std::vector<int64_t>> ArrivalTimes(const ArrivalSpec& spec, const ArrivalLimit& limit,
                                            RandomDraws& draws) {
  const bool ramp = spec.kind == ArrivalKind::kRamp;
  if (limit.duration_us <= 0 && (limit.max_count == 0 || ramp)) {
    return InvalidArgument("a {} needs a duration", ramp ? "ramp" : "load without a count");
  }
  const double duration_s = static_cast<double>(limit.duration_us) / 1e6;
  std::vector<int64_t> starts;
  double sum = 0.0;  // seconds, or expected starts of a ramp
  while (limit.max_count == 0 || starts.size() < limit.max_count) {
    sum += ramp ? draws.Exponential() : NextGap(spec, draws);
    const double at_s = ramp ? RampTime(spec, duration_s, sum) : sum;
    if (limit.duration_us > 0 && at_s >= duration_s) break;
    if (starts.size() == kMaxArrivals) {
      return ResourceExhausted("the load has more than {} starts; shorten it", kMaxArrivals);
    }
    starts.push_back(std::llround(std::min(at_s * 1e6, kMaxStartUs)));
  }
  return starts;
}

}  // namespace baton::loadgen
