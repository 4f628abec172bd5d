#include "src/model/device_model.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/wgmma_check.h"
#include "src/base/check.h"
#include "src/base/log.h"
#include "src/model/batch_check.h"
#include "src/model/device_rank.h"
#include "src/model/device_shape.h"
#include "src/model/device_weights.h"
#include "src/model/numerics.h"
#include "src/model/pack_tensor.h"
#include "src/model/state_bytes.h"
#include "src/model/tensor_plan.h"
#include "src/model/weight_loader.h"

namespace baton::model {

namespace cuda = kernels::cuda;
using device::Accelerator;
using device::DeviceEvent;
using device::DeviceKindName;
using device::LaunchGate;
using kv::KvDtype;
using kv::KvDtypeName;
using kv::KvEncoding;
using kv::KvView;
using kv::RankLayout;

namespace {

// Fp8 scales a row of K or V of one head; what else lies in a block has no such row.
Status CheckRowsForFp8(const ModelConfig& config) {
  if (config.has_plain_rows()) return OkStatus();
  return Unimplemented(
      "--kv-dtype fp8: architecture {} keeps more than K and V of one shape in its blocks, and "
      "that "
      "is not stored in fp8; use bf16",
      config.architecture);
}

}  // namespace

DeviceModel::DeviceModel(const DeviceModelOptions& options) : options_(options) {}
DeviceModel::~DeviceModel() = default;

absl::StatusOr<std::unique_ptr<DeviceModel>> DeviceModel::Load(const GgufFile& file,
                                                               const DeviceModelOptions& options) {
  BATON_CHECK(options.device != nullptr && options.kernels != nullptr && options.pool != nullptr,
              "a device model needs a device, its kernels and a thread pool");
  options.device->MakeCurrent();
  std::unique_ptr<DeviceModel> model(new DeviceModel(options));
  BATON_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(file));
  BATON_RETURN_IF_ERROR(model->TakeConfig(config));
  BATON_ASSIGN_OR_RETURN(const TensorPlan plan, PlanTensors(file, config));
  WeightParts parts;
  for (uint32_t index = 0; index < options.num_ranks; ++index) {
    BATON_ASSIGN_OR_RETURN(DeviceWeights weights,
                           DeviceWeights::Allocate(plan,
                                                   {.config = &config,
                                                    .rank = {index, options.num_ranks},
                                                    .keeps_packed = options.keeps_packed,
                                                    .device = model->DeviceOfRank(index),
                                                    .device_idx = model->DeviceIdxOfRank(index)},
                                                   parts));
    model->weights_.push_back(std::make_shared<const DeviceWeights>(std::move(weights)));
  }
  BATON_ASSIGN_OR_RETURN(
      const UploadedWeights uploaded,
      UploadWeights(file, config, parts, {.devices = model->devices_, .pool = options.pool}));
  model->load_report_ = uploaded.report;
  if (plan.rope_factors != nullptr) model->rope_factors_ = FloatsOf(*plan.rope_factors);
  BATON_RETURN_IF_ERROR(model->Complete(uploaded.weights_id));
  return model;
}

absl::StatusOr<std::unique_ptr<DeviceModel>> DeviceModel::FromWeights(
    const ModelConfig& config, RankWeights weights, const std::string& weights_id,
    const DeviceModelOptions& options) {
  BATON_CHECK(options.device != nullptr && options.kernels != nullptr,
              "a device model needs a device and its kernels");
  BATON_CHECK(weights.size() == options.num_ranks, "weights of {} ranks for {}", weights.size(),
              options.num_ranks);
  options.device->MakeCurrent();
  std::unique_ptr<DeviceModel> model(new DeviceModel(options));
  BATON_RETURN_IF_ERROR(model->TakeConfig(config));
  model->weights_ = std::move(weights);
  BATON_RETURN_IF_ERROR(model->Complete(weights_id));
  return model;
}

StatusOr<std::unique_ptr<LoadedModel>> DeviceModel::Share(const ModelThreads& threads) const {
  if (!options_.peers.empty()) {
    return Unimplemented("a model whose ranks have devices of their own is not shared");
  }
  BATON_CHECK(threads.device != nullptr, "a device model needs a device");
  threads.device->MakeCurrent();
  DeviceModelOptions options = options_;
  options.device = threads.device;
  options.pool = threads.pool;
  if (is_deterministic()) options.fast = {};
  std::unique_ptr<DeviceModel> model(new DeviceModel(options));
  BATON_RETURN_IF_ERROR(model->TakeConfig(config_));
  model->weights_ = weights_;
  model->rope_factors_ = rope_factors_;
  BATON_RETURN_IF_ERROR(model->Complete(weights_id_));
  // The library was asked anew, and a part of a GPU is another machine to it.
  if (model->numerics_id() != numerics_id()) {
    return FailedPrecondition(
        "cuBLASLt can be used on one part of the device alone, and the other's answers would have "
        "other bits; --deterministic uses it on neither");
  }
  return model;
}

