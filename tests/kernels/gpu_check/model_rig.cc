#include "tests/kernels/gpu_check/model_rig.h"

#include <cmath>
#include <utility>

#include "tests/kernels/gpu_check/divided_sms.h"
#include "tests/test_seed.h"

namespace baton::kernels::gpu_check {

using device::Accelerator;
using device::DeviceBuffer;
using device::DeviceKind;
using engine::KvStore;
using kv::KvView;
using namespace model;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint32_t kFillCtas = 4 * 148;
constexpr uint32_t kTinyFillCtas = 2;

ModelConfig ConfigOf(const ModelShape& shape, uint32_t max_context) {
  ModelConfig config;
  config.traits = FindArchitecture("llama");
  config.architecture = "llama";
  config.name = "random weights";
  config.num_layers = shape.num_layers;
  config.hidden_size = shape.hidden_size;
  config.ffn_size = shape.ffn_size;
  config.num_heads = shape.num_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.head_dim = shape.head_dim;
  config.vocab_size = shape.vocab_size;
  config.context_length = max_context;
  config.rms_epsilon = 1e-5f;
  config.rope_base = 500'000;
  config.rope_dims = shape.head_dim;
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  config.layer_is_local.assign(shape.num_layers, false);
  return config;
}

// Sums of k products with values of variance 1 then have variance 1.
float SpreadFor(uint32_t k) { return std::sqrt(3.0f / static_cast<float>(k)); }

}  // namespace

uint32_t BlocksFor(uint32_t num_tokens) {
  return (num_tokens + kShapeBlockSize - 1) / kShapeBlockSize;
}

std::vector<TokenId> RandomTokens(uint32_t count, uint32_t vocab_size, uint64_t seed) {
  TestRandom random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.Below(vocab_size));
  return tokens;
}

absl::Status ModelRig::Make(size_t count, float mean, float spread, DeviceBuffer* buffer) {
  BATON_ASSIGN_OR_RETURN(*buffer, DeviceBuffer::Create(device_.accelerator.get(),
                                                       count * sizeof(simt::Bf16), "random"));
  return input_.body.loops().fill({.to = buffer->as<simt::Vec16>(),
                                   .num_vecs = count * sizeof(simt::Bf16) / sizeof(simt::Vec16),
                                   .num_ctas = input_.is_tiny ? kTinyFillCtas : kFillCtas,
                                   .seed = next_seed_++,
                                   .mean = mean,
                                   .spread = spread},
                                  device_.accelerator->stream());
}

absl::Status ModelRig::MakeLayer(const ModelConfig& config, DeviceLayer* layer) {
  const size_t hidden = config.hidden_size;
  const float from_hidden = SpreadFor(config.hidden_size);
  BATON_RETURN_IF_ERROR(Make(hidden, 1, 0.1f, &layer->attn_norm));
  BATON_RETURN_IF_ERROR(Make(config.qkv_size() * hidden, 0, from_hidden, &layer->qkv.data));
  BATON_RETURN_IF_ERROR(
      Make(config.q_size() * hidden, 0, SpreadFor(config.q_size()), &layer->attn_output.data));
  BATON_RETURN_IF_ERROR(Make(hidden, 1, 0.1f, &layer->ffn_norm));
  BATON_RETURN_IF_ERROR(Make(2 * config.ffn_size * hidden, 0, from_hidden, &layer->gate_up.data));
  return Make(config.ffn_size * hidden, 0, SpreadFor(config.ffn_size), &layer->down.data);
}

