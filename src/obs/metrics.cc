#include "src/obs/metrics.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "fmt/format.h"

#include "src/base/check.h"

namespace baton::obs {
namespace {

// Name, labels with their braces (or nothing) and value of one line.
struct Sample {
  std::string_view name;
  std::string_view suffix;
  std::string_view labels;
};

// In a label value \, " and line breaks are escaped; in HELP only \ and line breaks.
std::string Escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);  // the shortest text that reads back as the same number
}

void AppendSample(const Sample& sample, std::string_view value, std::string* out) {
  const std::string_view open = sample.labels.empty() ? "" : "{";
  const std::string_view close = sample.labels.empty() ? "" : "}";
  fmt::format_to(std::back_inserter(*out), "{}{}{}{}{} {}\n", sample.name, sample.suffix, open,
                 sample.labels, close, value);
}

Histogram::Snapshot SumOf(const std::vector<const Histogram*>& histograms) {
  Histogram::Snapshot total = histograms.front()->Read();
  for (size_t h = 1; h < histograms.size(); ++h) {
    const Histogram::Snapshot more = histograms[h]->Read();
    for (size_t i = 0; i < total.cumulative.size(); ++i) total.cumulative[i] += more.cumulative[i];
    total.sum += more.sum;
  }
  return total;
}

// The value of a label; none: there is no such label.
std::optional<std::string_view> LabelOf(const MetricLabels& labels, std::string_view name) {
  for (const auto& [known, value] : labels) {
    if (known == name) return value;
  }
  return std::nullopt;
}

void AppendHistogram(std::string_view name, std::string_view labels,
                     const std::vector<const Histogram*>& histograms, std::string* out) {
  const Histogram::Snapshot snapshot = SumOf(histograms);
  const std::span<const double> bounds = histograms.front()->bounds();
  const std::string_view comma = labels.empty() ? "" : ",";
  for (size_t i = 0; i <= bounds.size(); ++i) {
    const std::string bound = i < bounds.size() ? NumberText(bounds[i]) : "+Inf";
    AppendSample({name, "_bucket", fmt::format("{}{}le=\"{}\"", labels, comma, bound)},
                 fmt::format("{}", snapshot.cumulative[i]), out);
  }
  AppendSample({name, "_sum", labels}, NumberText(snapshot.sum), out);
  AppendSample({name, "_count", labels}, fmt::format("{}", snapshot.cumulative.back()), out);
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()),
      counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds.size() + 1)) {
  const bool ascending = std::adjacent_find(bounds_.begin(), bounds_.end(),
                                            std::greater_equal<double>()) == bounds_.end();
  BATON_CHECK(ascending, "histogram bounds do not ascend");
}

void Histogram::Observe(double value) {
  if (std::isnan(value)) return;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);  // value <= bound
  counts_[static_cast<size_t>(bucket - bounds_.begin())].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

Histogram::Snapshot Histogram::Read() const {
  Snapshot snapshot;
  uint64_t total = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    total += counts_[i].load(std::memory_order_relaxed);
    snapshot.cumulative.push_back(total);
  }
  snapshot.sum = sum_.load(std::memory_order_relaxed);
  return snapshot;
}

MetricsRegistry::Series* MetricsRegistry::AddSeriesLocked(const MetricFamily& family, Type type,
                                                          MetricLabels labels) {
  auto [entry, added] = families_.try_emplace(std::string(family.name));
  Family& known = entry->second;
  if (added) {
    known.help = std::string(family.help);
    known.model_label = std::string(family.model_label);
    known.type = type;
  }
  BATON_CHECK(known.type == type, "metric {} is registered as two types", family.name);
  const std::optional<std::string_view> model = LabelOf(labels, "model");
  size_t num_of_model = 0;
  for (const Series& series : known.series) {
    BATON_CHECK(series.labels != labels, "metric {} has one series twice", family.name);
    num_of_model += LabelOf(series.labels, "model") == model ? 1 : 0;
  }
  BATON_CHECK(num_of_model < kMaxSeriesPerFamily, "metric {} has more than {} series of one model",
              family.name, kMaxSeriesPerFamily);
  known.series.push_back(Series{.labels = std::move(labels)});
  return &known.series.back();
}

Counter* MetricsRegistry::AddCounter(const MetricFamily& family, MetricLabels labels) {
  MutexLock lock(mutex_);
  Series* series = AddSeriesLocked(family, Type::kCounter, std::move(labels));
  Counter* const counter = &counters_.emplace_back();
  series->counter = counter;
  return counter;
}

Gauge* MetricsRegistry::AddGauge(const MetricFamily& family, MetricLabels labels) {
  MutexLock lock(mutex_);
  Series* series = AddSeriesLocked(family, Type::kGauge, std::move(labels));
  Gauge* const gauge = &gauges_.emplace_back();
  series->gauge = gauge;
  return gauge;
}

