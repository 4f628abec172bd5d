#include "src/obs/metric_aliases.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::obs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A process of one role with one set of names.
class Process {
 public:
  Process(MetricAliasRole role, std::string_view names) : metrics(RegisterBatonMetrics(&registry)) {
    registry.SetConstantLabel("role", "r");
    registry.SetConstantLabel("model", "smollm2:135m");
    AddMetricAliases(ParseMetricAliases(names).value(), role, metrics, &registry);
  }

  // Families that do not begin with baton_, ascending.
  std::vector<std::string> Families() const {
    std::vector<std::string> families;
    const std::string text = registry.Expose();
    for (size_t at = text.find("# TYPE "); at != std::string::npos;
         at = text.find("# TYPE ", at + 1)) {
      const std::string name = text.substr(at + 7, text.find(' ', at + 7) - at - 7);
      if (!name.starts_with("baton_")) families.push_back(name);
    }
    return families;
  }
  std::string Value(std::string_view name, std::string_view labels = "") const {
    const std::string text = registry.Expose();
    const std::string series = fmt::format("\n{}{{role=\"r\",model_name=\"smollm2:135m\"{}{}}} ",
                                           name, labels.empty() ? "" : ",", labels);
    const size_t at = text.find(series);
    if (at == std::string::npos) return "missing";
    return text.substr(at + series.size(), text.find('\n', at + 1) - at - series.size());
  }

  MetricsRegistry registry;
  BatonMetrics metrics;
};

TEST(MetricAliasesTest, NothingIsAddedWithoutTheFlag) {
  EXPECT_THAT(Process(MetricAliasRole::kRouter, "").Families(), ElementsAre());
}

TEST(MetricAliasesTest, ARouterHasTheNamesOfWhatItCounts) {
  EXPECT_THAT(
      Process(MetricAliasRole::kRouter, "vllm").Families(),
      ElementsAre("vllm:cache_config_info", "vllm:e2e_request_latency_seconds",
                  "vllm:generation_tokens_total", "vllm:gpu_cache_usage_perc",
                  "vllm:inter_token_latency_seconds", "vllm:kv_cache_usage_perc",
                  "vllm:num_requests_running", "vllm:num_requests_waiting",
                  "vllm:prompt_tokens_total", "vllm:request_success_total",
                  "vllm:time_per_output_token_seconds", "vllm:time_to_first_token_seconds"));
}

TEST(MetricAliasesTest, AWorkerHasTheNamesOfWhatItCounts) {
  EXPECT_THAT(Process(MetricAliasRole::kWorker, "vllm").Families(),
              ElementsAre("vllm:cache_config_info", "vllm:gpu_cache_usage_perc",
                          "vllm:kv_cache_usage_perc", "vllm:num_preemptions_total",
                          "vllm:num_requests_running", "vllm:num_requests_waiting",
                          "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"));
}

TEST(MetricAliasesTest, TheEndpointPickersNamesAreThoseOfItsProtocol) {
  for (const MetricAliasRole role : {MetricAliasRole::kRouter, MetricAliasRole::kWorker}) {
    EXPECT_THAT(Process(role, "inference-extension").Families(),
                ElementsAre("vllm:cache_config_info", "vllm:gpu_cache_usage_perc",
                            "vllm:kv_cache_usage_perc", "vllm:lora_requests_info",
                            "vllm:num_requests_running", "vllm:num_requests_waiting"));
  }
}

TEST(MetricAliasesTest, BothSetsTogetherHaveEachNameOnce) {
  const Process both(MetricAliasRole::kRouter, "vllm,inference-extension,vllm");
  const std::vector<std::string> families = both.Families();
  EXPECT_EQ(families.size(), 13u);
  EXPECT_EQ(std::set<std::string>(families.begin(), families.end()).size(), 13u);
}

