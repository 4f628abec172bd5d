#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/model_rig.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/timing.h"

namespace baton::kernels::gpu_check {

using model::FastLogitBound;
using model::FastMode;
using model::ModelConfig;

namespace {

std::vector<uint32_t> PromptRows(bool is_tiny) {
  if (is_tiny) return {136};  // more than our own kernels have in fast mode too
  return {2048, 8192};
}

// The results that one mode gives for a prompt.
struct Prompt {
  std::vector<float> logits;  // of the last row
  std::vector<double> samples_us;
};

absl::StatusOr<Prompt> TimePrompt(ModelRig& rig, uint32_t rows, uint32_t num_samples) {
  const std::vector<TokenId> tokens = RandomTokens(rows, rig.model().config().vocab_size, rows);
  std::vector<uint32_t> blocks;
  for (uint32_t i = 0; i * kShapeBlockSize < rows; ++i) blocks.push_back(i);
  const std::vector<RigChunk> chunks = {{blocks, 0, tokens}};
  Prompt prompt;
  BATON_ASSIGN_OR_RETURN(prompt.logits, rig.Run(chunks));
  for (uint32_t i = 0; i < num_samples; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    BATON_RETURN_IF_ERROR(rig.Choose(chunks).status());
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - begin;
    prompt.samples_us.push_back(elapsed.count());
  }
  return prompt;
}

// One prompt for each number of rows. The rig is gone afterwards, because a GPU need not have room
// for two rigs.
absl::StatusOr<std::vector<Prompt>> TimePrompts(const StageInput& input, const FastMode& fast,
                                                std::string* numerics) {
  const std::vector<uint32_t> counts = PromptRows(input.is_tiny);
  const uint32_t num_blocks = (counts.back() + kShapeBlockSize - 1) / kShapeBlockSize;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRig> rig,
                         ModelRig::Create(input, {.max_rows = counts.back(),
                                                  .max_context = num_blocks * kShapeBlockSize,
                                                  .num_blocks = num_blocks,
                                                  .fast = fast}));
  if (fast.library != nullptr && rig->model().is_deterministic()) {
    return FailedPrecondition("it is not used; the log says why");
  }
  *numerics = rig->model().numerics_text();
  std::vector<Prompt> prompts;
  for (const uint32_t rows : counts) {
    BATON_ASSIGN_OR_RETURN(Prompt prompt, TimePrompt(*rig, rows, input.is_tiny ? 2 : 5));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// The largest difference of two rows of logits, in units of the first one's root mean square.
double Distance(const std::vector<float>& exact, const std::vector<float>& other) {
  double square = 0;
  double largest = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    square += double{exact[i]} * exact[i];
    largest = std::max(largest, std::fabs(double{exact[i]} - other[i]));
  }
  return largest / std::sqrt(square / static_cast<double>(exact.size()));
}

absl::Status AddPair(const StageInput& input, uint32_t rows, const Prompt& exact,
                     const Prompt& fast, Report& report) {
  const auto add = [&](const char* mode, const Prompt& prompt) {
    const std::string name = fmt::format("{}: prefill {}", mode, rows);
    return AddSamples(input, {.name = name}, prompt.samples_us, {.name = name}, report);
  };
  BATON_RETURN_IF_ERROR(add("deterministic", exact));
  BATON_RETURN_IF_ERROR(add("fast", fast));
  const double ratio = MedianOf(exact.samples_us) / MedianOf(fast.samples_us);
  Finding cost = {.name = fmt::format("cost of equal bits, prefill {}", rows),
                  .detail = fmt::format("{:.2f} times the time of fast mode", ratio)};
  cost.data["cost_ratio"] = ratio;
  return report.Add(std::move(cost));
}

absl::Status AddLogits(uint32_t rows, double bound, double error, Report& report) {
  Finding finding = {
      .name = fmt::format("logits of prefill {}", rows),
      .verdict = error <= bound ? Verdict::kPass : Verdict::kFail,
      .detail = fmt::format("differ by {:.3g} of their rms at most, bound {:.3g}", error, bound)};
  finding.data["error"] = error;
  return report.Add(std::move(finding));
}

}  // namespace

absl::Status CheckFastMode(const StageInput& input, Report& report) {
  if (!input.body.is_gpu && input.tools.cublaslt.empty()) {
    return report.Add({"fast mode", Verdict::kNotRun, "on the runner a loopback has to be named"});
  }
  absl::StatusOr<cublaslt::CublasLtTable> table = FindCublasLt(input.tools);
  if (!table.ok()) {
    return report.Add({"fast mode", Verdict::kNotRun, std::string(table.status().message())});
  }
  if (!report.Begin("fast mode")) return absl::OkStatus();
  const FastMode mode = {
      .library = std::make_shared<const cublaslt::CublasLtTable>(*std::move(table)),
      .plan_folder = ""};
  std::string numerics;
  const auto exact = TimePrompts(input, {}, &numerics);
  const auto fast = exact.ok() ? TimePrompts(input, mode, &numerics) : exact;
  if (!fast.ok()) {
    return report.Add({"fast mode", Verdict::kFail, std::string(fast.status().message())});
  }
  BATON_RETURN_IF_ERROR(report.Add({"fast mode", Verdict::kPass, numerics}));
  ModelConfig config;
  config.num_layers = ShapeFor(input.is_tiny).num_layers;
  const std::vector<uint32_t> counts = PromptRows(input.is_tiny);
  for (size_t i = 0; i < counts.size(); ++i) {
    BATON_RETURN_IF_ERROR(AddPair(input, counts[i], (*exact)[i], (*fast)[i], report));
    BATON_RETURN_IF_ERROR(AddLogits(counts[i], FastLogitBound(config),
                                    Distance((*exact)[i].logits, (*fast)[i].logits), report));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
