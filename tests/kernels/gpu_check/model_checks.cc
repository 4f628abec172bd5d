#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/device/host_buffer.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/division_timing.h"
#include "tests/kernels/gpu_check/model_rig.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/step_timing.h"
#include "tests/kernels/gpu_check/timing.h"
#include "tests/test_seed.h"

namespace baton::kernels::gpu_check {

using device::HostBuffer;
using kv::KvLayout;
using model::DeviceModel;
using model::FedToken;
using model::LayerHook;
using model::ModelConfig;

namespace {

// How much of a model's life is compared, and in which pieces.
struct ExactSize {
  uint32_t prompt;
  uint32_t decoded;
  std::vector<uint32_t> chunks;  // of the prompt, again and again
};

ExactSize ExactSizeFor(bool is_tiny) {
  if (is_tiny) return {70, 3, {33, 1, 17}};
  return {700, 24, {256, 1, 13, 77, 128}};
}

// Rows of the timed steps; both rigs hold the larger of what is compared and timed.
std::vector<uint32_t> PrefillRows(bool is_tiny) {
  if (is_tiny) return {66};
  return {2048, 8192};
}
std::vector<DecodeShape> StepShapes(bool is_tiny) {
  if (is_tiny) return {{1, 70}, {2, 70}};
  return {{1, 1024}, {8, 1024}, {64, 1024}, {1, 8192}, {8, 8192}};
}
RigSize RigSizeFor(bool is_tiny) {
  if (is_tiny) return {.max_rows = 80, .max_context = 128, .num_blocks = 11};
  // 8 x 8192 and 64 x 1024 positions, and some.
  return {.max_rows = 8192, .max_context = 8192 + kShapeBlockSize, .num_blocks = 1100};
}

// A sequence on a rig: its blocks, how much is computed, and every logit so far.
struct Life {
  std::vector<uint32_t> blocks;
  std::vector<TokenId> tokens;
  std::vector<float> logits;

  TokenId Best(uint32_t vocab_size) const {
    const auto last = logits.end() - vocab_size;
    return static_cast<TokenId>(std::max_element(last, logits.end()) - last);
  }
};

// Computes the tokens that follow `first_pos` others and keeps the last row's logits.
absl::Status Step(ModelRig& rig, Life& life, uint32_t first_pos, uint32_t count) {
  BATON_ASSIGN_OR_RETURN(
      const std::vector<float> logits,
      rig.Run({{life.blocks, first_pos, std::span(life.tokens).subspan(first_pos, count)}}));
  life.logits.insert(life.logits.end(), logits.begin(), logits.end());
  return absl::OkStatus();
}

// Greedy, from the logits that are there.
absl::Status Decode(ModelRig& rig, Life& life, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    const auto position = static_cast<uint32_t>(life.tokens.size());
    life.tokens.push_back(life.Best(rig.model().config().vocab_size));
    BATON_RETURN_IF_ERROR(Step(rig, life, position, 1));
  }
  return absl::OkStatus();
}

// Copies the layers of blocks, in a stream of their own, as soon as the model says that they are
// stored; it computes on.
class LayerReader final : public LayerHook {
 public:
  LayerReader(ModelRig& rig, std::span<const uint32_t> blocks, std::byte* to)
      : rig_(rig), blocks_(blocks), to_(to) {}

  void OnLayerStored(uint32_t layer) override {
    const KvLayout& layout = rig_.model().layout();
    for (; next_ <= layer && status_.ok(); ++next_) {
      for (size_t i = 0; i < blocks_.size() && status_.ok(); ++i) {
        std::byte* const to = to_ + i * layout.BlockBytes() + next_ * layout.SliceBytes();
        status_ = rig_.CopyLayerOut(to, blocks_[i], next_);
      }
    }
  }
  uint32_t num_layers() const { return next_; }
  const absl::Status& status() const { return status_; }

 private:
  ModelRig& rig_;
  const std::span<const uint32_t> blocks_;
  std::byte* const to_;  // [blocks][layers][slice]
  uint32_t next_ = 0;
  absl::Status status_;
};

absl::StatusOr<std::string> Same(const std::vector<float>& a, const std::vector<float>& b,
                                 const char* what) {
  BATON_RETURN_IF_ERROR(ExpectSameBits(what, a, b));
  return fmt::format("{} {} of equal bits", a.size(), what);
}

// The exactness of one prompt and what follows it.
class Exactness {
 public:
  // `decode` null: nothing is disaggregated.
  Exactness(ModelRig& prefill, ModelRig* decode, const ExactSize& size)
      : p_(prefill), d_(decode), size_(size), num_blocks_(BlocksFor(size.prompt + size.decoded)) {}

