#include "src/cli/plan/plan_replay.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/clock.h"
#include "src/worker/pool_size.h"

namespace baton::cli {

using kv::KvLayout;
using loadgen::TraceRow;
using model::KvLayoutOf;
using model::ModelConfig;
using plan::kMaxUtilization;
using plan::kMemoryShare;
using plan::PlanLoad;
using plan::PlanMemory;
using plan::PlannedChunk;
using router::ServeMode;
using sim::Replay;
using sim::ReplayOptions;
using sim::ReplayWorker;
using worker::NumPoolBlocks;

namespace {

// The share that shall be served in time, of the requests that can be.
constexpr double kMetShare = 0.99;
// A run that serves no more than this more in time has not helped.
constexpr double kMinGain = 0.002;

// Blocks of one worker's pool: what weights leave of its memory, or a worker's default.
StatusOr<uint32_t> PoolBlocks(const PlanReport& report, const PlanMemory& memory) {
  const ModelConfig& config = report.model.config;
  if (memory.device_bytes == 0) {
    const KvLayout layout = KvLayoutOf(config, report.device.kv_dtype(), memory.block_tokens);
    return NumPoolBlocks(0, {.layout = layout, .max_context = config.context_length});
  }
  const double room = kMemoryShare * static_cast<double>(memory.device_bytes) -
                      static_cast<double>(memory.weight_bytes);
  const double blocks = std::floor(room / static_cast<double>(memory.kv_block_bytes));
  return static_cast<uint32_t>(std::clamp(blocks, 1.0, 1e9));
}

// More than all requests of a load hold together, each with its state and two copies of it.
uint32_t BlocksOfAll(const std::vector<TraceRow>& rows, const PlanMemory& memory) {
  uint64_t num_blocks = 1;
  for (const TraceRow& row : rows) {
    num_blocks += (uint64_t{row.num_input} + row.num_output) / memory.block_tokens + 2 +
                  uint64_t{3} * memory.state_blocks;
  }
  return static_cast<uint32_t>(std::min<uint64_t>(num_blocks, UINT32_MAX));
}

StatusOr<ReplayOptions> OptionsOf(const PlanReport& report, const PlanEnd& end,
                                  const ReplayAsk& ask) {
  if (end.input.link_bytes_per_s <= 0) {
    return FailedPrecondition(
        "a simulation needs the speed of the links: give --link (baton topo or doctor shows it)");
  }
  ReplayOptions options;
  ReplayWorker& worker = options.worker;
  worker.steps = end.input.steps;
  if (end.first_cost) worker.first_cost = *end.first_cost;
  worker.block_tokens = end.input.memory.block_tokens;
  BATON_ASSIGN_OR_RETURN(worker.num_blocks, PoolBlocks(report, end.input.memory));
  // A tiny model's pool would be larger than what simulates it.
  worker.state_blocks = end.input.memory.state_blocks;
  worker.window = end.input.memory.window;
  worker.num_blocks = std::min(worker.num_blocks, BlocksOfAll(*ask.rows, end.input.memory));
  const uint32_t besides = worker.state_blocks + 1;
  const uint64_t pool_tokens =
      uint64_t{worker.num_blocks - std::min(worker.num_blocks, besides)} * worker.block_tokens;
  worker.max_context =
      static_cast<uint32_t>(std::min<uint64_t>(report.model.config.context_length, pool_tokens));
  worker.kv_bytes_per_token = end.input.kv_bytes_per_token;
  worker.link_bytes_per_s = end.input.link_bytes_per_s;
  options.rows = ask.rows;
  options.ttft_us = static_cast<int64_t>(report.objective.ttft_us);
  options.itl_us = static_cast<int64_t>(report.objective.itl_us);
  return options;
}

// The share of the rows whose prompt, alone on one worker, takes no longer than the TTFT.
double AloneShare(const PlanReport& report, const PlanEnd& end, const std::vector<TraceRow>& rows) {
  const uint32_t chunk = PlannedChunk(end.input);
  const auto num_in_time = std::count_if(rows.begin(), rows.end(), [&](const TraceRow& row) {
    return end.input.steps.PromptUs(row.num_input, chunk, {}) <= report.objective.ttft_us;
  });
  return static_cast<double>(num_in_time) / static_cast<double>(rows.size());
}

uint32_t Larger(uint32_t num_workers) { return num_workers + std::max(1u, num_workers / 4); }

// Runs of one plan, each told to who asked.
class Runner {
 public:
  Runner(const ReplayAsk& ask, PlanReplays* out) : ask_(ask), out_(out) {}

  StatusOr<PlanRun> Run(std::string policy, const PlanEnd& end, const ReplayOptions& options) {
    PlanRun run{.policy = std::move(policy),
                .end = end.name,
                .num_prefill = options.num_prefill,
                .num_decode = options.num_decode,
                .report = {}};
    const int64_t begin_us = SystemClock().NowUs();
    BATON_ASSIGN_OR_RETURN(run.report, Replay(options));
    run.elapsed_s = static_cast<double>(SystemClock().NowUs() - begin_us) * 1e-6;
    if (ask_.on_run) ask_.on_run(run);
    return run;
  }

