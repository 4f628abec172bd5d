// Waiting before one server, and how many are in a pool, for planning. Pure; any thread.
//
// Arrivals are Poisson. A prefill worker is an M/D/1 queue: prompts of one length take one time. A
// decode pool is read as M/G/inf: nobody waits for a row, so the number of sequences is Poisson
// distributed whatever their lengths are (Kleinrock, "Queueing Systems", vol. I, 1975: M/G/1 and
// the Pollaczek-Khinchin mean-value formula in chapter 5, infinitely many servers in chapter 3).
#ifndef BATON_PLAN_QUEUEING_H_
#define BATON_PLAN_QUEUEING_H_

#include <cstdint>

namespace baton::plan {

// One server with first come, first served, and a fixed time of service.
struct FixedServiceQueue {
  double arrivals_per_s = 0;
  double service_us = 0;

  // Share of the time in which it serves; from 1 on it never catches up.
  double utilization() const { return arrivals_per_s * service_us * 1e-6; }
  // rho * service / (2 * (1 - rho)): Pollaczek-Khinchin without variance of service. Infinite from
  // rho = 1 on.
  double MeanWaitUs() const;
  // The wait that a share `quantile` in (0, 1) of the arrivals stay below. A wait is taken as 0
  // with probability 1 - rho, else exponential with the mean that MeanWaitUs asks for: exact for
  // M/M/1, and for M/D/1 up to a service above the truth (queueing_test simulates both).
  double WaitUs(double quantile) const;
};

// The smallest count that a Poisson variable of this mean stays at or below with probability
// `quantile` in (0, 1). `mean` in [0, 700], above which e^-mean is no number.
uint32_t PoissonQuantile(double mean, double quantile);

}  // namespace baton::plan

#endif  // BATON_PLAN_QUEUEING_H_
