#include <algorithm>
#include <cmath>
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

namespace baton::kernels::gpu_check {

using engine::EngineSnapshot;
using engine::RequestSpec;
using engine::RequestState;
using kv::KvLayout;
using model::DeviceModel;
using scheduler::SchedulerConfig;

namespace {

// The requests that are made at once: prompts, and the number of tokens of each answer.
struct AskedSize {
  std::vector<uint32_t> prompts;
  uint32_t max_tokens;
};

AskedSize AskedSizeFor(bool is_tiny) {
  if (is_tiny) return {{70, 5}, 6};
  return {{1500, 64, 700, 257, 33, 1}, 24};
}

// Sequences that decode at once, and nothing else does.
struct EngineSteps {
  uint32_t num_rows;
  uint32_t context;  // in the middle of what is timed
  uint32_t max_tokens;
  uint32_t num_rounds;

  uint32_t num_prompt() const { return context - max_tokens / 2; }
};

EngineSteps EngineStepsFor(bool is_tiny) {
  if (is_tiny) return {2, 70, 8, 1};
  return {64, 1024, 56, 4};
}

// The scheduler's configuration of a worker, or one that fits into the tiny model.
SchedulerConfig SchedulerFor(bool is_tiny) {
  SchedulerConfig config;
  config.max_running = EngineStepsFor(is_tiny).num_rows;
  if (is_tiny) {
    config.max_batch_tokens = 80;
    config.max_chunk = 33;
  }
  return config;
}

RigSize AloneSizeFor(bool is_tiny) {
  const EngineSteps steps = EngineStepsFor(is_tiny);
  const SchedulerConfig scheduler = SchedulerFor(is_tiny);
  RigSize size = {.max_rows = is_tiny ? 80u : 4096u,
                  .max_context = is_tiny ? 128u : 2048u,
                  .num_blocks = steps.num_rows * BlocksFor(steps.num_prompt() + steps.max_tokens),
                  .max_logit_rows = scheduler.max_running + scheduler.max_prefilling};
  // The prompts that are asked at once need this many blocks.
  size.num_blocks = std::max(size.num_blocks, 3 * BlocksFor(size.max_context));
  return size;
}

RigSize PairSizeFor(bool is_tiny) {
  RigSize size = AloneSizeFor(is_tiny);
  size.max_context += 4 * kShapeBlockSize;
  size.num_blocks = 3 * BlocksFor(size.max_context);
  size.is_split = true;
  return size;
}

// The tokens of the largest logits, one after another, by the model alone.
absl::StatusOr<std::vector<TokenId>> TokensOfModel(ModelRig& rig, std::vector<TokenId> tokens,
                                                   uint32_t count) {
  const auto num_prompt = static_cast<uint32_t>(tokens.size());
  const std::vector<uint32_t> blocks = SomeBlocks(rig, BlocksFor(num_prompt + count), 0, 1);
  uint32_t num_computed = 0;
  for (uint32_t i = 0; i < count; ++i) {
    BATON_ASSIGN_OR_RETURN(
        const std::vector<TokenId> chosen,
        rig.Choose({{blocks, num_computed, std::span(tokens).subspan(num_computed)}}));
    num_computed = static_cast<uint32_t>(tokens.size());
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
    asked.specs.push_back(GreedyRequest(number, std::move(prompt), size.max_tokens));
    asked.tokens.push_back(std::move(tokens));
  }
  return asked;
}

// The first request again, as if its worker were lost when half of it was generated.
void AskToResume(Asked* asked) {
  RequestSpec spec = asked->specs[0];
  const std::vector<TokenId>& tokens = asked->tokens[0];
  const auto half = static_cast<std::ptrdiff_t>(tokens.size() / 2);
  std::vector<TokenId> rest(tokens.begin() + half, tokens.end());
  spec.key.uid.hi = asked->specs.size() + 1;
  spec.tokens.insert(spec.tokens.end(), tokens.begin(), tokens.begin() + half);
  asked->specs.push_back(std::move(spec));
  asked->tokens.push_back(std::move(rest));
}

absl::Status CheckTokens(const RequestSpec& spec, const std::vector<TokenId>& tokens,
                         const std::vector<TokenId>& want) {
  if (tokens == want) return absl::OkStatus();
  const auto other = std::mismatch(want.begin(), want.end(), tokens.begin(), tokens.end()).first;
  return Internal("request {} of {} tokens: another token {} of {}, or none", spec.key.uid.hi,
                  spec.tokens.size(), other - want.begin(), want.size());
}

// The rig's engine; nothing else runs on the rig until it is gone.
absl::StatusOr<std::unique_ptr<EngineRig>> StartEngine(ModelRig& rig,
                                                       const SchedulerConfig& scheduler) {
  return EngineRig::Start({.scheduler = scheduler,
                           .incarnation = Incarnation(1),
                           .model = rig.engine_model(),
                           .kv = rig.kv()});
}

absl::StatusOr<std::string> CheckAlone(const StageInput& input, ModelRig& rig, Asked asked) {
  AskToResume(&asked);
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<EngineRig> engine,
                         StartEngine(rig, SchedulerFor(input.is_tiny)));
  for (const RequestSpec& spec : asked.specs) BATON_RETURN_IF_ERROR(engine->Begin(spec));
  for (size_t i = 0; i < asked.specs.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                           engine->End(asked.specs[i], RequestState::kFinished));
    BATON_RETURN_IF_ERROR(CheckTokens(asked.specs[i], tokens, asked.tokens[i]));
  }
  BATON_RETURN_IF_ERROR(engine->WaitIdle());
  const EngineSnapshot snapshot = engine->Snapshot();
  if (snapshot.num_steps_ahead == 0) return Internal("no steps overlapped");
  return fmt::format("{} requests, {} steps, {} of them begun before the last had ended",
                     asked.specs.size(), snapshot.num_steps, snapshot.num_steps_ahead);
}