Status DeviceModel::TakeConfig(const ModelConfig& config) {
  config_ = config;
  devices_ = {options_.device};
  devices_.insert(devices_.end(), options_.peers.begin(), options_.peers.end());
  BATON_CHECK(devices_.size() == 1 || devices_.size() == options_.num_ranks,
              "{} devices for {} ranks", devices_.size(), options_.num_ranks);
  BATON_RETURN_IF_ERROR(WithPrefix(CheckRankCount(config, options_.num_ranks),
                                   fmt::format("--tensor-parallel {}", options_.num_ranks)));
  BATON_RETURN_IF_ERROR(CheckDeviceShape(ConfigOfRank(config, options_.num_ranks),
                                         DeviceKindName(options_.device->kind())));
  BATON_ASSIGN_OR_RETURN(options_.max_context, ContextFor(config, options_.max_context));
  layout_ = KvLayoutOf(config, options_.kv_dtype, options_.block_size);
  state_map_ = StateMapOf(config);
  if (options_.kv_dtype == KvDtype::kFp8) return CheckRowsForFp8(config);
  if (options_.kv_dtype != KvDtype::kBf16) {
    return Unimplemented("KV dtype {}: device {} stores K and V in bf16 or fp8",
                         KvDtypeName(options_.kv_dtype), DeviceKindName(options_.device->kind()));
  }
  layout_.encoding = KvEncoding::kPlain;
  return OkStatus();
}

Status DeviceModel::AskForWgmma() {
  if (options_.allows_wgmma.has_value() && options_.attends_by_wgmma.has_value()) return OkStatus();
  bool products = true;
  bool attention = true;
  for (Accelerator* const device : devices_) {
    device->MakeCurrent();
    BATON_ASSIGN_OR_RETURN(const bool multiplies, cuda::CheckWgmma(*options_.kernels, *device));
    BATON_ASSIGN_OR_RETURN(const bool attends,
                           cuda::CheckWgmmaAttention(*options_.kernels, *device, config_.head_dim,
                                                     ElementOf(layout_)));
    products = products && multiplies;
    // A bit that a sum's start from zero decides shows in products, hardly ever after a softmax.
    attention = attention && attends && multiplies;
  }
  if (!options_.allows_wgmma.has_value()) options_.allows_wgmma = products;
  if (!options_.attends_by_wgmma.has_value()) options_.attends_by_wgmma = attention;
  return OkStatus();
}

// Ranks stay with our own kernels: one of the library that is loaded at its first launch, in the
// middle of a step, could wait for ranks that wait for this one. So do mixtures of experts, whose
// products are mostly grouped ones, and whose logits have no bound where another expert is chosen.
FastMode DeviceModel::FastModeOfModel() const {
  const bool has_fast_mode = options_.num_ranks == 1 && !config_.traits->experts;
  if (options_.fast.library == nullptr || has_fast_mode) return options_.fast;
  BATON_LOG_INFO("all products are by our own kernels: a model {} has no fast mode",
                 config_.traits->experts ? "with experts" : "of several ranks");
  return {};
}

Status DeviceModel::Complete(const std::string& weights_id) {
  BATON_RETURN_IF_ERROR(AskForWgmma());
  const FastMode fast = FastModeOfModel();
  for (uint32_t index = 0; index < options_.num_ranks; ++index) {
    const ModelRank rank = {index, options_.num_ranks};
    Accelerator* const device = DeviceOfRank(index);
    device->MakeCurrent();
    const bool has_prefill = options_.kernels->has_prefill(config_.head_dim, ElementOf(layout_));
    const bool has_spread = options_.kernels->has_spread(config_.head_dim, ElementOf(layout_));
    BATON_ASSIGN_OR_RETURN(auto made,
                           DeviceRank::Create({.device = device,
                                               .kernels = options_.kernels,
                                               .config = ConfigOfRank(config_, options_.num_ranks),
                                               .layout = RankLayout(layout_, options_.num_ranks),
                                               .rank = rank,
                                               .logits = LogitsOfRank(config_, rank),
                                               .batch = {.max_rows = options_.max_rows,
                                                         .max_logit_rows = options_.max_logit_rows,
                                                         .max_context = options_.max_context,
                                                         .block_size = options_.block_size,
                                                         .has_prefill = has_prefill,
                                                         .has_spread = has_spread,
                                                         .state_blocks = layout_.state_blocks},
                                               .rope_factors = rope_factors_,
                                               .allows_wgmma = *options_.allows_wgmma,
                                               .attends_by_wgmma = *options_.attends_by_wgmma,
                                               .fast = fast},
                                              weights_[index]));
    ranks_.push_back(std::move(made));
  }
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    for (Accelerator* const device : devices_) {
      device->MakeCurrent();
      BATON_ASSIGN_OR_RETURN(DeviceEvent stored, DeviceEvent::Create(device));
      stored_.push_back(std::move(stored));
    }
  }
  BATON_RETURN_IF_ERROR(WaitForAll());
  weights_id_ = weights_id;
  numerics_text_ =
      NumericsText({.weights_id = weights_id_,
                    .tokenizer_id = options_.tokenizer_id,
                    .arithmetic = options_.device->arithmetic(),
                    .kv_dtype = options_.kv_dtype,
                    .config = &config_,
                    .num_ranks = options_.num_ranks,
                    .fast = is_deterministic() ? "" : ranks_[0]->fast()->NumericsText()});
  numerics_id_ = NumericsId(numerics_text_);
  return OkStatus();
}

