#include "src/obs/baton_metrics.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "src/obs/model_metrics.h"

namespace baton::obs {
namespace {

// vLLM's bucket lists (vllm/v1/metrics/loggers.py), so that dashboards and recording rules written
// for it fit.
constexpr double kFirstTokenBounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                        0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                        20,    40,    80,   160,  640,  2560};
constexpr double kInterTokenBounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                        0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr double kEndToEndBounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                      30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
// Stages and transfers begin far below a millisecond: 100 us doubling and halving decades to 40 s.
constexpr double kStageBounds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                   0.1,    0.25,    0.5,    1,     2.5,    5,     10,   20,    40};

constexpr double kSecondsPerUs = 1e-6;

}  // namespace

void BatonMetrics::CountRequest(int http_status) const {
  const auto known = std::find(kRequestCodes.begin(), kRequestCodes.end(), http_status);
  const auto code = known != kRequestCodes.end()
                        ? known
                        : std::find(kRequestCodes.begin(), kRequestCodes.end(), 500);
  requests_total[static_cast<size_t>(code - kRequestCodes.begin())]->Add();
}

void BatonMetrics::CountRoute(std::string_view reason) const {
  const auto known = std::find(kRouteReasonLabels.begin(), kRouteReasonLabels.end(), reason);
  if (known == kRouteReasonLabels.end()) return;
  routes_total[static_cast<size_t>(known - kRouteReasonLabels.begin())]->Add();
}

void BatonMetrics::ObserveLifetime(const RequestLifetime& lifetime, RequestFinish finish,
                                   std::optional<int64_t> end_us) const {
  const auto by_finish = static_cast<size_t>(finish);
  const auto stages_us = end_us ? lifetime.StagesUntilUs(*end_us) : lifetime.StagesUs();
  const int64_t total_us = std::accumulate(stages_us.begin(), stages_us.end(), int64_t{0});
  e2e_request_latency_seconds[by_finish]->Observe(static_cast<double>(total_us) * kSecondsPerUs);
  if (const auto first_us = lifetime.TimeToFirstTokenUs()) {
    time_to_first_token_seconds[by_finish]->Observe(static_cast<double>(*first_us) * kSecondsPerUs);
  }
  for (size_t i = 0; i < kNumRequestStages; ++i) {
    stage_seconds[i]->Observe(static_cast<double>(stages_us[i]) * kSecondsPerUs);
  }
}

