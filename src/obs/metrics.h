// Metrics and their Prometheus text exposition (format 0.0.4).
//
// Invariants
//  1. Counter, Gauge and Histogram are updated without locks or allocation, by any thread; a handle
//     stays valid as long as its registry.
//  2. Every series exists, with value 0, from its registration on: a rate never starts with a gap.
//  3. A family has at most kMaxSeriesPerFamily series of one model, registered at start or with the
//     model. Label values come from closed sets of our own and from workers, never from a request.
//  4. In an exposition a histogram is consistent with itself: count is the sum of its buckets.
#ifndef BATON_OBS_METRICS_H_
#define BATON_OBS_METRICS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/mutex.h"

namespace baton::obs {

// A number of events that only grows.
class Counter {
 public:
  void Add(uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// A number that goes up and down.
class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double delta) { value_.fetch_add(delta, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// Counts of observations by upper bound.
class Histogram {
 public:
  // `bounds` ascending and finite; +Inf is added.
  explicit Histogram(std::span<const double> bounds);
  Histogram(const Histogram&) = delete;

  // O(log bounds). NaN is ignored.
  void Observe(double value);

  struct Snapshot {
    std::vector<uint64_t> cumulative;  // [bounds + 1], the last one is the count
    double sum = 0;
  };
  Snapshot Read() const;
  std::span<const double> bounds() const { return bounds_; }

 private:
  const std::vector<double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;  // [bounds + 1]
  std::atomic<double> sum_{0};
};

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Facts that are told as labels; its value is always 1. Any thread.
class Info {
 public:
  void Set(MetricLabels labels) {
    MutexLock lock(mutex_);
    labels_ = std::move(labels);
  }
  MetricLabels labels() const {
    MutexLock lock(mutex_);
    return labels_;
  }

 private:
  mutable Mutex mutex_;
  MetricLabels labels_ BATON_GUARDED_BY(mutex_);
};

// Describes a family; all texts are string literals.
struct MetricFamily {
  std::string_view name;
  std::string_view help;
  std::string_view model_label = "model";  // what the constant label `model` is called in it
};

// All metrics of one process. Registration and Expose take a mutex; updates do not.
class MetricsRegistry {
 public:
  static constexpr size_t kMaxSeriesPerFamily = 64;

  MetricsRegistry() = default;
  MetricsRegistry(const MetricsRegistry&) = delete;

  // Registers one series. Registering the same name and labels twice, or one name as two types, is
  // a bug of ours and stops the process.
  Counter* AddCounter(const MetricFamily& family, MetricLabels labels = {});
  Gauge* AddGauge(const MetricFamily& family, MetricLabels labels = {});
  // A counter of what is no whole number, such as seconds; only Add, and never a negative delta.
  Gauge* AddSecondsCounter(const MetricFamily& family, MetricLabels labels = {});
  Histogram* AddHistogram(const MetricFamily& family, std::span<const double> bounds,
                          MetricLabels labels = {});
  Info* AddInfo(const MetricFamily& family);

  // Shows a metric of this registry under one more name: the same value, not a second count.
  void AddAlias(const MetricFamily& family, const Counter* of, MetricLabels labels = {});
  void AddAlias(const MetricFamily& family, const Gauge* of, MetricLabels labels = {});
  // The sum of histograms with equal bounds, at least one.
  void AddAlias(const MetricFamily& family, std::vector<const Histogram*> of,
                MetricLabels labels = {});

  // Sets a label of every series without its own one of that name (role, worker, model). May change
  // later: a router learns its models from the workers.
  void SetConstantLabel(std::string_view name, std::string_view value);

  // Calls `refresh` before each exposition, to set gauges that are cheaper to read than to keep.
  // It may run on any thread and must not call the registry.
  void AddRefresh(std::function<void()> refresh);

  // The text exposition of everything.
  std::string Expose() const;

 private:
  // One member of Series is set.
  struct Series {
    MetricLabels labels;
    const Counter* counter = nullptr;
    const Gauge* gauge = nullptr;
    std::vector<const Histogram*> histograms;  // their sum
    const Info* info = nullptr;
  };
  enum class Type : uint8_t { kCounter, kGauge, kHistogram };
  struct Family {
    std::string help;
    std::string model_label;
    Type type;
    std::vector<Series> series;
  };

  Series* AddSeriesLocked(const MetricFamily& family, Type type, MetricLabels labels)
      BATON_REQUIRES(mutex_);
  std::string LabelTextLocked(const Family& family, const MetricLabels& labels) const
      BATON_REQUIRES(mutex_);
  void ExposeLocked(std::string_view name, const Family& family, const Series& series,
                    std::string* out) const BATON_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, Family, std::less<>> families_ BATON_GUARDED_BY(mutex_);
  std::deque<Counter> counters_ BATON_GUARDED_BY(mutex_);  // deques: handles must not move
  std::deque<Gauge> gauges_ BATON_GUARDED_BY(mutex_);
  std::deque<Histogram> histograms_ BATON_GUARDED_BY(mutex_);
  std::deque<Info> infos_ BATON_GUARDED_BY(mutex_);
  MetricLabels constant_labels_ BATON_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> refreshes_ BATON_GUARDED_BY(mutex_);
};

}  // namespace baton::obs

#endif  // BATON_OBS_METRICS_H_
