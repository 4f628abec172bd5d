// A /metrics page (Prometheus text 0.0.4) as numbers, and what two pages of one process say of the
// time between them. Pure; any thread.
#ifndef BATON_CLI_TOP_METRIC_PAGE_H_
#define BATON_CLI_TOP_METRIC_PAGE_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/status.h"

namespace baton::cli {

// One line of a page.
struct MetricSample {
  std::map<std::string, std::string, std::less<>> labels;
  double value = 0;
};

// A label that a sample must have, with that value.
struct LabelIs {
  std::string_view name;
  std::string_view value;
};

// See the file comment. A value.
class MetricPage {
 public:
  // DataLoss naming the line that is no sample. Comments and time stamps are skipped.
  static StatusOr<MetricPage> Parse(std::string_view text);

  // The sum over the family's samples, of those with the label; empty when there are none.
  std::optional<double> Sum(std::string_view name, std::optional<LabelIs> label = {}) const;
  // Upper bound -> number of observations up to it, over the buckets of a histogram.
  std::map<double, double> Buckets(std::string_view name) const;

 private:
  std::map<std::string, std::vector<MetricSample>, std::less<>> samples_;  // by name
};

// How much a counter grew; empty when it is missing on a page or went back (a new process).
std::optional<double> Growth(const MetricPage& before, const MetricPage& now, std::string_view name,
                             std::optional<LabelIs> label = {});

// The quantile in [0, 1] of what a histogram observed between two pages, interpolated within its
// bucket as Prometheus does; the last finite bound for what lies beyond. Empty without
// observations.
std::optional<double> QuantileBetween(const MetricPage& before, const MetricPage& now,
                                      std::string_view name, double quantile);

// The mean of what a histogram observed between two pages.
std::optional<double> MeanBetween(const MetricPage& before, const MetricPage& now,
                                  std::string_view name, std::optional<LabelIs> label = {});

}  // namespace baton::cli

#endif  // BATON_CLI_TOP_METRIC_PAGE_H_
