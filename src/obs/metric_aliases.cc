#include "src/obs/metric_aliases.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "fmt/format.h"

#include "src/base/clock.h"
#include "src/base/nearest_name.h"
#include "src/obs/model_metrics.h"

namespace baton::obs {
namespace {

constexpr std::array<std::string_view, 2> kSetNames = {"vllm", "inference-extension"};
// vLLM's name of the label that is `model` in ours.
constexpr std::string_view kModelLabel = "model_name";

constexpr MetricFamily Family(std::string_view name, std::string_view help) {
  return {.name = name, .help = help, .model_label = kModelLabel};
}

// The model server protocol: TotalQueuedRequests, TotalRunningRequests, KVCacheUtilization (by its
// present name and by that of 2025), BlockSize and NumGPUBlocks, LoRA.
void AddProtocol(const MetricLabels& own, const BatonMetrics& metrics, MetricsRegistry* registry) {
  registry->AddAlias(Family("vllm:num_requests_waiting", "baton_requests_waiting"),
                     metrics.requests_waiting, own);
  registry->AddAlias(Family("vllm:num_requests_running", "baton_requests_running"),
                     metrics.requests_running, own);
  registry->AddAlias(Family("vllm:kv_cache_usage_perc", "baton_decode_kv_pressure, 0..1"),
                     metrics.decode_kv_pressure, own);
  registry->AddAlias(Family("vllm:gpu_cache_usage_perc", "baton_decode_kv_pressure, 0..1"),
                     metrics.decode_kv_pressure, own);
  if (!own.empty()) return;  // sizes as labels are those of the process
  Info* const cache = registry->AddInfo(
      Family("vllm:cache_config_info", "baton_kv_block_tokens and baton_kv_pool_blocks as labels"));
  registry->AddRefresh([cache, metrics] {
    cache->Set({{"block_size", fmt::format("{}", metrics.kv_block_tokens->value())},
                {"num_gpu_blocks", fmt::format("{}", metrics.kv_pool_blocks->value())}});
  });
}

// There are no adapters: room for none and none loaded, so that a picker which looks for one finds
// no affinity here. The value is when that was last true, by its meaning the start of the process.
void AddLora(MetricsRegistry* registry) {
  Gauge* const lora = registry->AddGauge(
      Family("vllm:lora_requests_info", "No LoRA adapters are served; Unix time of the start"),
      {{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}});
  const int64_t start_s = SystemClock().WallUnixMs() / 1000;
  lora->Set(static_cast<double>(start_s));
}

void AddRouterNames(const MetricLabels& own, const BatonMetrics& metrics,
                    MetricsRegistry* registry) {
  registry->AddAlias(
      Family("vllm:time_to_first_token_seconds", "baton_time_to_first_token_seconds"),
      std::vector<const Histogram*>(metrics.time_to_first_token_seconds.begin(),
                                    metrics.time_to_first_token_seconds.end()),
      own);
  // vLLM's present name of the gap between two tokens, and the one before.
  for (const std::string_view name :
       {"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"}) {
    registry->AddAlias(Family(name, "baton_inter_token_latency_seconds"),
                       std::vector<const Histogram*>{metrics.inter_token_latency_seconds}, own);
  }
  registry->AddAlias(
      Family("vllm:e2e_request_latency_seconds", "baton_e2e_request_latency_seconds"),
      std::vector<const Histogram*>(metrics.e2e_request_latency_seconds.begin(),
                                    metrics.e2e_request_latency_seconds.end()),
      own);
  registry->AddAlias(Family("vllm:prompt_tokens_total", "baton_prompt_tokens_total"),
                     metrics.prompt_tokens_total, own);
  registry->AddAlias(Family("vllm:generation_tokens_total", "baton_generation_tokens_total"),
                     metrics.generation_tokens_total, own);
  const MetricFamily success =
      Family("vllm:request_success_total", "baton_choices_finished_total; abort is code 499");
  const auto with_reason = [&own](std::string_view reason) {
    MetricLabels labels = own;
    labels.emplace_back("finished_reason", reason);
    return labels;
  };
  for (size_t i = 0; i < kFinishReasonNames.size(); ++i) {
    registry->AddAlias(success, metrics.choices_finished_total[i],
                       with_reason(kFinishReasonNames[i]));
  }
  const auto aborted = std::find(kRequestCodes.begin(), kRequestCodes.end(), 499);
  registry->AddAlias(success,
                     metrics.requests_total[static_cast<size_t>(aborted - kRequestCodes.begin())],
                     with_reason("abort"));
}

void AddWorkerNames(const BatonMetrics& metrics, MetricsRegistry* registry) {
  registry->AddAlias(Family("vllm:prefix_cache_queries_total", "baton_prefix_cache_queries_total"),
                     metrics.prefix_cache_queries_total);
  registry->AddAlias(Family("vllm:prefix_cache_hits_total", "baton_prefix_cache_hits_total"),
                     metrics.prefix_cache_hits_total);
  registry->AddAlias(Family("vllm:num_preemptions_total", "baton_preemptions_total"),
                     metrics.preemptions_total);
}

}  // namespace

std::string MetricAliasSet::Text() const {
  std::string text;
  if (vllm) text = kSetNames[0];
  if (inference_extension) text += (text.empty() ? "" : ",") + std::string(kSetNames[1]);
  return text;
}

StatusOr<MetricAliasSet> ParseMetricAliases(std::string_view list) {
  MetricAliasSet set;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view name = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    if (name == kSetNames[0]) {
      set.vllm = true;
    } else if (name == kSetNames[1]) {
      set.inference_extension = true;
    } else {
      const std::string nearest = NearestName(name, kSetNames);
      return InvalidArgument("--metrics-aliases: '{}' is not one of vllm, inference-extension{}",
                             name,
                             nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
    }
  }
  return set;
}

void AddMetricAliases(MetricAliasSet set, MetricAliasRole role, const BatonMetrics& metrics,
                      MetricsRegistry* registry) {
  if (set.none()) return;
  AddProtocol({}, metrics, registry);
  if (set.inference_extension) AddLora(registry);
  if (!set.vllm) return;
  if (role == MetricAliasRole::kRouter) {
    AddRouterNames({}, metrics, registry);
  } else {
    AddWorkerNames(metrics, registry);
  }
}

void AddModelAliases(std::string_view model, MetricAliasSet set, const BatonMetrics& metrics,
                     MetricsRegistry* registry) {
  if (set.none()) return;
  const MetricLabels own = {{"model", std::string(model)}};
  AddProtocol(own, metrics, registry);
  if (set.vllm) AddRouterNames(own, metrics, registry);
}

}  // namespace baton::obs
