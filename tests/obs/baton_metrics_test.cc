#include "src/obs/baton_metrics.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::obs {
namespace {

using ::testing::HasSubstr;

class BatonMetricsTest : public ::testing::Test {
 protected:
  BatonMetricsTest() {
    registry_.SetConstantLabel("role", "router");
    registry_.SetConstantLabel("worker", "router-0");
    registry_.SetConstantLabel("model", "smollm2:135m");
    metrics_ = RegisterBatonMetrics(&registry_);
  }

  // Value of the series with exactly these labels after the constant ones.
  std::string ValueOf(std::string_view name, std::string_view labels = "") {
    const std::string text = registry_.Expose();
    const std::string series =
        fmt::format("\n{}{{role=\"router\",worker=\"router-0\",model=\"smollm2:135m\"{}{}}} ", name,
                    labels.empty() ? "" : ",", labels);
    const size_t at = text.find(series);
    if (at == std::string::npos) return "missing";
    return text.substr(at + series.size(), text.find('\n', at + 1) - at - series.size());
  }

  MetricsRegistry registry_;
  BatonMetrics metrics_;
};

TEST_F(BatonMetricsTest, EveryWayToFinishStartsAtZero) {
  for (const std::string_view finish : {"stop", "length", "cancelled", "deadline", "error"}) {
    const std::string label = fmt::format("finish=\"{}\"", finish);
    EXPECT_EQ(ValueOf("baton_time_to_first_token_seconds_count", label), "0") << finish;
    EXPECT_EQ(ValueOf("baton_e2e_request_latency_seconds_sum", label), "0") << finish;
  }
}

TEST_F(BatonMetricsTest, EverySourceOfAPrefixStartsAtZero) {
  for (const std::string_view source : {"pool", "peer", "ram", "file", "store", "computed"}) {
    const std::string label = fmt::format("source=\"{}\"", source);
    EXPECT_EQ(ValueOf("baton_prefix_tokens_total", label), "0") << source;
  }
}

TEST_F(BatonMetricsTest, HelpOfEarlyRefusalsSaysThatTriesOfListsCount) {
  EXPECT_THAT(registry_.Expose(), HasSubstr("Each try of a prompt of a list counts"));
}

// The outside contract, written out once more: a renamed metric must fail here.
TEST_F(BatonMetricsTest, EveryNameOfTheContractStartsAtZero) {
  for (const std::string_view name : {"baton_requests_running",
                                      "baton_requests_waiting",
                                      "baton_requests_waiting_numerics",
                                      "baton_predicted_wait_seconds",
                                      "baton_batch_limit",
                                      "baton_inexact_answers_total",
                                      "baton_prompts_put_back_total",
                                      "baton_prompt_tokens_total",
                                      "baton_generation_tokens_total",
                                      "baton_inter_token_latency_seconds_count",
                                      "baton_kv_pool_blocks",
                                      "baton_kv_block_tokens",
                                      "baton_kv_checksum_fail_total",
                                      "baton_kv_chain_mismatch_total",
                                      "baton_prefix_cache_queries_total",
                                      "baton_prefix_cache_hits_total",
                                      "baton_prefix_index_links",
                                      "baton_prefix_index_bytes",
                                      "baton_prefix_index_not_kept_total",
                                      "baton_prefix_index_resyncs_total",
                                      "baton_prefix_placements_total",
                                      "baton_preemptions_total",
                                      "baton_steps_ahead_total",
                                      "baton_wasted_rows_total",
                                      "baton_exposed_transfer_ratio",
                                      "baton_prefill_backlog_seconds",
                                      "baton_decode_kv_pressure",
                                      "baton_mbu_ratio",
                                      "baton_mfu_ratio",
                                      "baton_stale_events_total"}) {
    EXPECT_EQ(ValueOf(name), "0") << name;
  }
  for (const int code : {200, 400, 401, 404, 408, 413, 429, 431, 499, 500, 503, 504}) {
    EXPECT_EQ(ValueOf("baton_requests_total", fmt::format("code=\"{}\"", code)), "0") << code;
  }
  for (const std::string_view stage : {"admit", "queue_prefill", "prefill", "kv_wait",
                                       "kv_transfer", "queue_decode", "first_step", "decode"}) {
    EXPECT_EQ(ValueOf("baton_stage_seconds_count", fmt::format("stage=\"{}\"", stage)), "0");
  }
  for (const std::string_view state : {"free", "cached", "computing", "bound", "exported",
                                       "reserved", "receiving", "draining", "quarantined"}) {
    EXPECT_EQ(ValueOf("baton_kv_blocks", fmt::format("state=\"{}\"", state)), "0") << state;
  }
  for (const std::string_view transport : {"local", "shm", "tcp"}) {
    const std::string label = fmt::format("transport=\"{}\"", transport);
    EXPECT_EQ(ValueOf("baton_kv_transfer_bytes_total", label), "0");
    EXPECT_EQ(ValueOf("baton_kv_transfer_seconds_count", label), "0");
  }
  for (const std::string_view reason : {"stop", "length"}) {
    const std::string label = fmt::format("reason=\"{}\"", reason);
    EXPECT_EQ(ValueOf("baton_choices_finished_total", label), "0");
  }
  for (const std::string_view result : {"equal", "mismatch", "dropped", "failed"}) {
    const std::string label = fmt::format("result=\"{}\"", result);
    EXPECT_EQ(ValueOf("baton_shadow_total", label), "0");
  }
  EXPECT_EQ(ValueOf("baton_resumes_total", "reason=\"decode_lost\",source=\"retarget\""), "0");
}

TEST_F(BatonMetricsTest, EveryNameOfIdempotencyKeysStartsAtZero) {
  EXPECT_EQ(ValueOf("baton_idempotency_bytes"), "0");
  for (const std::string_view result : {"new", "joined", "conflict"}) {
    const std::string label = fmt::format("result=\"{}\"", result);
    EXPECT_EQ(ValueOf("baton_idempotency_requests_total", label), "0");
  }
  for (const std::string_view state : {"live", "orphaned", "finished"}) {
    const std::string label = fmt::format("state=\"{}\"", state);
    EXPECT_EQ(ValueOf("baton_idempotency_answers", label), "0");
  }
  for (const std::string_view reason : {"abandoned", "evicted", "too_large"}) {
    const std::string label = fmt::format("reason=\"{}\"", reason);
    EXPECT_EQ(ValueOf("baton_idempotency_dropped_total", label), "0");
  }
}

TEST_F(BatonMetricsTest, RoutesAreCountedByReason) {
  for (const std::string_view reason :
       {"pair", "aggregated_mode", "short_prompt", "no_prefill_worker", "no_compatible_pair",
        "no_link", "bad_link", "prompt_exceeds_prefill", "prefill_queue", "slow_link", "decode_hit",
        "faster_decode"}) {
    const std::string label = fmt::format("reason=\"{}\"", reason);
    EXPECT_EQ(ValueOf("baton_routes_total", label), "0") << reason;
    metrics_.CountRoute(reason);
    EXPECT_EQ(ValueOf("baton_routes_total", label), "1") << reason;
  }
  metrics_.CountRoute("no_decode_worker");
  EXPECT_EQ(ValueOf("baton_routes_total", "reason=\"no_decode_worker\""), "missing");
}

TEST_F(BatonMetricsTest, ObjectivesStartAtZeroAndCountRequests) {
  for (const std::string_view objective : {"ttft", "itl"}) {
    EXPECT_EQ(ValueOf("baton_slo_seconds", fmt::format("objective=\"{}\"", objective)), "0");
    for (const std::string_view result : {"met", "missed"}) {
      const std::string label = fmt::format("objective=\"{}\",result=\"{}\"", objective, result);
      EXPECT_EQ(ValueOf("baton_slo_requests_total", label), "0") << label;
    }
  }
  metrics_.ShowObjective(Objective::kTtft, 500'000);
  metrics_.CountObjective(Objective::kTtft, true);
  metrics_.CountObjective(Objective::kItl, false);
  EXPECT_EQ(ValueOf("baton_slo_seconds", "objective=\"ttft\""), "0.5");
  EXPECT_EQ(ValueOf("baton_slo_requests_total", "objective=\"ttft\",result=\"met\""), "1");
  EXPECT_EQ(ValueOf("baton_slo_requests_total", "objective=\"itl\",result=\"missed\""), "1");
  EXPECT_EQ(ValueOf("baton_slo_requests_total", "objective=\"itl\",result=\"met\""), "0");
  EXPECT_EQ(ValueOf("baton_early_refusals_total", "reason=\"slo_ttft\""), "0");
}

TEST_F(BatonMetricsTest, RequestsAreCountedByStatus) {
  metrics_.CountRequest(200);
  metrics_.CountRequest(429);
  metrics_.CountRequest(429);
  metrics_.CountRequest(777);
  EXPECT_EQ(ValueOf("baton_requests_total", "code=\"200\""), "1");
  EXPECT_EQ(ValueOf("baton_requests_total", "code=\"429\""), "2");
  EXPECT_EQ(ValueOf("baton_requests_total", "code=\"500\""), "1");
}

TEST_F(BatonMetricsTest, LifetimeFillsStagesThatSumToEndToEnd) {
  RequestLifetime lifetime(0);
  lifetime.Mark(RequestEvent::kAdmitted, 250'000);
  lifetime.Mark(RequestEvent::kPrefillStarted, 500'000);
  lifetime.Mark(RequestEvent::kFirstToken, 1'000'000);
  lifetime.Mark(RequestEvent::kLastToken, 3'000'000);
  metrics_.ObserveLifetime(lifetime, RequestFinish::kStop);
  EXPECT_EQ(ValueOf("baton_e2e_request_latency_seconds_sum", "finish=\"stop\""), "3");
  EXPECT_EQ(ValueOf("baton_time_to_first_token_seconds_sum", "finish=\"stop\""), "1");
  EXPECT_EQ(ValueOf("baton_stage_seconds_sum", "stage=\"admit\""), "0.25");
  EXPECT_EQ(ValueOf("baton_stage_seconds_sum", "stage=\"prefill\""), "0.5");
  EXPECT_EQ(ValueOf("baton_stage_seconds_sum", "stage=\"decode\""), "2");
  EXPECT_EQ(ValueOf("baton_stage_seconds_count", "stage=\"kv_wait\""), "1");
}

TEST_F(BatonMetricsTest, ARequestThatIsCutCountsUntilItsEnd) {
  RequestLifetime lifetime(0);
  lifetime.Mark(RequestEvent::kAdmitted, 0);
  lifetime.Mark(RequestEvent::kPrefillStarted, 0);
  lifetime.Mark(RequestEvent::kFirstToken, 1'000'000);
  lifetime.Mark(RequestEvent::kLastToken, 2'000'000);
  metrics_.ObserveLifetime(lifetime, RequestFinish::kCancelled, 5'000'000);
  EXPECT_EQ(ValueOf("baton_e2e_request_latency_seconds_sum", "finish=\"cancelled\""), "5");
  EXPECT_EQ(ValueOf("baton_e2e_request_latency_seconds_count", "finish=\"stop\""), "0");
  EXPECT_EQ(ValueOf("baton_time_to_first_token_seconds_sum", "finish=\"cancelled\""), "1");
  EXPECT_EQ(ValueOf("baton_stage_seconds_sum", "stage=\"prefill\""), "1");
}

TEST_F(BatonMetricsTest, BucketsAreThoseOfVllm) {
  const std::string text = registry_.Expose();
  EXPECT_THAT(text, HasSubstr("le=\"2560\""));
  EXPECT_THAT(text, HasSubstr("le=\"7680\""));
  EXPECT_EQ(metrics_.time_to_first_token_seconds[0]->bounds().size(), 22u);
  EXPECT_EQ(metrics_.inter_token_latency_seconds->bounds().size(), 19u);
  EXPECT_EQ(metrics_.e2e_request_latency_seconds[0]->bounds().size(), 21u);
}

TEST_F(BatonMetricsTest, PromtoolFindsNothingToSay) {
  ASSERT_EQ(std::system("command -v promtool >/dev/null"), 0)
      << "promtool is missing: scripts/deps.sh --tests installs it";
  metrics_.time_to_first_token_seconds[0]->Observe(0.3);
  std::FILE* pipe = popen("promtool check metrics", "w");
  ASSERT_NE(pipe, nullptr);
  const std::string text = registry_.Expose();
  ASSERT_EQ(std::fwrite(text.data(), 1, text.size(), pipe), text.size());
  EXPECT_EQ(pclose(pipe), 0);
}

}  // namespace
}  // namespace baton::obs