Accelerator* DeviceModel::DeviceOfRank(uint32_t rank) const {
  return devices_[DeviceIdxOfRank(rank)];
}

bool DeviceModel::is_deterministic() const { return ranks_[0]->fast() == nullptr; }
std::string_view DeviceModel::arithmetic_name() const { return options_.device->arithmetic(); }
uint32_t DeviceModel::KernelsAStep(const ModelConfig& config, StepKernels kernels) {
  // A layer: two norms, four products, rope, attention, gate; with experts also the router's
  // product, the choice, the sort and the sum. A convolution is one kernel in place of rope and
  // attention, a net three, and it has one product more. A gate of the output is a product more,
  // and one kernel of attention. Around them: two gathers, the last norm, the output layer.
  const bool has_norms = kernels == StepKernels::kWithNorms;
  uint32_t total = has_norms ? 5 : 4;  // the first norm too
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const bool has_experts = config.num_experts > 0 && layer >= config.num_dense_layers;
    const bool is_attention = config.IsAttention(layer);
    const uint32_t num_gates = config.traits->output_gate ? 2 : 0;
    const uint32_t mixer = config.IsDelta(layer) ? 7 : is_attention ? 4 + num_gates : 3;
    total += (has_norms ? 0 : 2) + mixer + (has_experts ? 7 : 3);
    if (kernels == StepKernels::kApart) continue;
    // The product of q, k and v ends with rope, that of gates and ups with the gate.
    total -= (is_attention ? 1 : 0) + (has_experts ? 0 : 1);
  }
  return total;
}
size_t DeviceModel::weight_bytes() const {
  size_t total = 0;
  for (const auto& weights : weights_) total += weights->bytes();
  return total;
}
size_t DeviceModel::packed_bytes() const {
  size_t total = 0;
  for (const auto& weights : weights_) total += weights->packed_bytes();
  return total;
}
bool DeviceModel::HasPackable(const GgufFile& file) {
  return std::any_of(file.tensors().begin(), file.tensors().end(), [](const GgufTensor& tensor) {
    return tensor.type->support == GgufTypeSupport::kSupported &&
           PackedFormatOf(tensor) != cuda::PackedFormat::kBf16;
  });
}
size_t DeviceModel::bytes_read_per_step() const {
  // Only the batch's rows of the embedding are read, unless the embedding is the output matrix too.
  const bool reads_embedding = config_.tied_output && options_.num_ranks == 1;
  size_t total = 0;
  size_t of_all_experts = 0;
  for (const auto& weights : weights_) {
    total += weights->bytes() - (reads_embedding ? 0 : weights->token_embd.size_bytes());
    for (uint32_t i = config_.num_dense_layers; i < config_.num_layers; ++i) {
      const DeviceLayer& layer = weights->layers[i];
      of_all_experts += layer.gate_up.size_bytes() + layer.down.size_bytes();
    }
  }
  if (!config_.traits->experts) return total;
  const size_t num_unused = config_.num_experts - config_.num_experts_used;
  return total - of_all_experts / config_.num_experts * num_unused;
}

template <typename Call>
Status DeviceModel::ForEachRank(const Call& call) const {
  for (const auto& rank : ranks_) {
    if (devices_.size() > 1) rank->device()->MakeCurrent();
    BATON_RETURN_IF_ERROR(call(*rank));
  }
  return OkStatus();
}