  // The prompt at once, then decode, all on one rig.
  absl::StatusOr<std::string> Aggregated() {
    whole_.blocks = SomeBlocks(p_, num_blocks_, 0, 1);
    whole_.tokens = RandomTokens(size_.prompt, p_.model().config().vocab_size, TestSeed());
    BATON_RETURN_IF_ERROR(Step(p_, whole_, 0, size_.prompt));
    BATON_ASSIGN_OR_RETURN(prompt_kv_, p_.ReadBlocks(PromptBlocks(whole_)));
    BATON_RETURN_IF_ERROR(Decode(p_, whole_, size_.decoded));
    const auto [least, most] = std::minmax_element(whole_.logits.begin(), whole_.logits.end());
    const bool is_finite = std::all_of(whole_.logits.begin(), whole_.logits.end(),
                                       [](float value) { return std::isfinite(value); });
    if (!is_finite || !(*least < *most)) return Internal("logits are not finite, or all the same");
    return fmt::format("{} logits in [{:.3g}, {:.3g}]", whole_.logits.size(), *least, *most);
  }

  // Runs the same prompt in pieces.
  absl::StatusOr<std::string> Chunked() {
    Life life{SomeBlocks(p_, num_blocks_, num_blocks_, 1), whole_.tokens, {}};
    life.tokens.resize(size_.prompt);
    uint32_t done = 0;
    for (size_t i = 0; done < size_.prompt; ++i) {
      const uint32_t count = std::min(size_.chunks[i % size_.chunks.size()], size_.prompt - done);
      life.logits.clear();
      BATON_RETURN_IF_ERROR(Step(p_, life, done, count));
      done += count;
    }
    BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> kv, p_.ReadBlocks(PromptBlocks(life)));
    BATON_RETURN_IF_ERROR(ExpectSameBits("blocks", kv, prompt_kv_));
    BATON_RETURN_IF_ERROR(Decode(p_, life, size_.decoded));
    return Same(life.logits, whole_.logits, "logits");
  }

  // The prompt's blocks, moved to other places of another model, which decodes.
  absl::StatusOr<std::string> Disaggregated() {
    if (d_ == nullptr) return FailedPrecondition("there is no second model");
    Life life{SomeBlocks(*d_, num_blocks_, 1, 2), whole_.tokens, {}};
    life.tokens.resize(size_.prompt);
    life.logits.assign(whole_.logits.begin(),
                       whole_.logits.begin() + d_->model().config().vocab_size);
    BATON_RETURN_IF_ERROR(d_->WriteBlocks(PromptBlocks(life), prompt_kv_));
    BATON_RETURN_IF_ERROR(Decode(*d_, life, size_.decoded));
    BATON_ASSIGN_OR_RETURN(const std::string same, Same(life.logits, whole_.logits, "logits"));
    return fmt::format("{}, {} bytes moved", same, prompt_kv_.size());
  }

  // Decodes the same tokens, but the device feeds each one to the next step.
  absl::StatusOr<std::string> Overlapping() {
    Life life{SomeBlocks(p_, num_blocks_, num_blocks_, 1), whole_.tokens, {}};
    life.tokens.resize(size_.prompt);
    BATON_RETURN_IF_ERROR(Step(p_, life, 0, size_.prompt));
    life.tokens.push_back(life.Best(p_.model().config().vocab_size));
    const TokenId fed = FedToken(0);
    const auto position = [this](uint32_t step) { return size_.prompt + step; };
    BATON_RETURN_IF_ERROR(p_.Begin({{life.blocks, position(0), std::span(life.tokens).last(1)}}));
    for (uint32_t step = 1; step + 1 < size_.decoded; ++step) {
      BATON_RETURN_IF_ERROR(p_.Begin({{life.blocks, position(step), {&fed, 1}}}));
      BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, p_.End(1));
      life.tokens.push_back(tokens[0]);
    }
    BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> last, p_.End(1));
    life.tokens.push_back(last[0]);
    if (life.tokens != whole_.tokens) return Internal("other tokens");
    return fmt::format("{} equal tokens", size_.decoded);
  }

  // The last step again, in a batch with a chunk of another prompt.
  absl::StatusOr<std::string> Batched() {
    const ModelConfig& config = p_.model().config();
    Life other{SomeBlocks(p_, BlocksFor(40), 2 * num_blocks_, 1),
               RandomTokens(40, config.vocab_size, 5),
               {}};
    const auto last = static_cast<uint32_t>(whole_.tokens.size() - 1);
    BATON_ASSIGN_OR_RETURN(
        const std::vector<float> logits,
        p_.Run({{other.blocks, 0, other.tokens},
                {whole_.blocks, last, std::span(whole_.tokens).subspan(last, 1)}}));
    return Same({logits.begin() + config.vocab_size, logits.end()},
                {whole_.logits.end() - config.vocab_size, whole_.logits.end()}, "logits");
  }

 private:
  std::span<const uint32_t> PromptBlocks(const Life& life) const {
    return std::span(life.blocks).first(BlocksFor(size_.prompt));
  }

  ModelRig& p_;
  ModelRig* const d_;
  const ExactSize size_;
  const uint32_t num_blocks_;
  Life whole_;
  std::vector<std::byte> prompt_kv_;
};

