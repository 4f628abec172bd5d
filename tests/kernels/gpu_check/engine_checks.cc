#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/engine_rig.h"
#include "tests/kernels/gpu_check/model_rig.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/step_timing.h"
#include "tests/kernels/gpu_check/timing.h"
#include "tests/test_seed.h"

namespace baton::gpu_check {
namespace {

// What is asked at once: prompts, of which the first is the longest, and so many tokens of each.
struct AskedSize {
  std::vector<uint32_t> prompts;
  uint32_t max_tokens;
};

AskedSize AskedSizeFor(bool is_tiny) {
  if (is_tiny) return {{70, 5}, 6};
  return {{1500, 64, 700, 257, 33, 1}, 24};
}

// Of a worker, or what fits into the tiny model.
SchedulerConfig SchedulerFor(bool is_tiny) {
  SchedulerConfig config;
  if (is_tiny) {
    config.max_batch_tokens = 80;
    config.max_chunk = 33;
    config.max_running = 16;
  } else {
    config.max_running = kMostOutputRows;
  }
  return config;
}

// The tokens of the largest logits, one after another, by the model alone.
absl::StatusOr<std::vector<TokenId>> TokensOfModel(ModelRig& rig, std::vector<TokenId> tokens,
                                                   uint32_t count) {
  const auto num_prompt = static_cast<uint32_t>(tokens.size());
  const std::vector<uint32_t> blocks = SomeBlocks(rig, BlocksFor(num_prompt + count), 0, 1);
  uint32_t computed = 0;
  for (uint32_t i = 0; i < count; ++i) {
    BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> chosen,
                           rig.Choose({{blocks, computed, std::span(tokens).subspan(computed)}}));
    computed = static_cast<uint32_t>(tokens.size());
    tokens.push_back(chosen[0]);
  }
  tokens.erase(tokens.begin(), tokens.begin() + num_prompt);
  return tokens;
}

// Requests, and what has to come of each.
struct Asked {
  std::vector<RequestSpec> specs;
  std::vector<std::vector<TokenId>> tokens;
};

absl::StatusOr<Asked> AskedOf(ModelRig& rig, const AskedSize& size) {
  Asked asked;
  for (const uint32_t num_prompt : size.prompts) {
    const uint64_t number = asked.specs.size() + 1;
    std::vector<TokenId> prompt =
        RandomTokens(num_prompt, rig.model().config().vocab_size, TestSeed() + number);
    BATON_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                           TokensOfModel(rig, prompt, size.max_tokens));
    asked.specs.push_back(GreedyRequest(number, std::move(prompt), num_prompt, size.max_tokens));
    asked.tokens.push_back(std::move(tokens));
  }
  return asked;
}

// The first request again, as if its worker were lost when half of it was generated.
void AskToResume(Asked* asked) {
  RequestSpec spec = asked->specs[0];
  const std::vector<TokenId>& tokens = asked->tokens[0];
  const auto half = static_cast<std::ptrdiff_t>(tokens.size() / 2);
  spec.key.uid.hi = asked->specs.size() + 1;
  spec.tokens.insert(spec.tokens.end(), tokens.begin(), tokens.begin() + half);
  asked->specs.push_back(std::move(spec));
  asked->tokens.emplace_back(tokens.begin() + half, tokens.end());
}

absl::Status CheckTokens(const RequestSpec& spec, const std::vector<TokenId>& tokens,
                         const std::vector<TokenId>& want) {
  if (tokens == want) return absl::OkStatus();
  const auto other = std::mismatch(want.begin(), want.end(), tokens.begin(), tokens.end()).first;
  return Internal("request {} of {} tokens: another token {} of {}, or none", spec.key.uid.hi,
                  spec.tokens.size(), other - want.begin(), want.size());
}

absl::StatusOr<std::string> CheckAlone(const StageInput& input, ModelRig& rig, Asked asked) {
  AskToResume(&asked);
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<EngineRig> engine,
                         EngineRig::Start({.scheduler = SchedulerFor(input.is_tiny),
                                           .incarnation = Incarnation(1),
                                           .model = rig.engine_model(),
                                           .kv = rig.kv()}));
  for (const RequestSpec& spec : asked.specs) BATON_RETURN_IF_ERROR(engine->Begin(spec));
  for (size_t i = 0; i < asked.specs.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                           engine->End(asked.specs[i], RequestState::kFinished));
    BATON_RETURN_IF_ERROR(CheckTokens(asked.specs[i], tokens, asked.tokens[i]));
  }
  BATON_RETURN_IF_ERROR(engine->WaitIdle());
  const EngineSnapshot snapshot = engine->Snapshot();
  return fmt::format("{} requests, {} steps, {} of them begun before the last had ended",
                     asked.specs.size(), snapshot.num_steps, snapshot.num_steps_ahead);
}

