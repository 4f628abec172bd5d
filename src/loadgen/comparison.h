// Whether two servers differ: rounds of the same load, A B B A, judged pair by pair. Pure; any
// thread.
#ifndef BATON_LOADGEN_COMPARISON_H_
#define BATON_LOADGEN_COMPARISON_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/loadgen/run_report.h"
#include "src/loadgen/statistics.h"

namespace baton::loadgen {

// How sure a comparison wants to be.
struct ComparisonSpec {
  // That a comparison of a server with itself finds no difference in any metric; each metric's
  // interval gets its part of the rest (Bonferroni).
  double confidence = 0.99;
  double min_effect = 0.01;  // smaller differences are not called
  uint64_t seed = 1;
};

// One metric of both servers.
struct ComparedMetric {
  std::string name;
  bool more_is_better = false;
  double typical_a = 0;  // median over the rounds; microseconds or a rate
  double typical_b = 0;
  RatioInterval interval;  // of B to A
  RatioVerdict verdict = RatioVerdict::kNoDifference;
};

// The answer.
struct Comparison {
  std::vector<ComparedMetric> metrics;
  std::vector<std::string> void_reasons;  // why it must not be quoted
  bool differs() const;
};

// `a[i]` and `b[i]` are neighbouring rounds of the same load. Metrics that a round does not have
// (one-token answers have no gap) are left out. InvalidArgument for fewer than 4 pairs;
// FailedPrecondition when a round has no answer at all.
StatusOr<Comparison> Compare(std::span<const RunReport> a, std::span<const RunReport> b,
                             const ComparisonSpec& spec);

// True when round `pair` asks B first: A B B A A B B A.
constexpr bool StartsWithB(uint32_t pair) { return pair % 2 == 1; }

// The table for people, with the verdict in words; ends with a newline.
std::string ToTable(const Comparison& comparison);
// The JSON array of the metrics.
std::string ToJson(const Comparison& comparison);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_COMPARISON_H_