// ---- What an engine adds to a step.

// The steps of one round.
absl::StatusOr<std::vector<double>> TimeEngine(const StageInput& input, ModelRig& rig,
                                               const EngineSteps& size) {
  SchedulerConfig scheduler = SchedulerFor(input.is_tiny);
  // Prompts are not what is timed: as fast as they can.
  scheduler.max_batch_tokens = rig.model().max_rows();
  scheduler.target_step_us = scheduler.target_mixed_step_us = 100'000'000;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<EngineRig> engine, StartEngine(rig, scheduler));
  std::vector<RequestSpec> specs;
  for (uint32_t row = 0; row < size.num_rows; ++row) {
    specs.push_back(GreedyRequest(
        row + 1, RandomTokens(size.num_prompt(), rig.engine_model()->vocab_size(), row),
        size.max_tokens));
    BATON_RETURN_IF_ERROR(engine->Begin(specs.back()));
  }
  for (const RequestSpec& spec : specs) {
    BATON_RETURN_IF_ERROR(engine->End(spec, RequestState::kFinished).status());
  }
  std::vector<double> samples_us = engine->recorder().StepsOf(size.num_rows);
  const EngineSnapshot snapshot = engine->Snapshot();
  const bool is_steady = !samples_us.empty() && snapshot.num_steps_ahead >= samples_us.size() &&
                         snapshot.scheduler.num_preemptions == 0;
  if (is_steady) return samples_us;
  return Internal("{} steps to be timed, {} begun before the last had ended, {} preemptions",
                  samples_us.size(), snapshot.num_steps_ahead, snapshot.scheduler.num_preemptions);
}

// Times of an engine and of its model, which were measured in turns.
struct EngineTimes {
  std::vector<double> engine_us;
  std::vector<double> model_us;
  std::vector<double> ratios;  // of each round's medians
};

absl::StatusOr<EngineTimes> TimeRounds(const StageInput& input, ModelRig& rig,
                                       const EngineSteps& size) {
  const TimedStep step = {size.num_rows, 0, size.context, "", /*overlaps=*/true};
  EngineTimes times;
  for (uint32_t round = 0; round < size.num_rounds; ++round) {
    std::vector<double> model_us;
    std::vector<double> engine_us;
    for (const bool is_engine : {round % 2 == 1, round % 2 == 0}) {
      if (is_engine) {
        BATON_ASSIGN_OR_RETURN(engine_us, TimeEngine(input, rig, size));
      } else {
        BATON_ASSIGN_OR_RETURN(model_us, TimeStep(rig, step, input.is_tiny ? 2 : 40));
      }
    }
    times.ratios.push_back(MedianOf(engine_us) / MedianOf(model_us));
    times.engine_us.insert(times.engine_us.end(), engine_us.begin(), engine_us.end());
    times.model_us.insert(times.model_us.end(), model_us.begin(), model_us.end());
  }
  return times;
}