// ---- What an engine adds to a step.

// All sequences decode at once, and nothing else does.
struct EngineSteps {
  uint32_t rows;
  uint32_t context;  // in the middle of what is timed
  uint32_t max_tokens;
  uint32_t rounds;
};

EngineSteps EngineStepsFor(bool is_tiny) {
  if (is_tiny) return {2, 70, 8, 1};
  return {64, 1024, 56, 2};
}

// The steps of one round.
absl::StatusOr<std::vector<double>> TimeEngine(ModelRig& rig, const EngineSteps& size) {
  SchedulerConfig scheduler;
  // Prompts are not what is timed: as fast as they can.
  scheduler.max_batch_tokens = rig.model().max_rows();
  scheduler.max_running = std::min(size.rows, kMostOutputRows);
  scheduler.max_prefilling = size.rows;
  scheduler.target_step_us = scheduler.target_mixed_step_us = 100'000'000;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<EngineRig> engine,
                         EngineRig::Start({.scheduler = scheduler,
                                           .incarnation = Incarnation(1),
                                           .model = rig.engine_model(),
                                           .kv = rig.kv()}));
  const uint32_t num_prompt = size.context - size.max_tokens / 2;
  std::vector<RequestSpec> specs;
  for (uint32_t row = 0; row < size.rows; ++row) {
    specs.push_back(GreedyRequest(row + 1,
                                  RandomTokens(num_prompt, rig.model().config().vocab_size, row),
                                  num_prompt, size.max_tokens));
    BATON_RETURN_IF_ERROR(engine->Begin(specs.back()));
  }
  for (const RequestSpec& spec : specs) {
    BATON_RETURN_IF_ERROR(engine->End(spec, RequestState::kFinished).status());
  }
  if (engine->Snapshot().num_steps_ahead == 0) return Internal("no steps overlapped");
  return engine->recorder().StepsOf(size.rows);
}

absl::Status AddEngineSteps(const StageInput& input, ModelRig& rig, Report& report) {
  const EngineSteps size = EngineStepsFor(input.is_tiny);
  const std::string name = fmt::format("engine decode {} x {}", size.rows, size.context);
  std::vector<double> model_us;
  std::vector<double> engine_us;
  for (uint32_t round = 0; round < size.rounds; ++round) {
    const absl::StatusOr<std::vector<double>> alone =
        TimeStep(rig, {size.rows, 0, size.context, "", /*overlaps=*/true}, input.is_tiny ? 2 : 20);
    const absl::StatusOr<std::vector<double>> engine = alone.ok() ? TimeEngine(rig, size) : alone;
    if (!engine.ok()) return AddOutcome(name.c_str(), engine.status(), report);
    model_us.insert(model_us.end(), alone->begin(), alone->end());
    engine_us.insert(engine_us.end(), engine->begin(), engine->end());
  }
  BATON_RETURN_IF_ERROR(AddSamples(input, {.name = name}, engine_us, {.name = name}, report));
  const double ratio = MedianOf(engine_us) / MedianOf(model_us);
  Finding finding = {.name = "an engine's step by the model's"};
  finding.detail = input.body.is_gpu ? fmt::format("{:.3f} times its time (target 1.03)", ratio)
                                     : "timed, on this processor";
  finding.data["engine_ratio"] = ratio;
  finding.data["model_samples_us"] = model_us;
  return report.Add(std::move(finding));
}

// ---- Two engines.

struct HandOver {
  uint32_t num_prompt;
  uint32_t count;
};

HandOver HandOverFor(bool is_tiny) {
  if (is_tiny) return {70, 1};
  return {2048, 5};
}

RigSize PairSizeFor(bool is_tiny) {
  if (is_tiny) return {.max_rows = 80, .max_context = 128, .num_blocks = 11, .is_split = true};
  return {.max_rows = 2048,
          .max_context = 2048 + 4 * kShapeBlockSize,
          .num_blocks = 100,
          .is_split = true};
}

