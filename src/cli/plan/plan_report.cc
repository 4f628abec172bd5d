#include "src/cli/plan/plan_report.h"

#include <utility>

#include "src/device/device.h"
#include "src/engine/first_step_cost.h"
#include "src/loadgen/quantity.h"
#include "src/model/device_shape.h"

namespace baton::cli {

using device::DeviceKind;
using device::DeviceKindName;
using engine::RooflineModelOf;
using kv::KvLayout;
using loadgen::FormatUs;
using model::CheckDeviceShape;
using model::ModelConfig;
using model::StateManifest;
using model::StateManifestOf;
using model::StatePool;
using model::StatePoolKind;
using plan::AggregatedKeepingItl;
using plan::AggregatedRun;
using plan::CompareWithAggregated;
using plan::Comparison;
using plan::FindSplitLength;
using plan::KeyWindow;
using plan::kMaxUtilization;
using plan::MeasuredWeights;
using plan::PlanCluster;
using plan::PlanInput;
using plan::PlanLoad;
using plan::PlanObjective;
using plan::StepModel;
using plan::TransferPlan;
using scheduler::DeviceLimits;
using scheduler::FirstEstimate;
using scheduler::kFirstShare;
using scheduler::RooflineModel;

namespace {

// Tokens of a block in a worker's pool: on a processor, on a GPU.
constexpr uint32_t kCpuBlockTokens = 16;
constexpr uint32_t kGpuBlockTokens = 64;

// Bytes that a step reads at least: of a mixture the experts of one row.
size_t StepBytes(const ModelConfig& config) {
  const uint64_t output = uint64_t{config.vocab_size} * config.hidden_size;
  return 2 * (config.WeightsPerRow() + output);
}

Status CheckFits(const PlannedModel& model, const PlannedDevice& device, const PlanLoad& load) {
  const uint64_t tokens = uint64_t{load.input_tokens} + load.output_tokens;
  if (tokens > model.config.context_length) {
    return InvalidArgument("--input {} and --output {} are {} tokens, the model's context has {}",
                           load.input_tokens, load.output_tokens, tokens,
                           model.config.context_length);
  }
  if (device.limits != nullptr) {
    return CheckDeviceShape(model.config, DeviceKindName(DeviceKind::kCuda));
  }
  if (model.config.name.empty()) {
    return NotFound(
        "the model file has no general.name, so that nothing says what is measured of it");
  }
  if (device.measured->model_name != model.config.name) {
    return NotFound("--measured is of the model \"{}\", not of \"{}\"", device.measured->model_name,
                    model.config.name);
  }
  return OkStatus();
}

// Layers whose rows cross, each once it is computed.
uint32_t NumStoringLayers(const StateManifest& state) {
  uint32_t sum = 0;
  for (const StatePool& pool : state.pools) {
    if (pool.kind != StatePoolKind::kFixed) sum += pool.num_layers;
  }
  return sum;
}

PlanInput InputWithoutSteps(const PlanReport& report) {
  const ModelConfig& config = report.model.config;
  const PlannedDevice& device = report.device;
  const KvLayout& layout = report.state.layout;
  PlanInput input;
  input.load = report.load;
  input.objective = report.objective;
  input.memory = {.device_bytes = device.memory_bytes,
                  .weight_bytes = device.limits == nullptr ? device.measured->weight_bytes
                                                           : DeviceWeightBytes(config),
                  .kv_block_bytes = layout.BlockStride(),
                  .block_tokens = layout.block_size,
                  .state_blocks = layout.state_blocks,
                  // Devices keep all blocks.
                  .window = device.limits == nullptr ? config.window_of_all() : 0};
  input.num_layers = NumStoringLayers(report.state);
  input.kv_bytes_per_token = layout.BytesPerToken();
  input.link_bytes_per_s = device.link_bytes_per_s;
  return input;
}

PlanEnd DeviceEnd(const PlanReport& report, std::string name, double share) {
  PlanEnd end{.name = std::move(name),
              .input = InputWithoutSteps(report),
              .first_cost = {},
              .aggregated = {},
              .split = {}};
  const DeviceLimits& limits = *report.device.limits;
  const ModelConfig& config = report.model.config;
  const RooflineModel model = RooflineModelOf(config, StepBytes(config));
  end.input.steps = StepModel::OfDevice(limits, model, share, KeyWindowOf(config));
  end.first_cost = FirstEstimate(limits, model);
  if (end.input.link_bytes_per_s == 0) end.input.link_bytes_per_s = limits.link_bytes_per_s * share;
  return end;
}

PlanEnd MeasuredEnd(const PlanReport& report, std::string name, const MeasuredWeights& weights) {
  PlanEnd end{.name = std::move(name),
              .input = InputWithoutSteps(report),
              .first_cost = {},
              .aggregated = {},
              .split = {}};
  end.input.steps = StepModel::OfMeasurements(weights, KeyWindowOf(report.model.config));
  return end;
}

void Complete(uint32_t context, PlanEnd& end) {
  end.plan = PlanCluster(end.input);
  if (!end.plan.ok()) return;
  end.aggregated = CompareWithAggregated(end.input, *end.plan);
  // CheckFits: an answer fits beside some prompt.
  end.split = FindSplitLength(end.input, *end.plan, context - end.input.load.output_tokens);
}

std::string ItlAndTtft(const AggregatedRun& run) {
  return fmt::format("TTFT {} and ITL {}", FormatUs(run.ttft_p99_us), FormatUs(run.itl_p99_us));
}

// The verdict where the links do not carry what must cross.
std::string LinkVerdict(const PlanReport& report, const PlanEnd& end) {
  const TransferPlan& transfer = end.plan->transfer;
  const std::string links = fmt::format(
      "do not split: {:.3g} GB/s must cross, {:.0f} % of what the links of {} prefill and {} "
      "decode workers carry ({:.0f} % at most)",
      transfer.need_bytes_per_s / 1e9, 100 * transfer.link_utilization,
      end.plan->prefill.num_workers, end.plan->decode.num_workers, 100 * kMaxUtilization);
  const uint32_t fewest = end.aggregated.fewest_workers;
  if (fewest > 0) {
    return fmt::format("{}; {} without a split meet{} both objectives", links,
                       fewest == 1 ? "1 worker" : fmt::format("{} workers", fewest),
                       fewest == 1 ? "s" : "");
  }
  return fmt::format("{}; nor do {} workers without a split meet TTFT {} and ITL {}", links,
                     2 * end.plan->num_workers(), FormatUs(report.objective.ttft_us),
                     FormatUs(report.objective.itl_us));
}

}  // namespace

KeyWindow KeyWindowOf(const ModelConfig& config) {
  if (config.window == 0) return {};
  uint64_t local = 0;
  uint64_t all = 0;
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.IsAttention(layer)) continue;
    all += config.ProductsPerKey(layer);
    if (config.IsLocal(layer)) local += config.ProductsPerKey(layer);
  }
  if (local == 0) return {};
  return {.tokens = config.window, .share = static_cast<double>(local) / static_cast<double>(all)};
}

