#include "src/loadgen/bench_plan.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "src/loadgen/grpc_streams.h"

namespace baton::loadgen {
namespace {

// How often a trial of a search is made when it is void.
constexpr uint32_t kVoidTries = 3;

StatusOr<std::unique_ptr<StreamBackend>> MakeBackend(const LoadedServer& endpoint) {
  if (endpoint.grpc) return GrpcStreams::Create(endpoint.target);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<HttpStreams> http, HttpStreams::Create(endpoint.target));
  return std::unique_ptr<StreamBackend>(std::move(http));
}

StatusOr<LoadSpec> MakeLoad(const BenchPlan& plan, uint64_t seed) {
  LoadSpec load;
  load.num_users = plan.num_users;
  load.max_sessions = plan.max_sessions;
  load.duration_us = plan.duration_us;
  load.think_us = plan.think_us;
  load.timeout_us = plan.timeout_us;
  // Whatever was started in time may take its time.
  load.drain_us = plan.timeout_us;
  load.on_progress = plan.on_progress;
  load.stop = plan.stop;
  if (!plan.open()) return load;
  if (plan.workload.trace.empty()) {
    RandomDraws draws(seed ^ 0xa5a5a5a5a5a5a5a5ull);
    BATON_ASSIGN_OR_RETURN(
        load.starts_us,
        ArrivalTimes(plan.arrivals,
                     {.max_count = plan.max_sessions, .duration_us = plan.duration_us}, draws));
    // A short run at a low rate may draw no start; a search must not end for that.
    if (load.starts_us.empty()) load.starts_us.push_back(0);
  } else {
    for (const TraceRow& row : plan.workload.trace) {
      if (plan.max_sessions > 0 && load.starts_us.size() == plan.max_sessions) break;
      if (plan.duration_us > 0 && row.start_us >= plan.duration_us) break;
      load.starts_us.push_back(row.start_us);
    }
  }
  // The list is the plan; a start that is due at the last moment is not lost to the duration.
  if (plan.workload.num_turns == 1) load.duration_us = 0;
  if (load.starts_us.empty()) {
    return InvalidArgument("the trace has no start within the duration; give it more time");
  }
  return load;
}

void CollectVoid(const ComparedRuns& runs, Comparison& comparison) {
  std::vector<double> starting, reading, ttft;
  for (const auto* side : {&runs.a, &runs.b}) {
    for (const RunResult& round : *side) {
      starting.insert(starting.end(), round.start_lag_us.begin(), round.start_lag_us.end());
      reading.insert(reading.end(), round.read_lag_us.begin(), round.read_lag_us.end());
      for (const RequestRecord& record : round.records) {
        if (const auto one = TtftUs(record)) ttft.push_back(*one);
      }
    }
  }
  const std::string lag = LagComplaint(Summarize(std::move(starting)),
                                       Summarize(std::move(reading)), Summarize(std::move(ttft)));
  if (!lag.empty()) comparison.void_reasons.push_back(lag);
}

}  // namespace

StatusOr<RunResult> RunPlan(const BenchPlan& plan, const LoadedServer& endpoint, RunSeeds seeds) {
  WorkloadSpec spec = plan.workload;
  spec.seed = seeds.load;
  spec.text_seed = seeds.text;
  const Workload workload(std::move(spec));
  BATON_ASSIGN_OR_RETURN(LoadSpec load, MakeLoad(plan, seeds.load));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<StreamBackend> backend, MakeBackend(endpoint));
  return LoadLoop(SystemClock(), *backend, workload, std::move(load)).Run();
}

namespace {

// One run at a rate, kept in `runs`.
Status RunAtRate(const BenchPlan& plan, const LoadedServer& endpoint, double rate, RateRuns& runs) {
  BenchPlan at_rate = plan;
  at_rate.arrivals.rate = rate;
  const uint64_t seed = plan.workload.seed + runs.rates.size();
  BATON_ASSIGN_OR_RETURN(RunResult result, RunPlan(at_rate, endpoint, {seed, seed}));
  runs.rates.push_back(rate);
  runs.reports.push_back(MakeReport(result, plan.report));
  runs.results.push_back(std::move(result));
  return OkStatus();
}

}  // namespace

Status RunSweep(const BenchPlan& plan, const LoadedServer& endpoint,
                const std::vector<double>& rates, const OnTrial& on_trial, RateRuns& runs) {
  for (const double rate : rates) {
    BATON_RETURN_IF_ERROR(RunAtRate(plan, endpoint, rate, runs));
    on_trial(rate, runs.reports.back());
    if (!runs.reports.back().cut_short.empty()) break;
  }
  return OkStatus();
}

StatusOr<RateSearchResult> RunFindMax(const BenchPlan& plan, const LoadedServer& endpoint,
                                      const RateSearchSpec& spec, const OnTrial& on_trial,
                                      RateRuns& runs) {
  const auto holds = [&](double rate, uint32_t) -> StatusOr<bool> {
    for (uint32_t tries = 1;; ++tries) {
      BATON_RETURN_IF_ERROR(RunAtRate(plan, endpoint, rate, runs));
      const RunReport& report = runs.reports.back();
      on_trial(rate, report);
      if (!report.cut_short.empty()) return Aborted("{}", report.cut_short);
      // A void trial says nothing about the server, neither yes nor no.
      if (report.void_reasons.empty()) return report.goodput_share >= plan.report.slo->goodput;
      if (tries == kVoidTries) {
        return FailedPrecondition("the trial at {:.3g} starts/s was void {} times: {}", rate, tries,
                                  report.void_reasons.front());
      }
    }
  };
  return FindMaxRate(spec, holds);
}

Status RunComparison(const BenchPlan& plan, const LoadedServer& a, const LoadedServer& b,
                     uint32_t pairs, ComparedRuns& runs) {
  RandomDraws seeds(plan.workload.seed);
  for (const LoadedServer* endpoint : {&a, &b}) {
    BATON_RETURN_IF_ERROR(RunPlan(plan, *endpoint, {seeds.NextU64(), seeds.NextU64()}).status());
  }
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    const uint64_t load_seed = seeds.NextU64();
    for (const bool second : {false, true}) {
      const bool is_b = StartsWithB(pair) != second;
      BATON_ASSIGN_OR_RETURN(RunResult result,
                             RunPlan(plan, is_b ? b : a, {load_seed, seeds.NextU64()}));
      (is_b ? runs.reports_b : runs.reports_a).push_back(MakeReport(result, plan.report));
      const bool cut_short = !result.cut_short.empty();
      const std::string why = result.cut_short;
      (is_b ? runs.b : runs.a).push_back(std::move(result));
      if (cut_short) return Aborted("round {} of {}: {}", pair + 1, is_b ? b.url : a.url, why);
    }
  }
  BATON_ASSIGN_OR_RETURN(runs.comparison,
                         Compare(runs.reports_a, runs.reports_b, {.seed = plan.workload.seed}));
  CollectVoid(runs, runs.comparison);
  return OkStatus();
}

}  // namespace baton::loadgen