absl::Status AddExactness(ModelRig& prefill, ModelRig* decode, const ExactSize& size,
                          Report& report) {
  Exactness exactness(prefill, decode, size);
  if (!report.BeginNeeded("aggregated")) return absl::OkStatus();
  const absl::StatusOr<std::string> whole = exactness.Aggregated();
  BATON_RETURN_IF_ERROR(AddOutcome("aggregated", whole, report));
  if (!whole.ok()) return absl::OkStatus();  // nothing to compare with
  BATON_RETURN_IF_ERROR(
      AddChecked("chunked == aggregated", report, [&] { return exactness.Chunked(); }));
  BATON_RETURN_IF_ERROR(
      AddChecked("disaggregated == aggregated", report, [&] { return exactness.Disaggregated(); }));
  BATON_RETURN_IF_ERROR(
      AddChecked("in a batch == alone", report, [&] { return exactness.Batched(); }));
  return AddChecked("overlapping == one after another", report,
                    [&] { return exactness.Overlapping(); });
}

// A model of two ranks, both on this device: a prompt in pieces beside another, then steps that
// were recorded, has the logits of the prompt at once and steps that were not.
absl::StatusOr<std::string> CheckDivided(const StageInput& input, const ExactSize& size) {
  const uint32_t num_blocks = BlocksFor(size.prompt + size.decoded);
  const RigSize rig_size = {.max_rows = std::max(size.prompt, 80u),
                            .max_context = num_blocks * kShapeBlockSize,
                            .num_blocks = 2 * num_blocks + 1,
                            .num_ranks = 2};
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRig> rig, ModelRig::Create(input, rig_size));
  const uint32_t vocab_size = rig->model().config().vocab_size;
  Life whole = {SomeBlocks(*rig, num_blocks, 0, 1), RandomTokens(size.prompt, vocab_size, 9), {}};
  Life pieces = {SomeBlocks(*rig, num_blocks, num_blocks, 1), whole.tokens, {}};
  BATON_RETURN_IF_ERROR(Step(*rig, whole, 0, size.prompt));
  BATON_RETURN_IF_ERROR(Decode(*rig, whole, size.decoded));
  const uint32_t half = size.prompt / 2;
  BATON_RETURN_IF_ERROR(Step(*rig, pieces, 0, half));
  pieces.logits.clear();
  BATON_RETURN_IF_ERROR(Step(*rig, pieces, half, size.prompt - half));
  BATON_RETURN_IF_ERROR(rig->Prepare());
  BATON_RETURN_IF_ERROR(Decode(*rig, pieces, size.decoded));
  return Same(pieces.logits, whole.logits, "logits");
}