absl::Status AddEngineSteps(const StageInput& input, ModelRig& rig, Report& report) {
  const EngineSteps size = EngineStepsFor(input.is_tiny);
  const std::string name = fmt::format("engine decode {} x {}", size.num_rows, size.context);
  if (!report.Begin(name)) return absl::OkStatus();
  const absl::StatusOr<EngineTimes> times = TimeRounds(input, rig, size);
  if (!times.ok()) return AddOutcome(name, times.status(), report);
  const TimedCase timed = CaseOf(name, rig.model(), {size.num_rows, 0, size.context});
  BATON_RETURN_IF_ERROR(AddSamples(input, timed, times->engine_us, {.name = name}, report));
  const auto [least, most] = std::minmax_element(times->ratios.begin(), times->ratios.end());
  Finding finding = {.name = "an engine's step by its model's",
                     .detail = "timed, on this processor"};
  if (input.body.is_gpu) {
    finding.detail = fmt::format("{:.3f} times its time, {:.3f} to {:.3f}", MedianOf(times->ratios),
                                 *least, *most);
    AddTarget(JudgeRatio(kEngineStepRatio, MedianOf(times->ratios)), finding);
  }
  finding.data["engine_ratios"] = times->ratios;
  finding.data["model_samples_us"] = times->model_us;
  return report.Add(std::move(finding));
}

// ---- Two engines.

absl::StatusOr<std::string> CheckHandedOver(ModelRig& rig, EnginePair& pair, const Asked& asked) {
  uint64_t num_bytes = 0;
  for (const RequestSpec& spec : asked.specs) {
    BATON_RETURN_IF_ERROR(pair.Begin(spec));
    num_bytes += uint64_t{BlocksFor(spec.num_prompt_tokens)} * rig.model().layout().BlockBytes();
  }
  for (size_t i = 0; i < asked.specs.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, pair.End(asked.specs[i]));
    BATON_RETURN_IF_ERROR(CheckTokens(asked.specs[i], tokens, asked.tokens[i]));
  }
  BATON_RETURN_IF_ERROR(pair.prefill().WaitIdle());
  BATON_RETURN_IF_ERROR(pair.decode().WaitIdle());
  const uint64_t num_received = pair.decode().Snapshot().kv_bytes_received;
  if (num_received != num_bytes) {
    return Internal("{} bytes were handed over, the prompts have {}", num_received, num_bytes);
  }
  if (pair.prefill().Snapshot().exported_in_step == 0) {
    return Internal("nothing was handed over while it was computed");
  }
  return fmt::format("{} requests, {} bytes handed over, {} and {} multiprocessors",
                     asked.specs.size(), num_received, rig.device().num_sms(),
                     rig.second_device()->num_sms());
}

// From the end of a prompt to the end of its hand-over; negative when that came first.
absl::StatusOr<double> ExposedUs(EnginePair& pair, const RequestSpec& spec) {
  BATON_RETURN_IF_ERROR(pair.Begin(spec));
  BATON_RETURN_IF_ERROR(pair.End(spec).status());
  BATON_ASSIGN_OR_RETURN(const auto prompt_done,
                         pair.prefill().recorder().TimeOf(spec.key, RequestState::kPrefillDone));
  BATON_ASSIGN_OR_RETURN(const auto verified,
                         pair.decode().recorder().TimeOf(spec.key, RequestState::kVerified));
  return Microseconds(verified - prompt_done).count();
}