  Status Add(std::string policy, const PlanEnd& end, const ReplayOptions& options) {
    BATON_ASSIGN_OR_RETURN(PlanRun run, Run(std::move(policy), end, options));
    out_->runs.push_back(std::move(run));
    return OkStatus();
  }

  // The split with the fewest workers that was found; its pools are left in `options`.
  StatusOr<PlanRun> Search(const PlanEnd& end, ReplayOptions* options) {
    const double goal = kMetShare * out_->alone_share;
    BATON_ASSIGN_OR_RETURN(PlanRun best, Run("split", end, *options));
    ReplayOptions next = *options;
    for (out_->num_sizing = 1; out_->num_sizing < kMaxSizingRuns; ++out_->num_sizing) {
      if (best.report.MetShare() >= goal) break;
      // Gaps that are too long are a decode worker's; everything else is a wait for prefill.
      const bool by_decode = best.report.itl_ms.p99 * 1e3 > out_->objective.itl_us;
      const bool by_prefill = !by_decode || best.report.prefill_busy > kMaxUtilization;
      if (by_decode && ask_.num_decode == 0) next.num_decode = Larger(next.num_decode);
      if (by_prefill && ask_.num_prefill == 0) next.num_prefill = Larger(next.num_prefill);
      if (next.num_decode == options->num_decode && next.num_prefill == options->num_prefill) break;
      BATON_ASSIGN_OR_RETURN(PlanRun run, Run("split", end, next));
      if (run.report.MetShare() < best.report.MetShare() + kMinGain) break;
      best = std::move(run);
      *options = next;
    }
    return best;
  }

 private:
  const ReplayAsk& ask_;
  PlanReplays* const out_;
};

}  // namespace

StatusOr<PlanLoad> LoadOfTrace(const std::vector<TraceRow>& rows) {
  const double seconds = static_cast<double>(rows.back().start_us) * 1e-6;
  if (rows.size() < 2 || seconds <= 0) {
    return InvalidArgument("--trace: {} rows of one moment have no rate", rows.size());
  }
  uint64_t num_input = 0;
  uint64_t num_output = 0;
  for (const TraceRow& row : rows) {
    num_input += row.num_input;
    num_output += row.num_output;
  }
  const auto mean = [&](uint64_t sum) {
    return static_cast<uint32_t>(std::max<uint64_t>(1, (sum + rows.size() / 2) / rows.size()));
  };
  return PlanLoad{.rate_per_s = static_cast<double>(rows.size() - 1) / seconds,
                  .input_tokens = mean(num_input),
                  .output_tokens = mean(num_output)};
}

StatusOr<PlanReplays> ReplayPlan(const PlanReport& report, const ReplayAsk& ask) {
  const bool is_cautious = report.cautious.plan.ok();
  const PlanEnd& end = is_cautious ? report.cautious : report.best;
  BATON_ASSIGN_OR_RETURN(ReplayOptions split, OptionsOf(report, end, ask));
  split.num_prefill = ask.num_prefill > 0 ? ask.num_prefill : end.plan->prefill.num_workers;
  split.num_decode = ask.num_decode > 0 ? ask.num_decode : end.plan->decode.num_workers;
  PlanReplays out;
  out.load = ask.load;
  out.objective = report.objective;
  out.num_rows = ask.rows->size();
  out.alone_share = AloneShare(report, end, *ask.rows);
  Runner runner(ask, &out);
  if (ask.search) {
    BATON_ASSIGN_OR_RETURN(PlanRun run, runner.Search(end, &split));
    out.runs.push_back(std::move(run));
  } else {
    BATON_RETURN_IF_ERROR(runner.Add("split", end, split));
  }
  out.sized = out.runs.front().report.MetShare() >= kMetShare * out.alone_share;
  if (is_cautious) {
    BATON_ASSIGN_OR_RETURN(ReplayOptions best, OptionsOf(report, report.best, ask));
    best.num_prefill = split.num_prefill;
    best.num_decode = split.num_decode;
    BATON_RETURN_IF_ERROR(runner.Add("split", report.best, best));
  }
  ReplayOptions other = split;
  other.mode = ServeMode::kAdaptive;
  other.local_max_tokens = kReplayLocalTokens;
  BATON_RETURN_IF_ERROR(runner.Add("adaptive", end, other));
  other = split;
  other.worker.prefix_cache = false;
  BATON_RETURN_IF_ERROR(runner.Add("no prefix cache", end, other));
  other = split;
  other.mode = ServeMode::kAggregated;
  other.num_prefill = 0;
  other.num_decode = split.num_prefill + split.num_decode;
  BATON_RETURN_IF_ERROR(runner.Add("no split", end, other));
  return out;
}

}  // namespace baton::cli