Gauge* MetricsRegistry::AddSecondsCounter(const MetricFamily& family, MetricLabels labels) {
  MutexLock lock(mutex_);
  Series* series = AddSeriesLocked(family, Type::kCounter, std::move(labels));
  Gauge* const seconds = &gauges_.emplace_back();
  series->gauge = seconds;
  return seconds;
}

Histogram* MetricsRegistry::AddHistogram(const MetricFamily& family, std::span<const double> bounds,
                                         MetricLabels labels) {
  MutexLock lock(mutex_);
  Series* series = AddSeriesLocked(family, Type::kHistogram, std::move(labels));
  Histogram* const histogram = &histograms_.emplace_back(bounds);
  series->histograms = {histogram};
  return histogram;
}

Info* MetricsRegistry::AddInfo(const MetricFamily& family) {
  MutexLock lock(mutex_);
  Series* series = AddSeriesLocked(family, Type::kGauge, {});
  Info* const info = &infos_.emplace_back();
  series->info = info;
  return info;
}

void MetricsRegistry::AddAlias(const MetricFamily& family, const Counter* of, MetricLabels labels) {
  MutexLock lock(mutex_);
  AddSeriesLocked(family, Type::kCounter, std::move(labels))->counter = of;
}

void MetricsRegistry::AddAlias(const MetricFamily& family, const Gauge* of, MetricLabels labels) {
  MutexLock lock(mutex_);
  AddSeriesLocked(family, Type::kGauge, std::move(labels))->gauge = of;
}

void MetricsRegistry::AddAlias(const MetricFamily& family, std::vector<const Histogram*> of,
                               MetricLabels labels) {
  BATON_CHECK(!of.empty(), "metric {} is the alias of no histogram", family.name);
  for (const Histogram* one : of) {
    BATON_CHECK(std::ranges::equal(one->bounds(), of.front()->bounds()),
                "metric {} is the sum of histograms with unequal bounds", family.name);
  }
  MutexLock lock(mutex_);
  AddSeriesLocked(family, Type::kHistogram, std::move(labels))->histograms = std::move(of);
}

void MetricsRegistry::SetConstantLabel(std::string_view name, std::string_view value) {
  MutexLock lock(mutex_);
  for (auto& [known, current] : constant_labels_) {
    if (known == name) {
      current = std::string(value);
      return;
    }
  }
  constant_labels_.emplace_back(std::string(name), std::string(value));
}

void MetricsRegistry::AddRefresh(std::function<void()> refresh) {
  MutexLock lock(mutex_);
  refreshes_.push_back(std::move(refresh));
}

std::string MetricsRegistry::LabelTextLocked(const Family& family,
                                             const MetricLabels& labels) const {
  std::string text;
  const auto append = [&text](std::string_view name, std::string_view value) {
    if (!text.empty()) text += ',';
    text += fmt::format("{}=\"{}\"", name, Escaped(value, true));
  };
  const auto shown = [&family](std::string_view name) {
    return name == "model" ? std::string_view(family.model_label) : name;
  };
  for (const auto& [name, value] : constant_labels_) {
    if (!LabelOf(labels, name)) append(shown(name), value);
  }
  for (const auto& [name, value] : labels) append(shown(name), value);
  return text;
}

void MetricsRegistry::ExposeLocked(std::string_view name, const Family& family,
                                   const Series& series, std::string* out) const {
  const MetricLabels& told = series.info == nullptr ? series.labels : series.info->labels();
  const std::string labels = LabelTextLocked(family, told);
  if (series.counter != nullptr) {
    AppendSample({name, "", labels}, fmt::format("{}", series.counter->value()), out);
  } else if (series.gauge != nullptr) {
    AppendSample({name, "", labels}, NumberText(series.gauge->value()), out);
  } else if (!series.histograms.empty()) {
    AppendHistogram(name, labels, series.histograms, out);
  } else {
    AppendSample({name, "", labels}, "1", out);
  }
}

std::string MetricsRegistry::Expose() const {
  std::vector<std::function<void()>> refreshes;
  {
    MutexLock lock(mutex_);
    refreshes = refreshes_;
  }
  for (const auto& refresh : refreshes) refresh();

  constexpr std::string_view kTypeNames[] = {"counter", "gauge", "histogram"};
  MutexLock lock(mutex_);
  std::string out;
  for (const auto& [name, family] : families_) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, Escaped(family.help, false), name,
                       kTypeNames[static_cast<size_t>(family.type)]);
    for (const Series& series : family.series) ExposeLocked(name, family, series, &out);
  }
  return out;
}

}  // namespace baton::obs