// One GPU as --colocate divides it: a prompt on the larger part, whose layers are copied while the
// next ones are computed; then decode on the smaller part. Each has the bits of the larger part
// alone, where nothing is read before the end.
absl::StatusOr<std::string> CheckColocated(ModelRig* rig, const ExactSize& size) {
  const uint32_t num_blocks = BlocksFor(size.prompt + size.decoded);
  const ModelConfig& config = rig->model().config();
  Life alone = {
      SomeBlocks(*rig, num_blocks, 0, 1), RandomTokens(size.prompt, config.vocab_size, 13), {}};
  Life shared = {SomeBlocks(*rig, num_blocks, num_blocks, 1), alone.tokens, {}};
  BATON_RETURN_IF_ERROR(Step(*rig, alone, 0, size.prompt));
  BATON_RETURN_IF_ERROR(Decode(*rig, alone, size.decoded));

  const std::span blocks = std::span<const uint32_t>(shared.blocks).first(BlocksFor(size.prompt));
  BATON_ASSIGN_OR_RETURN(
      const HostBuffer copied,
      HostBuffer::Create(rig->second_device(), blocks.size() * rig->model().layout().BlockBytes(),
                         "layers"));
  LayerReader reader(*rig, blocks, copied.data());
  absl::StatusOr<std::vector<float>> logits =
      rig->Run({{shared.blocks, 0, shared.tokens}}, &reader);
  BATON_RETURN_IF_ERROR(rig->second_device()->Wait());  // before `copied` may go
  BATON_ASSIGN_OR_RETURN(shared.logits, std::move(logits));
  BATON_RETURN_IF_ERROR(reader.status());
  if (reader.num_layers() != config.num_layers) {
    return Internal("{} of {} layers were said to be stored", reader.num_layers(),
                    config.num_layers);
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> stored, rig->ReadBlocks(blocks));
  if (!std::equal(stored.begin(), stored.end(), copied.data())) {
    return Internal("what was copied while the prompt was computed has other bytes");
  }
  for (uint32_t i = 0; i < size.decoded; ++i) {
    const auto position = static_cast<uint32_t>(shared.tokens.size());
    shared.tokens.push_back(shared.Best(config.vocab_size));
    BATON_ASSIGN_OR_RETURN(
        const std::vector<float> row,
        rig->RunOnSecond({{shared.blocks, position, std::span(shared.tokens).last(1)}}));
    shared.logits.insert(shared.logits.end(), row.begin(), row.end());
  }
  BATON_ASSIGN_OR_RETURN(const std::string same, Same(shared.logits, alone.logits, "logits"));
  return fmt::format("{}, {} bytes copied by layers, {} and {} multiprocessors", same,
                     stored.size(), rig->device().num_sms(), rig->second_device()->num_sms());
}

absl::Status AddColocated(const StageInput& input, const ExactSize& size, Report& report) {
  const std::string name = "divided GPU, layers read at once == alone";
  if (!report.BeginNeeded(name)) return absl::OkStatus();
  const uint32_t num_blocks = BlocksFor(size.prompt + size.decoded);
  const absl::StatusOr<std::unique_ptr<ModelRig>> rig =
      ModelRig::Create(input, {.max_rows = std::max(size.prompt, 80u),
                               .max_context = num_blocks * kShapeBlockSize,
                               .num_blocks = 2 * num_blocks,
                               .is_split = true});
  if (!rig.ok()) return AddOutcome(name, rig.status(), report);
  if (const absl::Status split = (*rig)->CheckSplit(); !split.ok()) {
    BATON_RETURN_IF_ERROR(
        report.Add({name, VerdictOfNoSplit(input), std::string(split.message())}));
    return report.Add({"divided GPU, times", Verdict::kNotRun, std::string(split.message())});
  }
  BATON_RETURN_IF_ERROR(AddOutcome(name, CheckColocated(rig->get(), size), report));
  return AddDivisionTimings(input, **rig, size.prompt, report);
}

// ---- Steps that are timed.

absl::Status AddStep(const StageInput& input, ModelRig& rig, const TimedStep& step,
                     Report& report) {
  const bool is_decode = step.decode_rows > 0;
  const uint32_t num_samples = input.is_tiny ? 2 : (is_decode ? 20 : 5);
  Finding finding{
      .name = is_decode ? fmt::format("decode {} x {}{}", step.decode_rows, step.context, step.how)
                        : fmt::format("prefill {}", step.prefill_tokens)};
  if (!report.Begin(finding.name)) return absl::OkStatus();
  // Steps as the engine runs them: a cost model is checked against these.
  if (*step.how == 0) {
    finding.data["step"] = {{"decode_rows", step.decode_rows},
                            {"prefill_tokens", step.prefill_tokens},
                            {"context", step.context}};
  }
  const absl::StatusOr<std::vector<double>> samples_us = TimeStep(rig, step, num_samples);
  if (!samples_us.ok()) {
    finding.verdict = Verdict::kFail;
    finding.detail = std::string(samples_us.status().message());
    return report.Add(std::move(finding));
  }
  const TimedCase timed = CaseOf(finding.name, rig.model(), step);
  return AddSamples(input, timed, *samples_us, std::move(finding), report);
}

absl::Status AddRecording(ModelRig& rig, Report& report) {
  if (!report.BeginNeeded("recorded steps")) return absl::OkStatus();
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status prepared = rig.Prepare();
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - begin;
  const size_t count = rig.model().num_recorded_steps();
  Finding finding = OutcomeOf("recorded steps", prepared,
                              fmt::format("{} graphs in {:.0f} ms", count, elapsed.count()));
  finding.data["recording"] = {{"graphs", count}, {"ms", elapsed.count()}};
  return report.Add(std::move(finding));
}