// Prompts one after another: what of a hand-over is waited for, beside a copy of its bytes at the
// rate that stage 3 measured.
absl::Status AddExposed(const StageInput& input, const KvLayout& layout, uint32_t vocab_size,
                        EnginePair& pair, Report& report) {
  const uint32_t num_prompt = input.is_tiny ? 70 : 2048;
  const uint32_t num_samples = input.is_tiny ? 1 : 5;
  Finding finding = {.name = fmt::format("hand-over of {} tokens", num_prompt)};
  if (!report.Begin(finding.name)) return absl::OkStatus();
  std::vector<double> samples_us;
  for (uint32_t i = 0; i < num_samples; ++i) {
    const absl::StatusOr<double> exposed_us = ExposedUs(
        pair, GreedyRequest(100 + i, RandomTokens(num_prompt, vocab_size, i), /*max_tokens=*/2));
    if (!exposed_us.ok()) return AddOutcome(finding.name, exposed_us.status(), report);
    samples_us.push_back(*exposed_us);
  }
  finding.data["exposed_us"] = samples_us;
  finding.detail = "timed, on this processor";
  if (input.body.is_gpu) {
    finding.detail = fmt::format("{:.1f} us behind the prompt", MedianOf(samples_us));
    const auto num_bytes = static_cast<double>(BlocksFor(num_prompt) * layout.BlockBytes());
    const double copy_us = input.limits.CopyLimitUs(2 * num_bytes);
    if (copy_us > 0) {
      finding.data["copy_us"] = copy_us;
      finding.detail += fmt::format(", {:.0f} % of a copy's {:.1f} us",
                                    100 * MedianOf(samples_us) / copy_us, copy_us);
    }
    AddTarget(JudgeRatio(kExposedOfCopy, copy_us > 0 ? MedianOf(samples_us) / copy_us : NAN),
              finding);
  }
  return report.Add(std::move(finding));
}

// A model of equal weights, twice on the parts of one device.
absl::Status AddPair(const StageInput& input, Report& report) {
  const std::string name = "engines of a divided GPU == model";
  if (!report.BeginNeeded(name)) return absl::OkStatus();
  const auto rig = ModelRig::Create(input, PairSizeFor(input.is_tiny));
  if (!rig.ok()) return AddOutcome(name, rig.status(), report);
  if (const absl::Status split = (*rig)->CheckSplit(); !split.ok()) {
    return report.Add({name, VerdictOfNoSplit(input), std::string(split.message())});
  }
  const absl::StatusOr<Asked> asked = AskedOf(**rig, AskedSizeFor(input.is_tiny));
  if (!asked.ok()) return AddOutcome(name, asked.status(), report);
  const auto pair = EnginePair::Start(**rig, SchedulerFor(input.is_tiny));
  if (!pair.ok()) return AddOutcome(name, pair.status(), report);
  const absl::StatusOr<std::string> same = CheckHandedOver(**rig, **pair, *asked);
  BATON_RETURN_IF_ERROR(AddOutcome(name, same, report));
  const DeviceModel& model = (*rig)->model();
  return AddExposed(input, model.layout(), model.config().vocab_size, **pair, report);
}

// One engine: its tokens, and what it adds to a step.
absl::Status AddAlone(const StageInput& input, Report& report) {
  const std::string name = "engine, many at once and resumed == model";
  if (!report.BeginNeeded(name)) return absl::OkStatus();
  const absl::StatusOr<std::unique_ptr<ModelRig>> rig =
      ModelRig::Create(input, AloneSizeFor(input.is_tiny));
  if (!rig.ok()) return AddOutcome(name, rig.status(), report);
  // Before steps are recorded: the model's tokens are those of steps that are not.
  const absl::StatusOr<Asked> asked = AskedOf(**rig, AskedSizeFor(input.is_tiny));
  if (const absl::Status prepared = (*rig)->Prepare(); !prepared.ok()) {
    BATON_RETURN_IF_ERROR(report.Add(OutcomeOf("an engine's recorded steps", prepared, "")));
  }
  const absl::StatusOr<std::string> same =
      asked.ok() ? CheckAlone(input, **rig, *asked) : asked.status();
  BATON_RETURN_IF_ERROR(AddOutcome(name, same, report));
  return AddEngineSteps(input, **rig, report);
}

}  // namespace

absl::Status CheckEngines(const StageInput& input, Report& report) {
  BATON_RETURN_IF_ERROR(AddAlone(input, report));
  return AddPair(input, report);
}

}  // namespace baton::kernels::gpu_check