absl::StatusOr<std::string> CheckHandedOver(EnginePair& pair, const Asked& asked) {
  for (const RequestSpec& spec : asked.specs) BATON_RETURN_IF_ERROR(pair.Begin(spec));
  for (size_t i = 0; i < asked.specs.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, pair.End(asked.specs[i]));
    BATON_RETURN_IF_ERROR(CheckTokens(asked.specs[i], tokens, asked.tokens[i]));
  }
  BATON_RETURN_IF_ERROR(pair.prefill().WaitIdle());
  BATON_RETURN_IF_ERROR(pair.decode().WaitIdle());
  return fmt::format("{} requests, {} bytes handed over", asked.specs.size(),
                     pair.decode().Snapshot().kv_bytes_received);
}

// Prompts one after another: from the end of the prompt to the end of its transfer, beside the
// whole transfer.
absl::Status AddExposed(const StageInput& input, EnginePair& pair, uint32_t vocab_size,
                        Report& report) {
  const HandOver size = HandOverFor(input.is_tiny);
  const std::string name = fmt::format("hand-over of {} tokens", size.num_prompt);
  std::vector<double> transfer_us;
  std::vector<double> exposed_us;
  for (uint32_t i = 0; i < size.count; ++i) {
    const RequestSpec spec =
        GreedyRequest(100 + i, RandomTokens(size.num_prompt, vocab_size, i), size.num_prompt, 2);
    BATON_RETURN_IF_ERROR(pair.Begin(spec));
    const auto tokens = pair.End(spec);
    const auto prompt_done = pair.prefill().recorder().TimeOf(spec.key, RequestState::kPrefillDone);
    const auto verified = pair.decode().recorder().TimeOf(spec.key, RequestState::kVerified);
    for (const absl::Status& status : {tokens.status(), prompt_done.status(), verified.status()}) {
      if (!status.ok()) return AddOutcome(name.c_str(), status, report);
    }
    const std::chrono::duration<double, std::micro> exposed = *verified - *prompt_done;
    exposed_us.push_back(std::max(exposed.count(), 0.0));
    transfer_us.push_back(static_cast<double>(pair.decode().recorder().TransferUs(spec.key)));
  }
  Finding finding = {.name = name};
  finding.data["transfer_us"] = transfer_us;
  finding.data["exposed_us"] = exposed_us;
  const double share = 100 * MedianOf(exposed_us) / std::max(MedianOf(transfer_us), 1.0);
  finding.detail = input.body.is_gpu
                       ? fmt::format("{:.1f} us, {:.0f} % of them behind the prompt (target 10 %)",
                                     MedianOf(transfer_us), share)
                       : "timed, on this processor";
  return report.Add(std::move(finding));
}

// A model of equal weights, twice on the parts of one device.
absl::Status AddPair(const StageInput& input, const Asked& asked, Report& report) {
  constexpr const char* kName = "engines of a divided GPU == model";
  const auto rig = ModelRig::Create(input, PairSizeFor(input.is_tiny));
  if (!rig.ok()) return AddOutcome(kName, rig.status(), report);
  const auto pair = EnginePair::Start(**rig, SchedulerFor(input.is_tiny));
  if (!pair.ok()) return AddOutcome(kName, pair.status(), report);
  const absl::StatusOr<std::string> same = CheckHandedOver(**pair, asked);
  BATON_RETURN_IF_ERROR(AddOutcome(kName, same, report));
  if (!same.ok()) return absl::OkStatus();
  return AddExposed(input, **pair, (*rig)->model().config().vocab_size, report);
}

}  // namespace

absl::Status CheckEngines(const StageInput& input, std::unique_ptr<ModelRig> rig, Report& report) {
  const absl::StatusOr<Asked> asked = AskedOf(*rig, AskedSizeFor(input.is_tiny));
  if (!asked.ok()) return AddOutcome("engines", asked.status(), report);
  BATON_RETURN_IF_ERROR(AddOutcome("engine, many at once and resumed == model",
                                   CheckAlone(input, *rig, *asked), report));
  BATON_RETURN_IF_ERROR(AddEngineSteps(input, *rig, report));
  rig.reset();  // its memory is needed
  return AddPair(input, *asked, report);
}

}  // namespace baton::gpu_check
