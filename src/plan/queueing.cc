#include "src/plan/queueing.h"

#include <cmath>
#include <limits>

namespace baton::plan {

double FixedServiceQueue::MeanWaitUs() const {
  const double rho = utilization();
  if (rho >= 1) return std::numeric_limits<double>::infinity();
  return rho * service_us / (2 * (1 - rho));
}

double FixedServiceQueue::WaitUs(double quantile) const {
  const double rho = utilization();
  if (rho >= 1) return std::numeric_limits<double>::infinity();
  if (rho <= 1 - quantile) return 0;
  // P(wait > t) = rho * exp(-rho * t / mean).
  return MeanWaitUs() / rho * std::log(rho / (1 - quantile));
}

uint32_t PoissonQuantile(double mean, double quantile) {
  double term = std::exp(-mean);
  double sum = term;
  uint32_t count = 0;
  // Rounding may keep the sum below a quantile next to 1: no count is looked for beyond where the
  // terms vanish.
  const double last = mean + 40 * std::sqrt(mean) + 100;
  while (sum < quantile && count < last) {
    ++count;
    term *= mean / count;
    sum += term;
  }
  return count;
}

}  // namespace baton::plan