Status DeviceModel::WaitForAll() const {
  Status first;
  for (Accelerator* const device : devices_) {
    device->MakeCurrent();
    first.Update(device->Wait());
  }
  return first;
}

Status DeviceModel::CheckRanksOf(const KvView& kv) const {
  const size_t wanted = options_.num_ranks == 1 ? 0 : options_.num_ranks;
  if (kv.ranks.size() == wanted) return OkStatus();
  return InvalidArgument("the KV view has blocks of {} ranks, the model has {}",
                         std::max<size_t>(kv.ranks.size(), 1), options_.num_ranks);
}

Status DeviceModel::Forward(const ModelBatch& batch, const KvView& kv, LayerHook* hook,
                            std::span<float> logits) {
  BATON_CHECK(num_begun_ == 0, "{} steps were begun and have not ended", num_begun_);
  BATON_RETURN_IF_ERROR(CheckBatch(batch, kv,
                                   {&layout_, options_.max_rows, options_.max_context,
                                    config_.vocab_size, 0, config_.hidden_size},
                                   logits.size()));
  if (batch.logit_rows.size() > options_.max_logit_rows) {
    return InvalidArgument("logits of {} rows are wanted, the model was loaded for {}",
                           batch.logit_rows.size(), options_.max_logit_rows);
  }
  BATON_RETURN_IF_ERROR(CheckRanksOf(kv));
  for (StateCopy& copy : batch.state_copies) copy.has_numbers = false;
  BATON_RETURN_IF_ERROR(PutStep(batch, kv, hook));
  if (batch.logit_rows.empty()) {
    BATON_RETURN_IF_ERROR(WaitForAll());
    return ranks_[0]->TakeCopies(batch.state_copies);
  }
  // Every rank came to the exchange of logits, so its copy is done too.
  options_.device->MakeCurrent();
  BATON_RETURN_IF_ERROR(ranks_[0]->TakeAnswers(batch, logits));
  BATON_RETURN_IF_ERROR(ranks_[0]->TakeCopies(batch.state_copies));
  return batch.hidden.empty() ? OkStatus() : ranks_[0]->TakeHidden(batch.hidden);
}

std::optional<uint32_t> DeviceModel::BrokenStateLayer(std::span<const uint32_t> state,
                                                      const KvView& kv) const {
  options_.device->MakeCurrent();
  std::vector<std::byte> part(layout_.SliceBytes());
  for (uint32_t layer = 0; layer < config_.num_layers && !state.empty(); ++layer) {
    if (!config_.IsDelta(layer)) continue;
    const StateBytes bytes = BytesOf(state_map_.places[layer], config_);
    bool has_numbers = true;
    ForEachPart(layout_, bytes, [&](uint32_t block, size_t within, size_t size) {
      const std::byte* from = kv.Piece(state[block], bytes.slice, 0, 0) + within;
      // A device that fails here has failed the request already.
      const bool is_copied =
          options_.device->CopyOut(part.data(), from, size).ok() && options_.device->Wait().ok();
      has_numbers = has_numbers && (!is_copied || HasNumbers(part.data(), size));
    });
    if (!has_numbers) return layer;
  }
  return std::nullopt;
}

Status DeviceModel::PutStep(const ModelBatch& batch, const KvView& kv, LayerHook* hook) {
  options_.device->MakeCurrent();
  num_noted_ = 0;
  num_told_ = 0;
  num_told_slices_ = 0;
  const uint32_t padded_rows = PaddedRows(batch, kv, hook);
  Status launched =
      ForEachRank([&](const DeviceRank& rank) { return rank.batch().Set(batch, padded_rows); });
  if (launched.ok()) {
    launched =
        padded_rows > 0 ? LaunchRecorded(padded_rows) : LaunchStep(kv, hook, batch.wants_tokens());
  }
  if (launched.ok() && hook != nullptr) launched = TellStored(hook, /*waits=*/true);
  // For the copies of the batch, whose source a later one takes.
  if (!launched.ok()) (void)WaitForAll();
  return launched;
}

Status DeviceModel::NoteStored() {
  for (size_t i = 0; i < devices_.size(); ++i) {
    devices_[i]->MakeCurrent();
    BATON_RETURN_IF_ERROR(stored_[num_noted_ * devices_.size() + i].Record(devices_[i]->stream()));
  }
  ++num_noted_;
  return OkStatus();
}

