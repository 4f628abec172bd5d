// A load as it was asked for, and the runs that are made of it. One thread.
#ifndef BATON_LOADGEN_BENCH_PLAN_H_
#define BATON_LOADGEN_BENCH_PLAN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/loadgen/arrivals.h"
#include "src/loadgen/comparison.h"
#include "src/loadgen/http_streams.h"
#include "src/loadgen/load_loop.h"
#include "src/loadgen/rate_search.h"
#include "src/loadgen/run_report.h"
#include "src/loadgen/workload.h"

namespace baton::loadgen {

// A server under load.
struct LoadedServer {
  std::string url;  // as typed
  bool grpc = false;
  HttpTarget target;  // host, port and model for gRPC too
};

// Everything about a load but the server. Exactly one of num_users, the trace in `workload` and
// `arrivals` says when sessions start, in that order.
struct BenchPlan {
  WorkloadSpec workload;
  ArrivalSpec arrivals;
  uint32_t num_users = 0;     // > 0: closed loop
  uint64_t max_sessions = 0;  // 0 = as many as the duration holds
  int64_t duration_us = 0;    // 0 = as long as the sessions take
  int64_t think_us = 0;
  int64_t timeout_us = 600'000'000;
  ReportSpec report;
  std::function<void(const LoadProgress&)> on_progress;
  const std::atomic<bool>* stop = nullptr;

  bool open() const { return num_users == 0; }
  // The law of the starts can be given another rate.
  bool has_rate() const { return open() && workload.trace.empty(); }
};

// The seeds of a run's random draws.
struct RunSeeds {
  uint64_t load = 1;  // starts and lengths
  uint64_t text = 1;  // words and ids
};

// One run of the plan with these seeds. InvalidArgument and ResourceExhausted from the plan;
// NotFound, Unavailable when the server cannot be reached at the start.
StatusOr<RunResult> RunPlan(const BenchPlan& plan, const LoadedServer& endpoint, RunSeeds seeds);

// A search or a sweep over rates: each trial's run is kept.
struct RateRuns {
  std::vector<double> rates;
  std::vector<RunResult> results;
  std::vector<RunReport> reports;
};
// Told after each trial.
using OnTrial = std::function<void(double rate, const RunReport&)>;

// Runs the plan at each of the rates, into `runs`; what was measured before an error stays there.
Status RunSweep(const BenchPlan& plan, const LoadedServer& endpoint,
                const std::vector<double>& rates, const OnTrial& on_trial, RateRuns& runs);
// Searches the largest rate at which the plan's objective is met; `runs` gets every trial, also
// those before an error. A void trial is made again; FailedPrecondition when it stays void, Aborted
// when the server goes away.
StatusOr<RateSearchResult> RunFindMax(const BenchPlan& plan, const LoadedServer& endpoint,
                                      const RateSearchSpec& spec, const OnTrial& on_trial,
                                      RateRuns& runs);

// Both sides of an interleaved comparison.
struct ComparedRuns {
  Comparison comparison;
  std::vector<RunResult> a, b;
  std::vector<RunReport> reports_a, reports_b;
};
// `pairs` rounds a side in the order A B B A ..., after one untimed round each; neighbours get the
// same lengths at the same times, in other words each: A and B may be one server, or share a cache.
// `runs` keeps the rounds before an error.
Status RunComparison(const BenchPlan& plan, const LoadedServer& a, const LoadedServer& b,
                     uint32_t pairs, ComparedRuns& runs);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_BENCH_PLAN_H_
