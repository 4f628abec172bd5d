#include "tests/kernels/gpu_check/step_timing.h"

#include <algorithm>
#include <utility>

#include "src/base/status.h"
#include "src/engine/first_step_cost.h"

namespace baton::kernels::gpu_check {

using engine::RooflineModelOf;
using model::DeviceModel;
using model::FedToken;
using scheduler::RooflineModel;

namespace {

// The step again and again, each fed by the one before it.
absl::StatusOr<std::vector<double>> TimeOverlapping(ModelRig& rig, std::vector<RigChunk> rows,
                                                    uint32_t num_samples) {
  std::vector<TokenId> fed;
  for (uint32_t row = 0; row < rows.size(); ++row) fed.push_back(FedToken(row));
  BATON_RETURN_IF_ERROR(rig.Begin(rows));
  for (size_t row = 0; row < rows.size(); ++row) rows[row].tokens = std::span(fed).subspan(row, 1);
  std::vector<double> samples_us;
  auto begin = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < num_samples; ++i) {
    BATON_RETURN_IF_ERROR(rig.Begin(rows));
    BATON_RETURN_IF_ERROR(rig.End(rows.size()).status());
    const auto end = std::chrono::steady_clock::now();
    samples_us.push_back(Microseconds(end - begin).count());
    begin = end;
  }
  BATON_RETURN_IF_ERROR(rig.End(rows.size()).status());
  return samples_us;
}

}  // namespace

TimedCase CaseOf(std::string name, const DeviceModel& model, const TimedStep& step) {
  const RooflineModel costs = RooflineModelOf(model.config(), model.bytes_read_per_step());
  const double rows = std::max(step.decode_rows, step.prefill_tokens);
  TimedCase timed = {.name = std::move(name)};
  timed.bytes = static_cast<double>(model.bytes_read_per_step()) +
                static_cast<double>(costs.kv_bytes_per_token) * step.context *
                    std::max<uint32_t>(step.decode_rows, 1);
  // A row sees the keys before it and its own.
  const double num_pairs = rows * (step.decode_rows > 0 ? step.context : 0.5 * (rows + 1));
  timed.flops = static_cast<double>(costs.num_layers) *
                (static_cast<double>(costs.layer_flops_per_row) * rows +
                 static_cast<double>(costs.attention_flops_per_key) * num_pairs);
  if (step.decode_rows == 0) {
    timed.target = PromptTarget({step.prefill_tokens, timed.flops, model.attends_by_wgmma()});
  } else if (model.num_recorded_steps() > 0) {
    timed.target = DecodeStepTarget(step.decode_rows, step.context);
  }
  return timed;
}

absl::StatusOr<std::vector<double>> TimeStep(ModelRig& rig, const TimedStep& step,
                                             uint32_t num_samples) {
  const uint32_t rows = std::max<uint32_t>(step.prefill_tokens, 1);
  const uint32_t num_sequences = std::max<uint32_t>(step.decode_rows, 1);
  const std::vector<TokenId> tokens = RandomTokens(rows, rig.model().config().vocab_size, 3);
  const uint32_t blocks = BlocksFor(step.context);
  std::vector<std::vector<uint32_t>> lists;
  std::vector<RigChunk> chunks;
  for (uint32_t i = 0; i < num_sequences; ++i) {
    lists.push_back(SomeBlocks(rig, blocks, i * blocks, 1));
  }
  for (const auto& list : lists) chunks.push_back({list, step.context - rows, tokens});
  std::vector<double> samples_us;
  constexpr uint32_t kWarmUp = 2;
  for (uint32_t i = 0; i < kWarmUp + num_samples; ++i) {
    if (i == kWarmUp && step.overlaps) return TimeOverlapping(rig, std::move(chunks), num_samples);
    const auto begin = std::chrono::steady_clock::now();
    BATON_RETURN_IF_ERROR(rig.Choose(chunks).status());
    const Microseconds elapsed = std::chrono::steady_clock::now() - begin;
    if (i >= kWarmUp) samples_us.push_back(elapsed.count());
  }
  return samples_us;
}

}  // namespace baton::kernels::gpu_check