uint64_t DeviceWeightBytes(const ModelConfig& config) {
  const uint64_t other_experts = uint64_t{3} * (config.num_experts - config.num_experts_used) *
                                 config.hidden_size * config.ffn_size;
  const uint64_t embeddings =
      uint64_t{config.vocab_size} * config.hidden_size * (config.tied_output ? 1 : 2);
  return 2 * (config.WeightsPerRow() + config.num_layers * other_experts + embeddings);
}

StatusOr<PlanReport> MakePlan(PlannedModel model, PlannedDevice device, const PlanLoad& load,
                              const PlanObjective& objective) {
  BATON_RETURN_IF_ERROR(CheckFits(model, device, load));
  PlanReport report{.model = std::move(model),
                    .device = std::move(device),
                    .load = load,
                    .objective = objective,
                    .state = {},
                    .best = {},
                    .cautious = {}};
  const bool is_gpu = report.device.limits != nullptr;
  report.state = StateManifestOf(report.model.config, report.device.kv_dtype(),
                                 is_gpu ? kGpuBlockTokens : kCpuBlockTokens);
  if (is_gpu) {
    report.best = DeviceEnd(report, "at the limits", 1);
    report.cautious = DeviceEnd(report, "at half of them", kFirstShare);
  } else {
    report.best = MeasuredEnd(report, "fastest measured", report.device.measured->fastest);
    report.cautious = MeasuredEnd(report, "slowest measured", report.device.measured->slowest);
  }
  Complete(report.model.config.context_length, report.best);
  Complete(report.model.config.context_length, report.cautious);
  if (!report.best.plan.ok()) return report.best.plan.status();
  return report;
}

std::string VerdictText(const PlanReport& report, const PlanEnd& end) {
  const Comparison& other = end.aggregated;
  const uint32_t num_split = end.plan->num_workers();
  if (!end.plan->transfer.link_carries) return LinkVerdict(report, end);
  if (!other.split_helps) {
    const auto run = AggregatedKeepingItl(end.input, other.fewest_workers);
    return fmt::format(
        "do not split: {} worker{} without a split meet{} both objectives ({} with chunks of {} "
        "tokens), the split needs {}",
        other.fewest_workers, other.fewest_workers == 1 ? "" : "s",
        other.fewest_workers == 1 ? "s" : "", ItlAndTtft(*run), run->chunk, num_split);
  }
  std::string why;
  if (!other.whole_chunks.carries) {
    why = "do not carry the load with whole chunks";
  } else {
    why = fmt::format("reach {} with chunks of {} tokens", ItlAndTtft(other.whole_chunks),
                      other.whole_chunks.chunk);
  }
  why += other.keeps_itl ? fmt::format(", and {} with chunks of {}, the largest that keep the ITL",
                                       ItlAndTtft(*other.keeps_itl), other.keeps_itl->chunk)
                         : ", and no chunk is small enough to keep the ITL";
  const std::string needs =
      other.fewest_workers > 0
          ? fmt::format("{} would be needed", other.fewest_workers)
          : fmt::format("not even {} meet TTFT {} and ITL {}", 2 * num_split,
                        FormatUs(report.objective.ttft_us), FormatUs(report.objective.itl_us));
  return fmt::format("split helps: the same {} workers without a split {}; {}", num_split, why,
                     needs);
}

PlanCost CostOf(const PlanReport& report, uint32_t num_workers) {
  const double output_per_hour = report.load.rate_per_s * report.load.output_tokens * 3600;
  const double tokens_per_hour =
      output_per_hour + report.load.rate_per_s * report.load.input_tokens * 3600;
  const double cost = num_workers * report.device.cost_per_hour * 1e6;
  const double kwh = num_workers * report.device.watts / 1000 * 1e6;
  return {.cost_per_million_output = cost / output_per_hour,
          .cost_per_million_tokens = cost / tokens_per_hour,
          .kwh_per_million_output = kwh / output_per_hour,
          .kwh_per_million_tokens = kwh / tokens_per_hour};
}

}  // namespace baton::cli
