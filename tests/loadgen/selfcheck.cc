// The load client measured against a server whose answers are known. Not a test: run it on a quiet
// machine.
//
//   loadgen_selfcheck timing [STREAMS [TOKENS_PER_S [SECONDS]]]
//       Arrival times that the client wrote down beside the times at which the toy server sent the
//       tokens; the client's processor time.
//   loadgen_selfcheck compare FACTOR [REPEATS]
//       REPEATS comparisons of a toy server with one that is FACTOR times as slow, and how many
//       found a difference.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "src/loadgen/bench_plan.h"
#include "src/loadgen/quantity.h"
#include "tests/loadgen/toy_server.h"

namespace baton::loadgen {
namespace {

LoadedServer ToyEndpoint(const ToyServer& server) {
  LoadedServer endpoint;
  endpoint.target.host = "127.0.0.1";
  endpoint.target.port = std::to_string(server.port());
  endpoint.url = "http://127.0.0.1:" + endpoint.target.port;
  return endpoint;
}

void PrintRow(const char* name, const Summary& s) {
  std::printf("%-14s %9zu samples  p50 %-9s p90 %-9s p99 %-9s max %s\n", name, s.count,
              FormatUs(s.p50).c_str(), FormatUs(s.p90).c_str(), FormatUs(s.p99).c_str(),
              FormatUs(s.max).c_str());
}

int Timing(uint32_t streams, uint32_t tokens_per_s, uint32_t seconds) {
  ToyServer server({.ttft_us = 1'000'000, .itl_us = 1'000'000 / tokens_per_s});
  BenchPlan plan;
  plan.workload.input = {.low = 32, .max = 32};
  plan.workload.output = {.low = tokens_per_s * seconds, .max = tokens_per_s * seconds};
  // All streams begin within one second, evenly, as the requests of many users do.
  plan.arrivals.kind = ArrivalKind::kFixed;
  plan.arrivals.rate = streams;
  plan.max_sessions = streams;
  const auto result = RunPlan(plan, ToyEndpoint(server), {});
  server.Stop();
  if (!result.ok()) {
    std::printf("%s\n", result.status().ToString().c_str());
    return 1;
  }
  std::vector<double> errors_us;
  uint64_t not_ok = 0;
  for (const RequestRecord& record : result->records) {
    const auto sent = server.sent_us().find("bench-" + std::to_string(record.session_idx) + "-0");
    if (!record.ok() || sent == server.sent_us().end() ||
        sent->second.size() != record.token_us.size()) {
      ++not_ok;
      continue;
    }
    for (size_t i = 0; i < record.token_us.size(); ++i) {
      const int64_t arrived_us = result->epoch_us + record.token_us[i];
      errors_us.push_back(static_cast<double>(arrived_us - sent->second[i]));
    }
  }
  std::printf("%u streams x %u tokens/s, %.1f s; client thread %.2f s of processor time\n", streams,
              tokens_per_s, static_cast<double>(result->wall_us) / 1e6,
              static_cast<double>(result->client_cpu_us) / 1e6);
  PrintRow("timing error", Summarize(errors_us));
  PrintRow("start lag", Summarize(result->start_lag_us));
  PrintRow("read lag", Summarize(result->read_lag_us));
  std::printf("streams that failed or miscounted: %llu\n", static_cast<unsigned long long>(not_ok));
  return not_ok == 0 ? 0 : 1;
}

int CompareToys(double factor, uint32_t repeats) {
  uint32_t differ = 0, is_void = 0;
  for (uint32_t i = 0; i < repeats; ++i) {
    const ToyOptions base = {.ttft_us = 40'000, .itl_us = 4'000, .noise = 0.02, .seed = 2 * i + 1};
    ToyOptions slower = base;
    slower.seed = 2 * i + 2;
    slower.ttft_us = static_cast<int64_t>(static_cast<double>(base.ttft_us) * factor);
    slower.itl_us = static_cast<int64_t>(static_cast<double>(base.itl_us) * factor);
    ToyServer a(base), b(slower);
    BenchPlan plan;
    plan.workload.seed = 1000 * i;
    plan.workload.output = {.low = 24, .max = 24};
    plan.arrivals.rate = 60;
    plan.duration_us = 400'000;
    ComparedRuns runs;
    const Status done = RunComparison(plan, ToyEndpoint(a), ToyEndpoint(b), 16, runs);
    if (!done.ok()) {
      std::printf("%s\n", done.ToString().c_str());
      return 1;
    }
    differ += runs.comparison.differs() ? 1 : 0;
    is_void += runs.comparison.void_reasons.empty() ? 0 : 1;
    std::printf("comparison %u of %u\n%s", i + 1, repeats, ToTable(runs.comparison).c_str());
    std::fflush(stdout);
  }
  std::printf("factor %.3f: %u of %u comparisons found a difference; %u were void by lag\n", factor,
              differ, repeats, is_void);
  return 0;
}

}  // namespace
}  // namespace baton::loadgen

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  const auto number = [&](int i, double other) { return argc > i ? std::atof(argv[i]) : other; };
  if (what == "timing") {
    return baton::loadgen::Timing(static_cast<uint32_t>(number(2, 2000)),
                                  static_cast<uint32_t>(number(3, 20)),
                                  static_cast<uint32_t>(number(4, 10)));
  }
  if (what == "compare" && argc > 2) {
    return baton::loadgen::CompareToys(number(2, 1.0), static_cast<uint32_t>(number(3, 20)));
  }
  std::fprintf(stderr, "usage: %s timing [STREAMS [TOKENS_PER_S [SECONDS]]] | compare FACTOR [N]\n",
               argv[0]);
  return 2;
}
