#include "src/loadgen/comparison.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "nlohmann/json.hpp"

#include "src/loadgen/quantity.h"

namespace baton::loadgen {
namespace {

// A number of one round that is compared.
struct Metric {
  const char* name;
  bool more_is_better;
  double (*of)(const RunReport&);
};

// Medians, not tails: a round is too short for a p99, and one frozen moment would decide it.
constexpr Metric kMetrics[] = {
    {"ttft p50", false, [](const RunReport& r) { return r.ttft.p50; }},
    {"itl p50", false, [](const RunReport& r) { return r.itl.p50; }},
    {"e2e p50", false, [](const RunReport& r) { return r.e2e.p50; }},
    {"output tokens/s", true, [](const RunReport& r) { return r.output_tokens_per_s; }},
};

std::vector<double> Values(std::span<const RunReport> rounds, const Metric& metric) {
  std::vector<double> values;
  for (const RunReport& round : rounds) values.push_back(metric.of(round));
  return values;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Quantile(values, 0.5);
}

bool Usable(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](double v) { return std::isfinite(v) && v > 0.0; });
}

std::string Value(const ComparedMetric& metric, double value) {
  return metric.more_is_better ? fmt::format("{:.1f}", value) : FormatUs(value);
}

std::string_view Words(const ComparedMetric& metric) {
  if (metric.verdict == RatioVerdict::kNoDifference) return "no difference";
  const bool better = (metric.verdict == RatioVerdict::kHigher) == metric.more_is_better;
  return better ? "B is better" : "B is worse";
}

}  // namespace

bool Comparison::differs() const {
  return std::any_of(metrics.begin(), metrics.end(), [](const ComparedMetric& metric) {
    return metric.verdict != RatioVerdict::kNoDifference;
  });
}

StatusOr<Comparison> Compare(std::span<const RunReport> a, std::span<const RunReport> b,
                             const ComparisonSpec& spec) {
  Comparison comparison;
  std::set<std::string> reasons;
  for (const auto& [name, side] : {std::pair("A", a), std::pair("B", b)}) {
    uint64_t attempted = 0, failed = 0;
    std::string first_error;
    for (const RunReport& round : side) {
      attempted += round.attempted;
      failed += round.attempted - round.num_ok();
      if (first_error.empty()) first_error = round.first_error;
      if (round.num_ok() == 0) {
        return FailedPrecondition("a round has no answer: {}", round.first_error);
      }
      if (round.golden_missing) reasons.insert("a round checked no golden prompt");
      if (round.golden_wrong > 0) reasons.insert("a golden prompt had a wrong answer");
      if (round.wrong_work > 0) reasons.insert("answers have other token counts than declared");
      if (round.by_outcome[static_cast<size_t>(RequestOutcome::kLocalError)] > 0) {
        reasons.insert("requests failed on the client's own machine");
      }
      if (!round.cut_short.empty()) reasons.insert("a round was cut short: " + round.cut_short);
    }
    // The times are of those that were answered: who refuses half of the load must not look fast.
    if (failed > 0) {
      reasons.insert(
          fmt::format("{} of {} requests failed at {}: {}", failed, attempted, name, first_error));
    }
  }
  comparison.void_reasons.assign(reasons.begin(), reasons.end());
  const double share = (1.0 - spec.confidence) / static_cast<double>(std::size(kMetrics));
  for (const Metric& metric : kMetrics) {
    const std::vector<double> values_a = Values(a, metric), values_b = Values(b, metric);
    if (!Usable(values_a) || !Usable(values_b)) continue;
    const BootstrapSpec bootstrap = {
        .confidence = 1.0 - share, .resamples = 10'000, .seed = spec.seed};
    ComparedMetric compared;
    BATON_ASSIGN_OR_RETURN(compared.interval, PairedRatio(values_a, values_b, bootstrap));
    compared.name = metric.name;
    compared.more_is_better = metric.more_is_better;
    compared.typical_a = Median(values_a);
    compared.typical_b = Median(values_b);
    compared.verdict = Judge(compared.interval, spec.min_effect);
    comparison.metrics.push_back(std::move(compared));
  }
  return comparison;
}

std::string ToTable(const Comparison& comparison) {
  std::string text = fmt::format("{:<17}{:>12}{:>12}{:>9}{:>18}   {}\n", "", "A", "B", "B / A",
                                 "interval", "verdict");
  for (const ComparedMetric& m : comparison.metrics) {
    text += fmt::format("{:<17}{:>12}{:>12}{:>9.3f}{:>18}   {}\n", m.name, Value(m, m.typical_a),
                        Value(m, m.typical_b), m.interval.ratio,
                        fmt::format("[{:.3f}, {:.3f}]", m.interval.low, m.interval.high), Words(m));
  }
  for (const std::string& reason : comparison.void_reasons) {
    text += fmt::format("VOID             {}\n", reason);
  }
  return text + (comparison.differs() ? "verdict: they differ\n" : "verdict: no difference\n");
}

std::string ToJson(const Comparison& comparison) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const ComparedMetric& m : comparison.metrics) {
    array.push_back({{"metric", m.name},
                     {"a", m.typical_a},
                     {"b", m.typical_b},
                     {"pairs", m.interval.pairs},
                     {"ratio", m.interval.ratio},
                     {"low", m.interval.low},
                     {"high", m.interval.high},
                     {"verdict", Words(m)}});
  }
  nlohmann::ordered_json json;
  json["differs"] = comparison.differs();
  json["void"] = comparison.void_reasons;
  json["metrics"] = std::move(array);
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace baton::loadgen
