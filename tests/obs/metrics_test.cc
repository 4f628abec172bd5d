#include "src/obs/metrics.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/thread.h"

namespace baton::obs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kBounds[] = {0.5, 1, 2};

TEST(MetricsTest, ExpositionIsWhatPrometheusReads) {
  MetricsRegistry registry;
  registry.SetConstantLabel("role", "decode");
  Counter* bytes = registry.AddCounter({"x_bytes_total", "Bytes."}, {{"transport", "shm"}});
  Gauge* level = registry.AddGauge({"a_level", "Level."});
  Histogram* time = registry.AddHistogram({"t_seconds", "Time."}, kBounds);
  bytes->Add(3);
  bytes->Add();
  level->Set(0.25);
  level->Add(-1);
  for (const double value : {0.5, 0.75, 2.0, 9.0}) time->Observe(value);
  EXPECT_EQ(registry.Expose(),
            "# HELP a_level Level.\n"
            "# TYPE a_level gauge\n"
            "a_level{role=\"decode\"} -0.75\n"
            "# HELP t_seconds Time.\n"
            "# TYPE t_seconds histogram\n"
            "t_seconds_bucket{role=\"decode\",le=\"0.5\"} 1\n"
            "t_seconds_bucket{role=\"decode\",le=\"1\"} 2\n"
            "t_seconds_bucket{role=\"decode\",le=\"2\"} 3\n"
            "t_seconds_bucket{role=\"decode\",le=\"+Inf\"} 4\n"
            "t_seconds_sum{role=\"decode\"} 12.25\n"
            "t_seconds_count{role=\"decode\"} 4\n"
            "# HELP x_bytes_total Bytes.\n"
            "# TYPE x_bytes_total counter\n"
            "x_bytes_total{role=\"decode\",transport=\"shm\"} 4\n");
}

TEST(MetricsTest, SeriesExistWithZeroBeforeTheyAreUsed) {
  MetricsRegistry registry;
  registry.AddCounter({"c_total", "C."}, {{"code", "200"}});
  registry.AddHistogram({"h_seconds", "H."}, kBounds);
  const std::string text = registry.Expose();
  EXPECT_THAT(text, HasSubstr("c_total{code=\"200\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("h_seconds_bucket{le=\"+Inf\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("h_seconds_sum 0\n"));
}

TEST(MetricsTest, TextIsEscaped) {
  MetricsRegistry registry;
  registry.AddGauge({"g", "Line\nbreak \\ \"quote\""}, {{"model", "a\"b\\c\nd"}});
  const std::string text = registry.Expose();
  EXPECT_THAT(text, HasSubstr("# HELP g Line\\nbreak \\\\ \"quote\"\n"));
  EXPECT_THAT(text, HasSubstr("g{model=\"a\\\"b\\\\c\\nd\"} 0\n"));
}

TEST(MetricsTest, SpecialNumbers) {
  MetricsRegistry registry;
  Gauge* gauge = registry.AddGauge({"g", "G."});
  gauge->Set(std::numeric_limits<double>::infinity());
  EXPECT_THAT(registry.Expose(), HasSubstr("\ng +Inf\n"));
  gauge->Set(std::nan(""));
  EXPECT_THAT(registry.Expose(), HasSubstr("\ng NaN\n"));
  gauge->Set(1e-7);
  EXPECT_THAT(registry.Expose(), HasSubstr("\ng 1e-07\n"));
}

TEST(MetricsTest, ConstantLabelsMayBeLearntLate) {
  MetricsRegistry registry;
  registry.SetConstantLabel("model", "");
  registry.AddGauge({"g", "G."});
  EXPECT_THAT(registry.Expose(), HasSubstr("g{model=\"\"} 0"));
  registry.SetConstantLabel("model", "smollm2:135m");
  EXPECT_THAT(registry.Expose(), HasSubstr("g{model=\"smollm2:135m\"} 0"));
}

TEST(MetricsTest, RefreshRunsBeforeEachExposition) {
  MetricsRegistry registry;
  Gauge* gauge = registry.AddGauge({"g", "G."});
  registry.AddRefresh([gauge] { gauge->Add(1); });
  EXPECT_THAT(registry.Expose(), HasSubstr("\ng 1\n"));
  EXPECT_THAT(registry.Expose(), HasSubstr("\ng 2\n"));
}

TEST(MetricsTest, HistogramPutsABoundIntoItsOwnBucket) {
  Histogram histogram(kBounds);
  for (const double value : {-1.0, 0.5, 0.500001, 2.0, 2.1}) histogram.Observe(value);
  histogram.Observe(std::nan(""));
  EXPECT_THAT(histogram.Read().cumulative, ElementsAre(2, 3, 4, 5));
}

TEST(MetricsTest, ConcurrentUpdatesAreAllCounted) {
  MetricsRegistry registry;
  Counter* counter = registry.AddCounter({"c_total", "C."});
  Gauge* gauge = registry.AddGauge({"g", "G."});
  Histogram* histogram = registry.AddHistogram({"h_seconds", "H."}, kBounds);
  std::vector<Thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back("test-update", [&] {
      for (int i = 0; i < 10'000; ++i) {
        counter->Add(2);
        gauge->Add(1);
        histogram->Observe(1.5);
        if (i % 1000 == 0) (void)registry.Expose();
      }
    });
  }
  threads.clear();
  EXPECT_EQ(counter->value(), 80'000u);
  EXPECT_EQ(gauge->value(), 40'000.0);
  EXPECT_EQ(histogram->Read().cumulative.back(), 40'000u);
  EXPECT_EQ(histogram->Read().sum, 60'000.0);
}

TEST(MetricsDeathTest, OurMistakesStopTheProcess) {
  MetricsRegistry registry;
  registry.AddCounter({"c_total", "C."});
  EXPECT_DEATH(registry.AddCounter({"c_total", "C."}), "c_total has one series twice");
  EXPECT_DEATH(registry.AddGauge({"c_total", "C."}), "c_total is registered as two types");
  EXPECT_DEATH(
      {
        for (int i = 0; i < 65; ++i) registry.AddGauge({"g", "G."}, {{"n", std::to_string(i)}});
      },
      "g has more than 64 series");
}

}  // namespace
}  // namespace baton::obs