TEST(MetricAliasesTest, AnAliasShowsTheValueOfItsSource) {
  const Process router(MetricAliasRole::kRouter, "vllm");
  router.metrics.requests_waiting->Set(7);
  router.metrics.decode_kv_pressure->Set(0.25);
  router.metrics.generation_tokens_total->Add(41);
  router.metrics.generation_tokens_total->Add(1);
  router.metrics.inter_token_latency_seconds->Observe(0.5);
  router.metrics.time_to_first_token_seconds[0]->Observe(0.5);
  router.metrics.time_to_first_token_seconds[2]->Observe(0.25);
  router.metrics.choices_finished_total[1]->Add(3);
  router.metrics.CountRequest(499);
  EXPECT_EQ(router.Value("vllm:num_requests_waiting"), "7");
  EXPECT_EQ(router.Value("vllm:kv_cache_usage_perc"), "0.25");
  EXPECT_EQ(router.Value("vllm:gpu_cache_usage_perc"), "0.25");
  EXPECT_EQ(router.Value("vllm:generation_tokens_total"), "42");
  EXPECT_EQ(router.Value("vllm:inter_token_latency_seconds_sum"), "0.5");
  EXPECT_EQ(router.Value("vllm:time_per_output_token_seconds_count"), "1");
  EXPECT_EQ(router.Value("vllm:time_to_first_token_seconds_count"), "2");
  EXPECT_EQ(router.Value("vllm:time_to_first_token_seconds_sum"), "0.75");
  EXPECT_EQ(router.Value("vllm:request_success_total", "finished_reason=\"stop\""), "0");
  EXPECT_EQ(router.Value("vllm:request_success_total", "finished_reason=\"length\""), "3");
  EXPECT_EQ(router.Value("vllm:request_success_total", "finished_reason=\"abort\""), "1");
}

TEST(MetricAliasesTest, TheCacheIsToldAsLabels) {
  const Process worker(MetricAliasRole::kWorker, "inference-extension");
  worker.metrics.kv_block_tokens->Set(16);
  worker.metrics.kv_pool_blocks->Set(2'000'000);
  EXPECT_EQ(worker.Value("vllm:cache_config_info", "block_size=\"16\",num_gpu_blocks=\"2000000\""),
            "1");
}

TEST(MetricAliasesTest, AdaptersHaveNoRoom) {
  const Process worker(MetricAliasRole::kWorker, "inference-extension");
  const std::string value =
      worker.Value("vllm:lora_requests_info",
                   "max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"");
  EXPECT_GT(std::stod(value), 1.7e9) << "seconds of Unix time";
}

TEST(MetricAliasesTest, AnUnknownSetIsRefusedWithTheNearest) {
  const auto set = ParseMetricAliases("vllm,inference-extensoin");
  ASSERT_FALSE(set.ok());
  EXPECT_THAT(std::string(set.status().message()), HasSubstr("mean 'inference-extension'"));
  EXPECT_THAT(std::string(ParseMetricAliases("x").status().message()), Not(HasSubstr("mean")));
}

TEST(MetricAliasesTest, TheTextOfASetIsReadAsThatSet) {
  for (const std::string_view names :
       {"", "vllm", "inference-extension", "vllm,inference-extension"}) {
    EXPECT_EQ(ParseMetricAliases(names)->Text(), names);
  }
}

// promtool asks for names without colons, which are meant for recording rules; the names here are
// given by others. It must find nothing else.
TEST(MetricAliasesTest, PromtoolHasNothingToSayButOfTheColons) {
  ASSERT_EQ(std::system("command -v promtool >/dev/null"), 0)
      << "promtool is missing: scripts/deps.sh --tests installs it";
  const Process router(MetricAliasRole::kRouter, "vllm,inference-extension");
  const Process worker(MetricAliasRole::kWorker, "vllm,inference-extension");
  for (const Process* process : {&router, &worker}) {
    const std::string page = testing::TempDir() + "/aliases.prom";
    std::FILE* file = std::fopen(page.c_str(), "w");
    ASSERT_NE(file, nullptr);
    const std::string text = process->registry.Expose();
    ASSERT_EQ(std::fwrite(text.data(), 1, text.size(), file), text.size());
    std::fclose(file);
    std::FILE* pipe = popen(("promtool check metrics 2>&1 <" + page).c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    char line[1024];
    size_t num_colons = 0;
    while (std::fgets(line, sizeof(line), pipe) != nullptr) {
      EXPECT_THAT(line, HasSubstr("metric names should not contain ':'"));
      ++num_colons;
    }
    pclose(pipe);
    EXPECT_EQ(num_colons, process->Families().size());
    std::remove(page.c_str());
  }
}

}  // namespace
}  // namespace baton::obs