absl::Status AddSteps(const StageInput& input, ModelRig& rig, Report& report) {
  if (!report.BeginNeeded("steps")) return absl::OkStatus();
  if (const absl::Status filled = rig.FillBlocks(); !filled.ok()) {
    return report.Add({"steps", Verdict::kFail, std::string(filled.message())});
  }
  const std::vector<DecodeShape> shapes = StepShapes(input.is_tiny);
  for (const DecodeShape& shape : shapes) {
    BATON_RETURN_IF_ERROR(
        AddStep(input, rig, {shape.num_rows, 0, shape.context, ", not recorded"}, report));
  }
  BATON_RETURN_IF_ERROR(AddRecording(rig, report));
  for (const DecodeShape& shape : shapes) {
    BATON_RETURN_IF_ERROR(AddStep(input, rig, {shape.num_rows, 0, shape.context}, report));
    BATON_RETURN_IF_ERROR(
        AddStep(input, rig, {shape.num_rows, 0, shape.context, ", overlapping", true}, report));
  }
  for (const uint32_t rows : PrefillRows(input.is_tiny)) {
    BATON_RETURN_IF_ERROR(AddStep(input, rig, {0, rows, rows}, report));
  }
  return absl::OkStatus();
}

nlohmann::json JsonOf(const DeviceModel& model) {
  const ModelConfig& config = model.config();
  return {{"num_layers", config.num_layers},     {"hidden_size", config.hidden_size},
          {"ffn_size", config.ffn_size},         {"num_heads", config.num_heads},
          {"num_kv_heads", config.num_kv_heads}, {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},     {"step_bytes", model.bytes_read_per_step()},
          {"wgmma", model.allows_wgmma()},       {"wgmma_attention", model.attends_by_wgmma()},
          {"numerics", model.numerics_text()}};
}

// The comparisons of results that must be equal, on the model and on a second model. The second one
// is given back before the timed steps.
absl::Status AddExactnessOfTwo(const StageInput& input, ModelRig& rig, Report& report) {
  const ExactSize exact = ExactSizeFor(input.is_tiny);
  RigSize small = RigSizeFor(input.is_tiny);
  small.max_rows = std::min(small.max_rows, 1024u);
  small.num_blocks = 4 * BlocksFor(exact.prompt + exact.decoded) + 1;
  std::unique_ptr<ModelRig> other;
  if (report.BeginNeeded("second model")) {
    absl::StatusOr<std::unique_ptr<ModelRig>> made = ModelRig::Create(input, small);
    if (!made.ok()) BATON_RETURN_IF_ERROR(AddOutcome("second model", made.status(), report));
    if (made.ok()) other = *std::move(made);
  }
  // The one that decodes what it was handed has recorded its steps, the other has not.
  if (other != nullptr && report.BeginNeeded("second model's recorded steps")) {
    const absl::Status prepared = other->Prepare();
    if (!prepared.ok()) {
      BATON_RETURN_IF_ERROR(report.Add(OutcomeOf("second model's recorded steps", prepared, "")));
    }
  }
  return AddExactness(rig, other.get(), exact, report);
}

// The checks of one model: first that bits are equal.
absl::Status AddModel(const StageInput& input, Report& report) {
  if (!report.BeginNeeded("model")) return absl::OkStatus();
  const absl::StatusOr<std::unique_ptr<ModelRig>> rig =
      ModelRig::Create(input, RigSizeFor(input.is_tiny));
  if (!rig.ok()) return AddOutcome("model", rig.status(), report);
  report.Describe("model", JsonOf((*rig)->model()));
  BATON_RETURN_IF_ERROR(AddExactnessOfTwo(input, **rig, report));
  return AddSteps(input, **rig, report);
}

}  // namespace

absl::Status CheckModel(const StageInput& input, Report& report) {
  // Each has models of its own, and gives them back: what one cannot do does not end the others.
  const ExactSize exact = ExactSizeFor(input.is_tiny);
  BATON_RETURN_IF_ERROR(AddModel(input, report));
  BATON_RETURN_IF_ERROR(AddChecked("2 ranks: recorded, in pieces == whole", report,
                                   [&] { return CheckDivided(input, exact); }));
  BATON_RETURN_IF_ERROR(AddColocated(input, exact, report));
  BATON_RETURN_IF_ERROR(CheckFastMode(input, report));
  BATON_RETURN_IF_ERROR(CheckHostMemory(input, report));
  // The last: a device that fails in an engine ends the process, as it does in its blocks.
  return CheckEngines(input, report);
}

}  // namespace baton::kernels::gpu_check