Status DeviceModel::TellStored(LayerHook* hook, bool waits) {
  for (; num_told_ < num_noted_; ++num_told_) {
    for (size_t i = 0; i < devices_.size(); ++i) {
      const DeviceEvent& stored = stored_[num_told_ * devices_.size() + i];
      devices_[i]->MakeCurrent();
      if (waits) {
        BATON_RETURN_IF_ERROR(stored.Wait());
        continue;
      }
      BATON_ASSIGN_OR_RETURN(const bool is_done, stored.Query());
      if (!is_done) return OkStatus();
    }
    const uint32_t end = state_map_.num_stored[num_told_];
    for (; num_told_slices_ < end; ++num_told_slices_) hook->OnLayerStored(num_told_slices_);
  }
  options_.device->MakeCurrent();
  return OkStatus();
}

Status DeviceModel::LaunchStep(const KvView& kv, LayerHook* hook, bool wants_tokens) {
  const uint32_t num_logit_rows = ranks_[0]->batch().num_logit_rows();
  const auto kv_of = [&kv](const DeviceRank& rank) { return kv.BaseOfRank(rank.index()); };
  const uint32_t* const fed = overlaps_steps() ? ranks_[0]->tokens() : nullptr;
  BATON_RETURN_IF_ERROR(ForEachRank([fed](DeviceRank& rank) { return rank.EmbedTokens(fed); }));
  BATON_RETURN_IF_ERROR(
      ForEachRank([&](DeviceRank& rank) { return rank.ClearStates(kv_of(rank)); }));
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    BATON_RETURN_IF_ERROR(
        ForEachRank([&](DeviceRank& rank) { return rank.StoreKv(layer, kv_of(rank)); }));
    if (hook != nullptr) {
      BATON_RETURN_IF_ERROR(NoteStored());
      BATON_RETURN_IF_ERROR(TellStored(hook, /*waits=*/false));
    }
    if (layer + 1 == config_.num_layers && num_logit_rows == 0) return OkStatus();
    BATON_RETURN_IF_ERROR(
        ForEachRank([&](DeviceRank& rank) { return rank.Attend(layer, kv_of(rank)); }));
    BATON_RETURN_IF_ERROR(AddPartialSums(PartialSum::kAttention));
    BATON_RETURN_IF_ERROR(
        ForEachRank([layer](DeviceRank& rank) { return rank.FeedForward(layer); }));
    BATON_RETURN_IF_ERROR(AddPartialSums(PartialSum::kFeedForward));
  }
  BATON_RETURN_IF_ERROR(ForEachRank([](DeviceRank& rank) { return rank.ComputeLogits(); }));
  BATON_RETURN_IF_ERROR(GatherLogits());
  options_.device->MakeCurrent();
  return wants_tokens ? ranks_[0]->ChooseTokens() : OkStatus();
}

template <typename Launch>
Status DeviceModel::Exchange(const Launch& launch) const {
  cuda::ExchangeRanks ranks = {.num_ranks = options_.num_ranks,
                               .first_rank = 0,
                               .num_here = devices_.size() == 1 ? options_.num_ranks : 1,
                               .flags = {}};
  for (const auto& rank : ranks_) ranks.flags[rank->index()] = rank->flags();
  const LaunchGate::Launch held(options_.gate);
  for (Accelerator* const device : devices_) {
    if (devices_.size() > 1) device->MakeCurrent();
    BATON_RETURN_IF_ERROR(launch(ranks, device->stream()));
    ++ranks.first_rank;
  }
  return OkStatus();
}

Status DeviceModel::AddPartialSums(PartialSum which) const {
  if (ranks_.size() == 1) return OkStatus();
  cuda::AllReduceParams params = {
      .ranks = {},
      .parts = {},
      .outs = {},
      .num_elements = size_t{ranks_[0]->batch().num_rows()} * config_.hidden_size};
  for (const auto& rank : ranks_) {
    params.parts[rank->index()] = rank->partial_sum(which);
    params.outs[rank->index()] = rank->added();
  }
  return Exchange([&](const cuda::ExchangeRanks& ranks, void* stream) {
    params.ranks = ranks;
    return options_.kernels->all_reduce(params, stream);
  });
}

Status DeviceModel::GatherLogits() const {
  if (ranks_.size() == 1) return OkStatus();
  cuda::GatherColumnsParams params = {
      .ranks = {},
      .parts = {},
      .out = ranks_[0]->logits(),
      .num_rows = ranks_[0]->batch().num_logit_rows(),
      .num_columns = config_.vocab_size,
      .rank_columns = static_cast<uint32_t>(LogitsOfRank(config_, {0, options_.num_ranks}).count)};
  for (const auto& rank : ranks_) params.parts[rank->index()] = rank->logit_columns();
  return Exchange([&](const cuda::ExchangeRanks& ranks, void* stream) {
    params.ranks = ranks;
    return options_.kernels->gather_columns(params, stream);
  });
}

}  // namespace baton::model
