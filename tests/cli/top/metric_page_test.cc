#include "src/cli/top/metric_page.h"

#include "gtest/gtest.h"

#include "src/obs/baton_metrics.h"

namespace baton::cli {

using obs::BatonMetrics;
using obs::MetricsRegistry;
using obs::RegisterBatonMetrics;

namespace {

MetricPage Page(std::string_view text) {
  StatusOr<MetricPage> page = MetricPage::Parse(text);
  EXPECT_TRUE(page.ok()) << page.status();
  return page.ok() ? *std::move(page) : MetricPage();
}

TEST(MetricPageTest, SamplesAreSummedByLabel) {
  const MetricPage page = Page(
      "# HELP x About.\n# TYPE x counter\nx{code=\"200\",w=\"a\"} 3\nx{code=\"200\",w=\"b\"} 4\n"
      "x{code=\"500\"} 1e1 1700000000\ny 2.5\n\n");
  EXPECT_EQ(page.Sum("x"), 17.0);
  EXPECT_EQ(page.Sum("x", LabelIs{"code", "200"}), 7.0);
  EXPECT_EQ(page.Sum("x", LabelIs{"code", "404"}), std::nullopt);
  EXPECT_EQ(page.Sum("y"), 2.5);
  EXPECT_EQ(page.Sum("z"), std::nullopt);
}

TEST(MetricPageTest, EscapesInLabels) {
  const MetricPage page = Page("x{a=\"q\\\"{},\\\\ \\n\",b=\"\"} 1\n");
  EXPECT_EQ(page.Sum("x", LabelIs{"a", "q\"{},\\ \n"}), 1.0);
  EXPECT_EQ(page.Sum("x", LabelIs{"b", ""}), 1.0);
}

TEST(MetricPageTest, WhatIsNoPageIsAnErrorThatNamesTheLine) {
  for (const char* text :
       {"x", "x y", "x{a=\"b} 1", "x{a=\"b\" 1", "x{a} 1", "{a=\"b\"} 1", "<html>", "x  1 2 z{"}) {
    const StatusOr<MetricPage> page = MetricPage::Parse(fmt::format("ok 1\n{}\n", text));
    EXPECT_EQ(page.status().code(), StatusCode::kDataLoss) << text;
    EXPECT_NE(page.status().message().find("line 2"), std::string::npos) << page.status();
  }
}

// The page that our own processes serve, whatever is added to it.
TEST(MetricPageTest, OurOwnExpositionIsRead) {
  MetricsRegistry registry;
  const BatonMetrics metrics = RegisterBatonMetrics(&registry);
  registry.SetConstantLabel("worker", "decode-0");
  metrics.CountRequest(200);
  metrics.time_to_first_token_seconds[0]->Observe(0.3);
  metrics.time_to_first_token_seconds[2]->Observe(0.4);
  const MetricPage page = Page(registry.Expose());
  EXPECT_EQ(page.Sum("baton_requests_total"), 1.0);
  EXPECT_EQ(page.Sum("baton_requests_total", LabelIs{"code", "200"}), 1.0);
  const std::map<double, double> buckets = page.Buckets("baton_time_to_first_token_seconds");
  EXPECT_EQ(buckets.at(0.25), 0.0);
  EXPECT_EQ(buckets.at(0.5), 2.0) << "over all ways to finish";
  EXPECT_EQ(buckets.rbegin()->second, 2.0);
}

TEST(MetricPageTest, ACounterThatWentBackHasNoGrowth) {
  EXPECT_EQ(Growth(Page("x 3\n"), Page("x 10\n"), "x"), 7.0);
  EXPECT_EQ(Growth(Page("x 10\n"), Page("x 3\n"), "x"), std::nullopt);
  EXPECT_EQ(Growth(Page("y 1\n"), Page("x 3\n"), "x"), std::nullopt);
}

std::string Histogram(double one, double two, double inf, double sum) {
  return fmt::format(
      "h_bucket{{le=\"1\"}} {}\nh_bucket{{le=\"2\"}} {}\nh_bucket{{le=\"+Inf\"}} {}\nh_sum {}\n"
      "h_count {}\n",
      one, two, inf, sum, inf);
}

TEST(MetricPageTest, QuantilesAreOfWhatCameBetweenTwoPages) {
  const MetricPage before = Page(Histogram(100, 100, 100, 50));
  // Four between 1 and 2, and then one beyond.
  const MetricPage now = Page(Histogram(100, 104, 104, 56));
  const MetricPage later = Page(Histogram(100, 104, 105, 65));
  EXPECT_EQ(QuantileBetween(before, now, "h", 0.5), 1.5);
  EXPECT_EQ(QuantileBetween(before, now, "h", 1.0), 2.0);
  EXPECT_EQ(QuantileBetween(now, later, "h", 0.5), 2.0) << "beyond the last bound";
  EXPECT_EQ(QuantileBetween(before, before, "h", 0.5), std::nullopt);
  EXPECT_EQ(QuantileBetween(before, now, "missing", 0.5), std::nullopt);
  EXPECT_EQ(MeanBetween(before, now, "h"), 1.5);
  EXPECT_EQ(MeanBetween(now, now, "h"), std::nullopt);
}

}  // namespace
}  // namespace baton::cli