namespace {

// `own` and `more`, in this order.
MetricLabels Joined(const MetricLabels& own, MetricLabels more) {
  more.insert(more.begin(), own.begin(), own.end());
  return more;
}

// Requests against the objectives. `own`: labels of all their series.
void RegisterObjectiveCounters(const MetricLabels& own, MetricsRegistry* registry,
                               BatonMetrics* metrics) {
  for (size_t o = 0; o < kObjectiveNames.size(); ++o) {
    for (size_t r = 0; r < kObjectiveResultNames.size(); ++r) {
      metrics->slo_requests_total[o][r] = registry->AddCounter(
          {"baton_slo_requests_total",
           "Requests by whether they met the objectives of --slo: their first token (ttft), and 99 "
           "of 100 gaps between their tokens (itl). Those refused at the door are in "
           "baton_early_refusals_total{reason=\"slo_ttft\"}."},
          Joined(own, {{"objective", std::string(kObjectiveNames[o])},
                       {"result", std::string(kObjectiveResultNames[r])}}));
    }
  }
}

// The metrics of requests. `own`: labels of all their series.
void RegisterRequestMetrics(const MetricLabels& own, MetricsRegistry* registry,
                            BatonMetrics* metrics) {
  for (size_t i = 0; i < kRequestCodes.size(); ++i) {
    metrics->requests_total[i] = registry->AddCounter(
        {"baton_requests_total", "Finished requests by HTTP status, of both APIs."},
        Joined(own, {{"code", std::to_string(kRequestCodes[i])}}));
  }
  for (size_t i = 0; i < kFinishReasonNames.size(); ++i) {
    metrics->choices_finished_total[i] = registry->AddCounter(
        {"baton_choices_finished_total", "Choices of finished requests by what ended them."},
        Joined(own, {{"reason", std::string(kFinishReasonNames[i])}}));
  }
  metrics->requests_running =
      registry->AddGauge({"baton_requests_running", "Requests being computed or streamed."}, own);
  metrics->requests_waiting = registry->AddGauge(
      {"baton_requests_waiting", "Requests admitted to a queue and not started."}, own);
  metrics->prompt_tokens_total = registry->AddCounter(
      {"baton_prompt_tokens_total", "Prompt tokens of requests that have a token."}, own);
  for (size_t i = 0; i < kPrefixSourceNames.size(); ++i) {
    metrics->prefix_tokens_total[i] = registry->AddCounter(
        {"baton_prefix_tokens_total",
         "Prompt tokens of requests that have a token, by where their KV came from."},
        Joined(own, {{"source", std::string(kPrefixSourceNames[i])}}));
  }
  metrics->generation_tokens_total =
      registry->AddCounter({"baton_generation_tokens_total", "Tokens generated."}, own);
  for (size_t i = 0; i < kRequestFinishNames.size(); ++i) {
    const MetricLabels labels = Joined(own, {{"finish", std::string(kRequestFinishNames[i])}});
    metrics->time_to_first_token_seconds[i] = registry->AddHistogram(
        {"baton_time_to_first_token_seconds",
         "Request accepted to first token written, of every request that got a first token. It is "
         "observed when the request ends, however it ends (label finish)."},
        kFirstTokenBounds, labels);
    metrics->e2e_request_latency_seconds[i] = registry->AddHistogram(
        {"baton_e2e_request_latency_seconds",
         "Request accepted to its end, of every request that got a first token: to the last token "
         "(finish stop, length), to the client's leaving (cancelled), to the deadline, or to the "
         "failure (error)."},
        kEndToEndBounds, labels);
  }
  metrics->inter_token_latency_seconds = registry->AddHistogram(
      {"baton_inter_token_latency_seconds", "Gaps between consecutive tokens of a stream."},
      kInterTokenBounds, own);
  for (size_t i = 0; i < kNumRequestStages; ++i) {
    metrics->stage_seconds[i] = registry->AddHistogram(
        {"baton_stage_seconds", "Consecutive stages of a request; they sum to end-to-end."},
        kStageBounds,
        Joined(own, {{"stage", std::string(StageName(static_cast<RequestStage>(i)))}}));
  }
  for (size_t r = 0; r < kResumeReasonNames.size(); ++r) {
    for (size_t s = 0; s < kResumeSourceNames.size(); ++s) {
      metrics->resumes_total[r][s] =
          registry->AddCounter({"baton_resumes_total", "Requests placed again while running."},
                               Joined(own, {{"reason", std::string(kResumeReasonNames[r])},
                                            {"source", std::string(kResumeSourceNames[s])}}));
    }
  }
  metrics->inexact_answers_total = registry->AddCounter(
      {"baton_inexact_answers_total", "Whole answers whose parts are of different numerics."}, own);
}

// The metrics of a pool of workers. `own`: labels of all their series.
void RegisterPoolMetrics(const MetricLabels& own, MetricsRegistry* registry,
                         BatonMetrics* metrics) {
  metrics->kv_pool_blocks = registry->AddGauge(
      {"baton_kv_pool_blocks", "Size of the KV pool; on a router, of all its decode workers'."},
      own);
  metrics->kv_block_tokens = registry->AddGauge(
      {"baton_kv_block_tokens", "Tokens of a KV block; 0 on a router without decode workers."},
      own);
  metrics->decode_kv_pressure =
      registry->AddGauge({"baton_decode_kv_pressure",
                          "Share of the KV blocks in use; on a router, of all its "
                          "decode workers'."},
                         own);
  metrics->batch_limit = registry->AddGauge(
      {"baton_batch_limit",
       "Streams that run at once at most: more add little throughput by the measured steps; on a "
       "router, of all its decode workers."},
      own);
}

void RegisterQueueMetrics(MetricsRegistry* registry, BatonMetrics* metrics) {
  metrics->prompts_put_back_total = registry->AddCounter(
      {"baton_prompts_put_back_total",
       "Times that a prompt of a request with several found no room and was put back, to be "
       "submitted again after others of its request; baton_requests_total has none of them."});
  metrics->predicted_wait_seconds = registry->AddGauge(
      {"baton_predicted_wait_seconds",
       "Time that a new request would wait for its place, as fast as its queue moves now."});
  for (size_t i = 0; i < kEarlyRefusalNames.size(); ++i) {
    metrics->early_refusals_total[i] = registry->AddCounter(
        {"baton_early_refusals_total",
         "Requests refused before they had waited: the predicted wait exceeds --queue-wait-ms "
         "(queue_wait) or what their deadline leaves (queue_deadline), the answer takes longer "
         "than that (deadline), or the first token would miss --slo ttft (slo_ttft). Each try of "
         "a prompt of a list counts (baton_prompts_put_back_total)."},
        {{"reason", std::string(kEarlyRefusalNames[i])}});
  }
  for (size_t i = 0; i < kRouteReasonLabels.size(); ++i) {
    metrics->routes_total[i] = registry->AddCounter(
        {"baton_routes_total",
         "Placements of requests, by why a prefill worker computed the prompt (pair) or the decode "
         "worker itself (all others)."},
        {{"reason", std::string(kRouteReasonLabels[i])}});
  }
  for (size_t i = 0; i < kObjectiveNames.size(); ++i) {
    metrics->slo_seconds[i] =
        registry->AddGauge({"baton_slo_seconds", "The objectives of --slo; 0 = none."},
                           {{"objective", std::string(kObjectiveNames[i])}});
  }
}

void RegisterKvMetrics(MetricsRegistry* registry, BatonMetrics* metrics) {
  for (size_t i = 0; i < kBlockStateNames.size(); ++i) {
    metrics->kv_blocks[i] = registry->AddGauge(
        {"baton_kv_blocks", "KV blocks by state; the states sum to the size of the pool."},
        {{"state", std::string(kBlockStateNames[i])}});
  }
  for (size_t i = 0; i < kTransportNames.size(); ++i) {
    const MetricLabels labels = {{"transport", std::string(kTransportNames[i])}};
    metrics->kv_transfer_bytes_total[i] = registry->AddCounter(
        {"baton_kv_transfer_bytes_total", "KV bytes received and verified by a decode worker."},
        labels);
    metrics->kv_transfer_seconds[i] = registry->AddHistogram(
        {"baton_kv_transfer_seconds", "First to last byte of one hand-off."}, kStageBounds, labels);
  }
  metrics->kv_checksum_fail_total = registry->AddCounter(
      {"baton_kv_checksum_fail_total", "KV slices whose checksum did not match."});
  metrics->kv_chain_mismatch_total = registry->AddCounter(
      {"baton_kv_chain_mismatch_total", "Hand-offs or tokens that belong to another request."});
  metrics->exposed_transfer_ratio = registry->AddGauge(
      {"baton_exposed_transfer_ratio",
       "Share of the time of KV transfers that lay after the end of their prompts."});
  metrics->prefix_index_links = registry->AddGauge(
      {"baton_prefix_index_links", "Cached blocks of all workers that the router knows of."});
  metrics->prefix_index_bytes = registry->AddGauge(
      {"baton_prefix_index_bytes", "Memory of the router's index of cached blocks."});
  metrics->prefix_index_not_kept_total =
      registry->AddCounter({"baton_prefix_index_not_kept_total",
                            "Cached blocks that the router's index had no room for."});
  metrics->prefix_index_resyncs_total =
      registry->AddCounter({"baton_prefix_index_resyncs_total",
                            "Times that a worker was asked to tell its prefix cache anew."});
  metrics->prefix_placements_total =
      registry->AddCounter({"baton_prefix_placements_total",
                            "Placements at a decode worker that held more of the prompt than the "
                            "least loaded one."});
}

void RegisterWorkerMetrics(MetricsRegistry* registry, BatonMetrics* metrics) {
  metrics->prefix_cache_queries_total =
      registry->AddCounter({"baton_prefix_cache_queries_total",
                            "Prompt tokens whose KV was looked up in the prefix cache."});
  metrics->prefix_cache_hits_total = registry->AddCounter(
      {"baton_prefix_cache_hits_total",
       "Prompt tokens whose KV the prefix cache had: neither computed nor received."});
  metrics->preemptions_total = registry->AddCounter(
      {"baton_preemptions_total", "Sequences whose blocks were taken for an older one."});
  metrics->steps_ahead_total = registry->AddCounter(
      {"baton_steps_ahead_total", "Steps begun on a device before the step before had ended."});
  metrics->wasted_rows_total = registry->AddCounter(
      {"baton_wasted_rows_total", "Rows of such steps whose sequence had ended meanwhile."});
  metrics->prefill_backlog_seconds = registry->AddGauge(
      {"baton_prefill_backlog_seconds", "Predicted time to prefill what waits."});
  for (size_t i = 0; i < kStepPhaseNames.size(); ++i) {
    metrics->step_seconds[i] = registry->AddHistogram(
        {"baton_step_seconds", "Steps of the engine: forward pass and sampling of one batch."},
        kStageBounds, {{"phase", std::string(kStepPhaseNames[i])}});
  }
  metrics->mbu_ratio = registry->AddGauge(
      {"baton_mbu_ratio",
       "Memory bandwidth of the latest steps of decode alone, of the measured maximum; "
       "0 when there was none for 10 s."});
  metrics->mfu_ratio =
      registry->AddGauge({"baton_mfu_ratio",
                          "Arithmetic of the latest steps of prefill alone, of the measured "
                          "maximum; 0 when there was none for 10 s."});
}

void RegisterRecoveryMetrics(MetricsRegistry* registry, BatonMetrics* metrics) {
  metrics->requests_waiting_numerics =
      registry->AddGauge({"baton_requests_waiting_numerics",
                          "Resumed streams that wait for a worker of the numerics of their output, "
                          "others being there."});
  for (size_t i = 0; i < kRefusalReasonNames.size(); ++i) {
    metrics->registrations_refused_total[i] = registry->AddCounter(
        {"baton_registrations_refused_total", "Workers that the router did not take."},
        {{"reason", std::string(kRefusalReasonNames[i])}});
  }
  metrics->stale_events_total = registry->AddCounter(
      {"baton_stale_events_total", "Messages of an older attempt or incarnation, dropped."});
}

void RegisterIdempotencyMetrics(MetricsRegistry* registry, BatonMetrics* metrics) {
  for (size_t i = 0; i < kKeyedResultNames.size(); ++i) {
    metrics->idempotency_requests_total[i] = registry->AddCounter(
        {"baton_idempotency_requests_total", "Requests with an idempotency key by what they met."},
        {{"result", std::string(kKeyedResultNames[i])}});
  }
  for (size_t i = 0; i < kKeyedStateNames.size(); ++i) {
    metrics->idempotency_answers[i] = registry->AddGauge(
        {"baton_idempotency_answers", "Answers that are remembered under an idempotency key."},
        {{"state", std::string(kKeyedStateNames[i])}});
  }
  metrics->idempotency_bytes = registry->AddGauge(
      {"baton_idempotency_bytes", "Memory of the answers under idempotency keys."});
  for (size_t i = 0; i < kKeyedLossNames.size(); ++i) {
    metrics->idempotency_dropped_total[i] = registry->AddCounter(
        {"baton_idempotency_dropped_total", "Answers forgotten or ended before their time."},
        {{"reason", std::string(kKeyedLossNames[i])}});
  }
}

void RegisterShadowMetrics(MetricsRegistry* registry, BatonMetrics* metrics) {
  for (size_t i = 0; i < kShadowResultNames.size(); ++i) {
    metrics->shadow_total[i] = registry->AddCounter(
        {"baton_shadow_total", "Disaggregated requests to be run again and compared, by result."},
        {{"result", std::string(kShadowResultNames[i])}});
  }
}

}  // namespace

BatonMetrics RegisterBatonMetrics(MetricsRegistry* registry) {
  BatonMetrics metrics{};
  RegisterRequestMetrics({}, registry, &metrics);
  RegisterObjectiveCounters({}, registry, &metrics);
  RegisterPoolMetrics({}, registry, &metrics);
  RegisterKvMetrics(registry, &metrics);
  RegisterWorkerMetrics(registry, &metrics);
  RegisterQueueMetrics(registry, &metrics);
  RegisterRecoveryMetrics(registry, &metrics);
  RegisterIdempotencyMetrics(registry, &metrics);
  RegisterShadowMetrics(registry, &metrics);
  return metrics;
}

BatonMetrics RegisterModelMetrics(std::string_view model, const BatonMetrics& process,
                                  MetricsRegistry* registry) {
  const MetricLabels own = {{"model", std::string(model)}};
  BatonMetrics metrics = process;
  RegisterRequestMetrics(own, registry, &metrics);
  RegisterObjectiveCounters(own, registry, &metrics);
  RegisterPoolMetrics(own, registry, &metrics);
  return metrics;
}

}  // namespace baton::obs