absl::Status ModelRig::MakeWeights(const ModelConfig& config, uint32_t num_logits,
                                   DeviceWeights* weights) {
  const size_t hidden = config.hidden_size;
  BATON_RETURN_IF_ERROR(Make(config.vocab_size * hidden, 0, 1, &weights->token_embd.data));
  BATON_RETURN_IF_ERROR(Make(hidden, 1, 0.1f, &weights->output_norm));
  BATON_RETURN_IF_ERROR(
      Make(num_logits * hidden, 0, SpreadFor(config.hidden_size), &weights->output.data));
  weights->layers.resize(config.num_layers);
  for (DeviceLayer& layer : weights->layers) BATON_RETURN_IF_ERROR(MakeLayer(config, &layer));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ModelRig>> ModelRig::Create(const StageInput& input,
                                                           const RigSize& size) {
  std::unique_ptr<ModelRig> rig(new ModelRig(input));
  BATON_ASSIGN_OR_RETURN(
      rig->device_, OpenComputeDevice(input.body.is_gpu ? DeviceKind::kCuda : DeviceKind::kSimt));
  rig->num_sms_ = rig->device_.accelerator->num_sms();
  if (size.is_split) {
    BATON_ASSIGN_OR_RETURN(rig->second_device_, rig->device_.accelerator->Split());
  }
  rig->device_.accelerator->MakeCurrent();
  const ModelConfig config = ConfigOf(ShapeFor(input.is_tiny), size.max_context);
  RankWeights weights;
  for (uint32_t rank = 0; rank < size.num_ranks; ++rank) {
    auto made = std::make_shared<DeviceWeights>();
    const auto num_logits =
        static_cast<uint32_t>(LogitsOfRank(config, {rank, size.num_ranks}).count);
    BATON_RETURN_IF_ERROR(
        rig->MakeWeights(ConfigOfRank(config, size.num_ranks), num_logits, made.get()));
    weights.push_back(std::move(made));
  }
  BATON_ASSIGN_OR_RETURN(rig->model_,
                         DeviceModel::FromWeights(config, std::move(weights), "random",
                                                  {.device = rig->device_.accelerator.get(),
                                                   .kernels = rig->device_.kernels,
                                                   .block_size = kShapeBlockSize,
                                                   .max_rows = size.max_rows,
                                                   .max_logit_rows = size.max_logit_rows,
                                                   .max_context = size.max_context,
                                                   .fast = size.fast,
                                                   .num_ranks = size.num_ranks}));
  if (size.is_split) {
    BATON_ASSIGN_OR_RETURN(rig->second_model_,
                           rig->model_->Share({.device = rig->second_device_.get()}));
    rig->device_.accelerator->MakeCurrent();
  }
  const std::vector<Accelerator*> ranks(size.num_ranks, rig->device_.accelerator.get());
  BATON_ASSIGN_OR_RETURN(rig->kv_, KvStore::OnDevice(ranks, rig->device_.kernels,
                                                     rig->model_->layout(), size.num_blocks));
  return rig;
}

absl::Status ModelRig::CheckSplit() const {
  if (!input_.body.is_gpu) return absl::OkStatus();
  return CheckDividedSms({.whole = num_sms_,
                          .first = device_.accelerator->num_sms(),
                          .second = second_device_->num_sms()});
}

absl::Status ModelRig::PrepareModel(LoadedModel& model, const KvView& kv) {
  BATON_RETURN_IF_ERROR(model.Prepare(kv));
  const auto& on_device = dynamic_cast<const DeviceModel&>(model);
  if (on_device.num_recorded_steps() > 0) return absl::OkStatus();
  return Internal("no step could be recorded: the log says why");
}

struct ModelRig::Lowered {
  explicit Lowered(const std::vector<RigChunk>& chunks) {
    for (const RigChunk& chunk : chunks) {
      const auto first_row = static_cast<uint32_t>(tokens.size());
      const auto num_rows = static_cast<uint32_t>(chunk.tokens.size());
      spans.push_back({{chunk.blocks}, first_row, num_rows, chunk.first_pos});
      tokens.insert(tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
      logit_rows.push_back(first_row + num_rows - 1);
    }
    greedy.assign(chunks.size(), {.on_device = 1});
    chosen.resize(chunks.size());
  }
  ModelBatch batch() { return {tokens, spans, logit_rows, greedy, chosen}; }

  std::vector<TokenId> tokens;
  std::vector<AttentionSpan> spans;
  std::vector<uint32_t> logit_rows;
  std::vector<RowSampling> greedy;
  std::vector<TokenId> chosen;
};

absl::StatusOr<std::vector<float>> ModelRig::RunOn(ForwardModel& model,
                                                   const std::vector<RigChunk>& chunks,
                                                   LayerHook* hook) {
  const Lowered lowered(chunks);
  std::vector<float> logits(chunks.size() * model.vocab_size());
  BATON_RETURN_IF_ERROR(model.Forward({lowered.tokens, lowered.spans, lowered.logit_rows},
                                      kv_->view(), hook, logits));
  return logits;
}

absl::StatusOr<std::vector<float>> ModelRig::Run(const std::vector<RigChunk>& chunks,
                                                 LayerHook* hook) {
  return RunOn(*model_, chunks, hook);
}

absl::StatusOr<std::vector<float>> ModelRig::RunOnSecond(const std::vector<RigChunk>& chunks) {
  second_device_->MakeCurrent();
  absl::StatusOr<std::vector<float>> logits = RunOn(*second_model_, chunks, nullptr);
  device_.accelerator->MakeCurrent();
  return logits;
}

absl::Status ModelRig::CopyLayerOut(std::byte* to, uint32_t block, uint32_t layer) {
  second_device_->MakeCurrent();
  const absl::Status put = second_device_->CopyOut(
      to, kv_->memory().Slice(BlockIndex(block), layer), kv_->layout().SliceBytes());
  device_.accelerator->MakeCurrent();
  return put;
}

absl::StatusOr<std::vector<TokenId>> ModelRig::Choose(const std::vector<RigChunk>& chunks) {
  Lowered lowered(chunks);
  unread_logits_.resize(chunks.size() * model_->config().vocab_size);
  BATON_RETURN_IF_ERROR(model_->Forward(lowered.batch(), kv_->view(), nullptr, unread_logits_));
  return std::move(lowered.chosen);
}

absl::Status ModelRig::Begin(const std::vector<RigChunk>& rows) {
  return model_->Begin(Lowered(rows).batch(), kv_->view());
}

absl::StatusOr<std::vector<TokenId>> ModelRig::End(size_t num_rows) {
  std::vector<TokenId> tokens(num_rows);
  BATON_RETURN_IF_ERROR(model_->End(tokens));
  return tokens;
}

absl::StatusOr<std::vector<std::byte>> ModelRig::ReadBlocks(std::span<const uint32_t> blocks) {
  device_.accelerator->MakeCurrent();
  const size_t size = kv_->layout().BlockBytes();
  std::vector<std::byte> bytes(blocks.size() * size);
  for (size_t i = 0; i < blocks.size(); ++i) {
    BATON_RETURN_IF_ERROR(device_.accelerator->CopyOut(
        bytes.data() + i * size, kv_->memory().Block(BlockIndex(blocks[i])), size));
  }
  BATON_RETURN_IF_ERROR(device_.accelerator->Wait());
  return bytes;
}

absl::Status ModelRig::WriteBlocks(std::span<const uint32_t> blocks,
                                   std::span<const std::byte> bytes) {
  device_.accelerator->MakeCurrent();
  const size_t size = kv_->layout().BlockBytes();
  for (size_t i = 0; i < blocks.size(); ++i) {
    BATON_RETURN_IF_ERROR(device_.accelerator->CopyIn(kv_->memory().Block(BlockIndex(blocks[i])),
                                                      bytes.data() + i * size, size));
  }
  return device_.accelerator->Wait();
}

absl::Status ModelRig::FillBlocks() {
  device_.accelerator->MakeCurrent();
  return input_.body.loops().fill({.to = reinterpret_cast<simt::Vec16*>(kv_->memory().base),
                                   .num_vecs = kv_->memory().RankBytes() / sizeof(simt::Vec16),
                                   .num_ctas = input_.is_tiny ? kTinyFillCtas : kFillCtas,
                                   .seed = 1},
                                  device_.accelerator->stream());
}

std::vector<uint32_t> SomeBlocks(const ModelRig& rig, uint32_t count, uint32_t first,
                                 uint32_t stride) {
  std::vector<uint32_t> blocks;
  for (uint32_t i = 0; i < count; ++i) blocks.push_back((first + i * stride) % rig.num_blocks());
  return blocks;
}

}  // namespace baton::kernels::gpu_check
