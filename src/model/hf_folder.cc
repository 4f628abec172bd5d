#include "src/model/hf_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "kernels/fp8_rows.h"
#include "kernels/math.h"
#include "src/base/byte_text.h"
#include "src/base/log.h"
#include "src/base/quoted_text.h"
#include "src/device/aligned_buffer.h"
#include "src/model/delta_config.h"
#include "src/model/folder_error.h"
#include "src/model/hf_biases.h"
#include "src/model/hf_config.h"
#include "src/model/hf_deepseek.h"
#include "src/model/hf_expert_form.h"
#include "src/model/hf_fp8.h"
#include "src/model/hf_mamba.h"
#include "src/model/hf_packed_modules.h"
#include "src/model/hf_pooling.h"
#include "src/model/hf_shards.h"
#include "src/model/hf_tensors.h"
#include "src/model/open_hint.h"
#include "src/model/rope_scaling.h"
#include "src/model/safetensors.h"

namespace baton::model {

using device::AlignedBuffer;
using kernels::Bf16FromFloat;
using kernels::Fp8Rows;

namespace {

constexpr const char* kConfigName = "config.json";
constexpr const char* kQuantConfigName = "hf_quant_config.json";

// Everything that the tensors of the result point into.
struct FolderStorage {
  std::vector<std::shared_ptr<SafetensorsFile>> files;
  std::deque<std::string> names;
  std::deque<AlignedBuffer> copies;  // until Memory
  std::deque<Fp8Scales> scales;
  std::deque<GgufTensorType> types;  // with those scales, or of NVFP4

  // The mappings and the copies, each with an owner of its own, so that one can be kept alone.
  std::vector<GgufMemory> Memory() {
    std::vector<GgufMemory> out;
    for (const auto& file : files) {
      out.push_back({file->mapping().bytes(), file, /*is_mapping=*/true});
    }
    for (AlignedBuffer& copy : copies) {
      const auto owner = std::make_shared<const AlignedBuffer>(std::move(copy));
      out.push_back({{owner->data(), owner->size()}, owner, /*is_mapping=*/false});
    }
    copies.clear();
    return out;
  }
};

// Gives the tensors their GGUF names, order and types.
class TensorConverter {
 public:
  TensorConverter(const HfConfig& config, FolderStorage& storage)
      : config_(config), storage_(storage) {
    for (const auto& file : storage_.files) {
      for (const SafetensorsTensor& tensor : file->tensors()) Take(tensor);
    }
  }

  absl::StatusOr<std::vector<GgufTensor>> Convert() {
    BATON_RETURN_IF_ERROR(packed_.Join(WithTextNames(config_.quantization), taken_));
    by_name_ = taken_;
    std::sort(by_name_.begin(), by_name_.end(),
              [](const auto* a, const auto* b) { return a->name < b->name; });
    BATON_RETURN_IF_ERROR(CheckPrefix());
    BATON_RETURN_IF_ERROR(CheckTied());
    for (const SafetensorsTensor* tensor : taken_) BATON_RETURN_IF_ERROR(Add(*tensor));
    for (auto& [name, experts] : experts_) BATON_RETURN_IF_ERROR(Stack(name, experts));
    BATON_RETURN_IF_ERROR(CheckHfBiasesAreThere(config_, tensors_));
    for (const HfZeroBias& bias : HfZeroBiasesOf(config_, tensors_)) {
      BATON_RETURN_IF_ERROR(
          AddVector(storage_.names.emplace_back(bias.name), std::vector<float>(bias.size)));
    }
    if (!config_.rope_factors.empty()) {
      const bool is_short = !config_.long_factors.empty();
      BATON_RETURN_IF_ERROR(
          AddVector(is_short ? kShortFactorsName : "rope_freqs.weight", config_.rope_factors));
    }
    if (!config_.long_factors.empty()) {
      BATON_RETURN_IF_ERROR(AddVector(kLongFactorsName, config_.long_factors));
    }
    if (num_unused_scales_ > 0) {
      BATON_LOG_INFO(
          "{} scales of activations or KV are not used: activations are not quantised, KV in fp8 "
          "has scales of its own",
          num_unused_scales_);
    }
    if (num_of_predictions_ > 0) {
      BATON_LOG_INFO(
          "{} tensors of layers from {} to {} are left out: they predict tokens further ahead",
          num_of_predictions_, config_.prediction_layers.begin, config_.prediction_layers.end - 1);
    }
    if (num_of_images_ > 0) {
      BATON_LOG_INFO("{} tensors of the image part are left out: only text is read",
                     num_of_images_);
    }
    return std::move(tensors_);
  }

  // The line for people that says what packed matrices became; empty without them.
  std::string PackedSummary() const { return packed_.Summary(); }
  // Layers that predict several tokens; known from the start.
  uint32_t num_predicting() const { return num_predicting_; }

 private:
  // Tensors of a model that reads images too get the names of a text model, those that predict
  // several tokens the names of layers.
  void Take(const SafetensorsTensor& tensor) {
    if (IsPredictionTensor(tensor.name, config_.prediction_layers)) {
      ++num_of_predictions_;
      return;
    }
    std::string name = TextName(tensor.name, &num_predicting_);
    if (name == tensor.name) {
      taken_.push_back(&tensor);
      return;
    }
    num_of_images_ += name.empty() ? 1 : 0;
    if (name.empty()) return;
    SafetensorsTensor& renamed = renamed_.emplace_back(tensor);
    renamed.name = std::move(name);
    taken_.push_back(&renamed);
  }

  // The name that a text model has for a tensor; empty for a tensor of images. Raises
  // `num_predicting` to the layers of prediction that the name tells of.
  std::string TextName(std::string_view name, uint32_t* num_predicting) const {
    std::string out = config_.has_images ? TextNameOfHfTensor(name) : std::string(name);
    if (config_.traits->delta_nets) {
      out = NameOfPrediction(out, config_.num_layers, num_predicting);
    }
    if (config_.traits->mamba) out = NameOfBackbone(out);
    return out;
  }

  // quantization_config names modules as the folder does: here they get the names of taken_ too.
  HfQuantization WithTextNames(const HfQuantization& quantization) const {
    uint32_t num_predicting = 0;  // names of modules tell of no layer that is there
    return WithNames(quantization,
                     [&](std::string_view name) { return TextName(name, &num_predicting); });
  }

  // A base model (LlamaModel ...) has neither the prefix nor a head.
  absl::Status CheckPrefix() const {
    if (Find("model.embed_tokens.weight") != nullptr || Find("embed_tokens.weight") == nullptr) {
      return OkStatus();
    }
    return TensorError(FolderErrorCode::kUnknownTensor, "embed_tokens.weight",
                       "the names have no prefix \"model.\", as a base model without a head is "
                       "saved; save it as its ForCausalLM class");
  }

  const SafetensorsTensor* Find(std::string_view name) const {
    const auto it = std::lower_bound(
        by_name_.begin(), by_name_.end(), name,
        [](const SafetensorsTensor* tensor, std::string_view key) { return tensor->name < key; });
    return it == by_name_.end() || (*it)->name != name ? nullptr : *it;
  }

  // With tie_word_embeddings there is no other lm_head than the embedding; without it there must
  // be.
  absl::Status CheckTied() const {
    const SafetensorsTensor* head = Find("lm_head.weight");
    if (!config_.tied && head == nullptr) {
      return FolderError(
          FolderErrorCode::kTiedMismatch,
          fmt::format(
              "config.json {} tie_word_embeddings false, and there is no lm_head.weight; where "
              "the head is the embedding, \"tie_word_embeddings\" is true",
              config_.says_tied ? "says" : "leaves it at"));
    }
    if (!config_.tied || head == nullptr) return OkStatus();
    const bool is_packed = packed_.Find(*head) != nullptr;
    if (is_packed || head->type == SafetensorsType::kF8E4M3) {
      return FolderError(
          FolderErrorCode::kTiedMismatch,
          fmt::format("config.json says tie_word_embeddings true, but lm_head.weight is {}",
                      is_packed ? "packed" : "F8_E4M3"));
    }
    const SafetensorsTensor* embedding = Find("model.embed_tokens.weight");
    const bool same = embedding != nullptr && embedding->type == head->type &&
                      embedding->shape == head->shape &&
                      std::equal(head->data.begin(), head->data.end(), embedding->data.begin(),
                                 embedding->data.end());
    if (same) return OkStatus();
    return FolderError(FolderErrorCode::kTiedMismatch,
                       "config.json says tie_word_embeddings true, but lm_head.weight is not "
                       "model.embed_tokens.weight");
  }

  // The dimensions that the tensor has in GGUF, slowest first.
  absl::StatusOr<std::vector<uint64_t>> ShapeOf(const SafetensorsTensor& tensor,
                                                const HfTensorPlan& plan) const {
    std::vector<uint64_t> shape = tensor.shape;
    if (plan.is_conv && shape.size() == 3 && shape[1] == 1) shape.erase(shape.begin() + 1);
    if (plan.is_row && shape.size() == 2 && shape[0] == 1) shape.erase(shape.begin());
    if (plan.is_column && shape.size() == 1) shape.push_back(1);
    if (plan.is_grouped && shape.size() == 1) {
      const uint64_t groups = config_.delta.num_k_heads;
      if (shape[0] % groups != 0) {
        return TensorError(FolderErrorCode::kBadShape, tensor.name,
                           fmt::format("{} elements for {} groups", shape[0], groups));
      }
      shape = {groups, shape[0] / groups};
    }
    if (shape.size() == 1 || shape.size() == 2) return shape;
    return TensorError(FolderErrorCode::kBadShape, tensor.name,
                       fmt::format("{} dimensions", tensor.shape.size()));
  }

  absl::Status Add(const SafetensorsTensor& tensor) {
    if (config_.tied && tensor.name == "lm_head.weight") return OkStatus();
    if (const std::string_view weight = WeightOfHfScale(tensor.name); !weight.empty()) {
      const SafetensorsTensor* scaled = Find(weight);
      if (scaled != nullptr && scaled->type == SafetensorsType::kF8E4M3) return OkStatus();
      return TensorError(FolderErrorCode::kBadScale, tensor.name,
                         fmt::format("there is no F8_E4M3 tensor {}", QuotedForMessage(weight)));
    }
    const std::optional<HfTensorPlan> plan =
        PlanHfTensor(*config_.traits, tensor.name, tensor.shape.size());
    if (!plan.has_value()) {
      return TensorError(
          FolderErrorCode::kUnknownTensor, tensor.name,
          fmt::format("not part of a {} model that is supported", config_.traits->hf_type));
    }
    if (plan->gguf_name.empty()) {
      num_unused_scales_ += IsHfActivationScale(tensor.name) ? 1 : 0;
      return OkStatus();
    }
    if (plan->expert_form != HfExpertForm::kNone) return AddExpertForm(tensor, *plan);
    const HfPackedMatrix* packed = packed_.Find(tensor);
    if (packed == nullptr && !IsFloat(tensor.type) && tensor.type != SafetensorsType::kF8E4M3) {
      return TensorError(FolderErrorCode::kBadDtype, tensor.name,
                         fmt::format("{} is read in parts of packed matrices and of MXFP4 experts "
                                     "alone",
                                     SafetensorsTypeName(tensor.type)));
    }
    if (plan->all_experts) return AddAllExperts(tensor, *plan);
    if (plan->is_kv_b) return AddKvB(tensor, packed, *plan);
    BATON_ASSIGN_OR_RETURN(const std::vector<uint64_t> shape, ShapeOf(tensor, *plan));
    if (IsZeroBias(tensor, *plan)) return OkStatus();
    if (plan->expert.has_value()) {
      experts_[plan->gguf_name][*plan->expert] = &tensor;
      return OkStatus();
    }
    if (packed != nullptr) return AddPacked(tensor, *packed, *plan);
    GgufTensor out;
    SetNames(plan->gguf_name, tensor, out);
    BATON_RETURN_IF_ERROR(CheckHfBias(config_, out));
    SetShape(shape, out);
    SetType(plan->as_f32 ? SafetensorsType::kF32 : tensor.type, out);
    out.data = tensor.data;
    if (tensor.type == SafetensorsType::kF8E4M3) {
      if (plan->as_f32) {
        return TensorError(FolderErrorCode::kBadDtype, tensor.name,
                           "vectors and routers are not read in F8_E4M3");
      }
      const SafetensorsTensor* const matrices[] = {&tensor};
      BATON_RETURN_IF_ERROR(AddScales(matrices, out));
    }
    if (plan->as_f32 && (tensor.type != SafetensorsType::kF32 || plan->plus_one)) {
      BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy,
                             NewCopy(tensor.data.size() / BytesOf(tensor.type) * sizeof(float)));
      ToF32(tensor.type, tensor.data, plan->plus_one ? 1.0f : 0.0f,
            reinterpret_cast<float*>(copy->data()));
      out.data = {copy->data(), copy->size()};
    }
    if (plan->permuted_q || plan->permuted_k) {
      const uint32_t heads = plan->permuted_q ? config_.num_heads : config_.num_kv_heads;
      BATON_RETURN_IF_ERROR(Permute(tensor, heads, out));
    }
    if (plan->is_log) BATON_RETURN_IF_ERROR(MakeRates(out));
    if (NeedsTiles(*plan)) BATON_RETURN_IF_ERROR(TileHeads(tensor, plan->v_heads, out));
    tensors_.push_back(out);
    return OkStatus();
  }

  // A packed matrix, in the blocks that hold its weights.
  absl::Status AddPacked(const SafetensorsTensor& tensor, const HfPackedMatrix& matrix,
                         const HfTensorPlan& plan) {
    if (plan.as_f32) {
      return TensorError(FolderErrorCode::kBadDtype, tensor.name,
                         "routers and taps of convolutions are not read packed");
    }
    BATON_ASSIGN_OR_RETURN(AlignedBuffer rows,
                           AlignedBuffer::Allocate(matrix.n * matrix.RowBytes(matrix.type)));
    BATON_RETURN_IF_ERROR(RepackHfMatrix(matrix, matrix.type, rows.data()));
    packed_.Count(matrix, matrix.type);
    GgufTensor out;
    SetNames(plan.gguf_name, tensor, out);
    SetShape(tensor.shape, out);
    out.type = TypeRowOf(matrix, matrix.type);
    out.data = {rows.data(), rows.size()};
    if (plan.permuted_q || plan.permuted_k) {
      BATON_RETURN_IF_ERROR(
          Permute(tensor, plan.permuted_q ? config_.num_heads : config_.num_kv_heads, out));
    } else if (NeedsTiles(plan)) {
      BATON_RETURN_IF_ERROR(TileHeads(tensor, plan.v_heads, out));
    } else {
      storage_.copies.push_back(std::move(rows));
    }
    tensors_.push_back(out);
    return OkStatus();
  }

  // AutoGPTQ gave each module a bias, of zeros where the model has none.
  bool IsZeroBias(const SafetensorsTensor& tensor, const HfTensorPlan& plan) const {
    constexpr std::string_view kBias = ".bias";
    const bool is_bias = tensor.name.ends_with(kBias);
    if (!is_bias || config_.quantization.method != HfQuantMethod::kGptq) return false;
    const std::string_view module(tensor.name.data(), tensor.name.size() - kBias.size());
    if (!packed_.HasModule(module) || WantsHfBias(config_, plan.gguf_name)) return false;
    return std::ranges::all_of(tensor.data, [](std::byte byte) { return byte == std::byte{0}; });
  }

  // A vector x of F32 becomes -e^x.
  absl::Status MakeRates(GgufTensor& out) {
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(out.data.size()));
    auto* rates = reinterpret_cast<float*>(copy->data());
    std::copy(out.data.begin(), out.data.end(), copy->data());
    for (size_t i = 0; i < copy->size() / sizeof(float); ++i) {
      rates[i] = static_cast<float>(-std::exp(static_cast<double>(rates[i])));
    }
    out.data = {copy->data(), copy->size()};
    return OkStatus();
  }

  // With one head of k for each of v both orders of heads are one.
  bool NeedsTiles(const HfTensorPlan& plan) const {
    return plan.v_heads != HfVHeads::kNone && config_.delta.num_k_heads < config_.delta.num_v_heads;
  }

  absl::Status TileHeads(const SafetensorsTensor& tensor, HfVHeads form, GgufTensor& out) {
    const uint64_t num_rows = tensor.shape[0];
    if (form == HfVHeads::kColumns && config_.delta.v_dim % out.type->block_elements != 0) {
      return TensorError(FolderErrorCode::kBadShape, tensor.name,
                         fmt::format("heads of {} columns in blocks of {} elements",
                                     config_.delta.v_dim, out.type->block_elements));
    }
    const auto tiled =
        [&](std::span<const std::byte> in) -> absl::StatusOr<std::span<const std::byte>> {
      BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(in.size()));
      const absl::Status status = TileVHeads(config_.delta, form, num_rows, in, copy->data());
      if (!status.ok()) {
        return TensorError(FolderErrorCode::kBadShape, tensor.name, std::string(status.message()));
      }
      return std::span<const std::byte>(copy->data(), copy->size());
    };
    BATON_ASSIGN_OR_RETURN(out.data, tiled(out.data));
    if (out.fp8() == nullptr) return OkStatus();
    Fp8Scales& scales = storage_.scales.back();
    const uint64_t num_groups = scales.values.size() / num_rows;
    if (form == HfVHeads::kColumns && num_groups % config_.delta.num_v_heads != 0) {
      return TensorError(
          FolderErrorCode::kBadScale, tensor.name,
          fmt::format("{} scales a row for {} heads of v", num_groups, config_.delta.num_v_heads));
    }
    BATON_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                           tiled(std::as_bytes(scales.values)));
    scales.values = {reinterpret_cast<const float*>(bytes.data()), scales.values.size()};
    return OkStatus();
  }

  // One tensor [experts, rows, columns]; with a second name its upper rows are one matrix of an
  // expert and its lower rows another.
  absl::Status AddAllExperts(const SafetensorsTensor& tensor, const HfTensorPlan& plan) {
    const size_t num_parts = plan.second_gguf_name.empty() ? 1 : 2;
    const std::vector<uint64_t>& shape = tensor.shape;
    if (shape.size() != 3 || shape[0] != config_.num_experts || shape[1] % num_parts != 0) {
      return TensorError(
          FolderErrorCode::kBadShape, tensor.name,
          fmt::format("[{}], a model of {} experts needs three dimensions, the "
                      "first of them {}, and the second even where two are joined",
                      fmt::join(shape, ", "), config_.num_experts, config_.num_experts));
    }
    if (tensor.type == SafetensorsType::kF8E4M3) {
      return TensorError(FolderErrorCode::kBadDtype, tensor.name,
                         "joined experts are not read in F8_E4M3");
    }
    for (size_t part = 0; part < num_parts; ++part) {
      GgufTensor out;
      SetNames(part == 0 ? plan.gguf_name : plan.second_gguf_name, tensor, out);
      SetShape({shape[0], shape[1] / num_parts, shape[2]}, out);
      SetType(tensor.type, out);
      out.data = tensor.data;
      if (num_parts == 2) {
        BATON_ASSIGN_OR_RETURN(out.data, HalvesOf(tensor, part));
      }
      tensors_.push_back(out);
    }
    return OkStatus();
  }

  // kv_b_proj as the two tensors of GGUF. Half of its rows are transposed, and no block lies along
  // a column: one in fp8 becomes bf16, as any other does where it is computed, and a packed one
  // the type of its scales.
  absl::Status AddKvB(const SafetensorsTensor& tensor, const HfPackedMatrix* packed,
                      const HfTensorPlan& plan) {
    const HfLatentShape& shape = config_.latent;
    const std::vector<uint64_t> wanted = {uint64_t{shape.heads} * (shape.nope + shape.value),
                                          shape.latent};
    if (tensor.shape != wanted) {
      return TensorError(FolderErrorCode::kBadShape, tensor.name,
                         fmt::format("[{}], config.json makes it [{}]",
                                     fmt::join(tensor.shape, ", "), fmt::join(wanted, ", ")));
    }
    std::span<const std::byte> data = tensor.data;
    SafetensorsType type = tensor.type;
    if (type == SafetensorsType::kF8E4M3) {
      BATON_ASSIGN_OR_RETURN(data, Bf16OfFp8(tensor));
      type = SafetensorsType::kBf16;
    } else if (packed != nullptr) {
      const GgmlType wide = packed->wide_type;
      BATON_ASSIGN_OR_RETURN(AlignedBuffer * rows, NewCopy(packed->n * packed->RowBytes(wide)));
      BATON_RETURN_IF_ERROR(RepackHfMatrix(*packed, wide, rows->data()));
      packed_.Count(*packed, wide);
      data = {rows->data(), rows->size()};
      type = wide == GgmlType::kF32    ? SafetensorsType::kF32
             : wide == GgmlType::kBf16 ? SafetensorsType::kBf16
                                       : SafetensorsType::kF16;
    }
    GgufTensor k_b;
    GgufTensor v_b;
    SetNames(plan.gguf_name, tensor, k_b);
    SetNames(plan.second_gguf_name, tensor, v_b);
    SetShape({shape.heads, shape.latent, shape.nope}, k_b);
    SetShape({shape.heads, shape.value, shape.latent}, v_b);
    SetType(type, k_b);
    SetType(type, v_b);
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * keys, NewCopy(k_b.num_elements() * BytesOf(type)));
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * values, NewCopy(v_b.num_elements() * BytesOf(type)));
    SplitKvB(shape, BytesOf(type), data, keys->data(), values->data());
    k_b.data = {keys->data(), keys->size()};
    v_b.data = {values->data(), values->size()};
    tensors_.push_back(k_b);
    tensors_.push_back(v_b);
    return OkStatus();
  }

  absl::StatusOr<std::span<const std::byte>> Bf16OfFp8(const SafetensorsTensor& tensor) {
    GgufTensor scaled;
    const SafetensorsTensor* const matrices[] = {&tensor};
    BATON_RETURN_IF_ERROR(AddScales(matrices, scaled));
    const Fp8Rows rows = {.codes = tensor.data,
                          .scales = scaled.fp8()->values,
                          .n = static_cast<uint32_t>(tensor.shape[0]),
                          .k = static_cast<uint32_t>(tensor.shape[1]),
                          .group = scaled.fp8()->group};
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(tensor.data.size() * sizeof(uint16_t)));
    std::vector<float> weights(rows.k);
    auto* out = reinterpret_cast<uint16_t*>(copy->data());
    for (uint32_t row = 0; row < rows.n; ++row) {
      rows.Weights(row, weights.data());
      for (const float weight : weights) *out++ = Bf16FromFloat(weight);
    }
    return std::span<const std::byte>(copy->data(), copy->size());
  }

  // One tensor of all experts of gpt_oss: it becomes the one or two tensors of GGUF.
  absl::Status AddExpertForm(const SafetensorsTensor& tensor, const HfTensorPlan& plan) {
    if (plan.expert_form == HfExpertForm::kMxfp4Scales) return CheckHasBlocks(tensor);
    const SafetensorsTensor* scales = nullptr;
    if (plan.expert_form == HfExpertForm::kMxfp4) scales = Find(HfScalesName(tensor.name));
    const uint32_t num_parts = plan.second_gguf_name.empty() ? 1 : 2;
    BATON_ASSIGN_OR_RETURN(
        const HfExpertShape shape,
        HfExpertShapeOf(plan.expert_form, tensor, scales, {config_.num_experts, num_parts}));
    for (uint32_t part = 0; part < num_parts; ++part) {
      GgufTensor out;
      SetNames(part == 0 ? plan.gguf_name : plan.second_gguf_name, tensor, out);
      BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(shape.PartBytes()));
      if (plan.expert_form == HfExpertForm::kBias) {
        SetShape({shape.experts, shape.n}, out);
        SetType(SafetensorsType::kF32, out);
        CopyExpertBiases(shape, tensor, part, reinterpret_cast<float*>(copy->data()));
      } else {
        SetShape({shape.experts, shape.n, shape.k}, out);
        if (scales == nullptr) {
          SetType(tensor.type, out);
          TransposeExperts(shape, tensor.data, part, copy->data());
        } else {
          out.type = FindGgufTensorType(static_cast<uint32_t>(GgmlType::kMxfp4));
          RepackMxfp4Experts(shape, tensor.data, scales->data, part, copy->data());
        }
      }
      out.data = {copy->data(), copy->size()};
      tensors_.push_back(out);
    }
    return OkStatus();
  }

  absl::Status CheckHasBlocks(const SafetensorsTensor& scales) const {
    const std::string blocks = HfBlocksName(scales.name);
    if (Find(blocks) != nullptr) return OkStatus();
    return TensorError(FolderErrorCode::kBadScale, scales.name,
                       fmt::format("there is no tensor {}", QuotedForMessage(blocks)));
  }

  // The upper (0) or lower (1) half of each of the matrices [n][rows, columns].
  absl::StatusOr<std::span<const std::byte>> HalvesOf(const SafetensorsTensor& tensor,
                                                      size_t half) {
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(tensor.data.size() / 2));
    const size_t half_bytes = tensor.data.size() / tensor.shape[0] / 2;
    std::byte* at = copy->data();
    for (uint64_t i = 0; i < tensor.shape[0]; ++i) {
      const auto from = tensor.data.subspan((2 * i + half) * half_bytes, half_bytes);
      at = std::copy(from.begin(), from.end(), at);
    }
    return std::span<const std::byte>(copy->data(), copy->size());
  }

  // Puts the rows of `out`, which is made of `tensor`, into GGUF's order.
  absl::Status Permute(const SafetensorsTensor& tensor, uint32_t heads, GgufTensor& out) {
    const uint64_t rows = tensor.shape[0];
    if (rows % (uint64_t{heads} * 2) != 0) {
      return TensorError(FolderErrorCode::kBadShape, tensor.name,
                         fmt::format("{} rows for {} heads", rows, heads));
    }
    BATON_ASSIGN_OR_RETURN(out.data, PermutedRows(out.data, rows, heads));
    if (out.fp8() == nullptr) return OkStatus();
    Fp8Scales& scales = storage_.scales.back();
    BATON_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                           PermutedRows(std::as_bytes(scales.values), rows, heads));
    scales.values = {reinterpret_cast<const float*>(bytes.data()), scales.values.size()};
    return OkStatus();
  }

  absl::StatusOr<std::span<const std::byte>> PermutedRows(std::span<const std::byte> in,
                                                          uint64_t rows, uint32_t heads) {
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(in.size()));
    PermuteRows({heads, rows / heads / 2, in.size() / rows}, in, copy->data());
    return std::span<const std::byte>(copy->data(), copy->size());
  }

  // The tensor beside an F8_E4M3 matrix that scales it.
  absl::StatusOr<const SafetensorsTensor*> ScaleOf(const SafetensorsTensor& matrix) const {
    const SafetensorsTensor* plain = Find(matrix.name + "_scale");
    const SafetensorsTensor* inverse = Find(matrix.name + "_scale_inv");
    if ((plain == nullptr) != (inverse == nullptr)) return plain == nullptr ? inverse : plain;
    return TensorError(FolderErrorCode::kBadScale, matrix.name,
                       fmt::format("F8_E4M3 with {} of weight_scale and weight_scale_inv, one is "
                                   "needed",
                                   plain == nullptr ? "none" : "both"));
  }

  // Gives `out` the scales of F8_E4M3 matrices of one shape that lie below one another.
  absl::Status AddScales(std::span<const SafetensorsTensor* const> matrices, GgufTensor& out) {
    BATON_ASSIGN_OR_RETURN(const SafetensorsTensor* first, ScaleOf(*matrices[0]));
    BATON_ASSIGN_OR_RETURN(const HfScaleGrid grid, HfScaleGridOf(*matrices[0], *first));
    const uint64_t n = matrices[0]->shape[0];
    const uint64_t count = n * grid.groups;
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(matrices.size() * count * sizeof(float)));
    auto* at = reinterpret_cast<float*>(copy->data());
    for (const SafetensorsTensor* matrix : matrices) {
      BATON_ASSIGN_OR_RETURN(const SafetensorsTensor* scale, ScaleOf(*matrix));
      BATON_ASSIGN_OR_RETURN(const HfScaleGrid other, HfScaleGridOf(*matrix, *scale));
      if (other.group != grid.group) {
        return TensorError(FolderErrorCode::kBadScale, scale->name,
                           "scales otherwise than the other experts' do");
      }
      BATON_RETURN_IF_ERROR(ReadHfScales(*scale, other, n, at));
      at += count;
    }
    const auto* values = reinterpret_cast<const float*>(copy->data());
    const Fp8Scales scales = {{values, matrices.size() * count}, grid.group};
    out.type = &storage_.types.emplace_back(Fp8TensorType(storage_.scales.emplace_back(scales)));
    return OkStatus();
  }

  using Experts = std::map<uint32_t, const SafetensorsTensor*>;

  // The experts' matrices one after the other.
  absl::Status Stack(const std::string& name, const Experts& experts) {
    const SafetensorsTensor& first = *experts.begin()->second;
    const bool is_packed = packed_.Find(first) != nullptr;
    for (const auto& [expert, tensor] : experts) {
      const bool is_same = tensor->type == first.type && tensor->shape == first.shape &&
                           (packed_.Find(*tensor) != nullptr) == is_packed;
      if (!is_same) {
        return TensorError(FolderErrorCode::kMissingExpert, tensor->name,
                           "another shape or type than the other experts");
      }
    }
    // Keys ascend without repeats, so the last one tells whether all are there.
    if (experts.size() != config_.num_experts ||
        experts.rbegin()->first != config_.num_experts - 1) {
      return TensorError(FolderErrorCode::kMissingExpert, first.name,
                         fmt::format("{} experts up to number {}, config.json says {}",
                                     experts.size(), experts.rbegin()->first, config_.num_experts));
    }
    GgufTensor out;
    SetNames(name, first, out);
    std::vector<uint64_t> shape = first.shape;
    shape.insert(shape.begin(), experts.size());
    SetShape(shape, out);
    if (is_packed) {
      BATON_RETURN_IF_ERROR(StackPacked(experts, out));
      tensors_.push_back(out);
      return OkStatus();
    }
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(first.data.size() * experts.size()));
    std::byte* at = copy->data();
    std::vector<const SafetensorsTensor*> matrices;
    for (const auto& [expert, tensor] : experts) {
      at = std::copy(tensor->data.begin(), tensor->data.end(), at);
      matrices.push_back(tensor);
    }
    SetType(first.type, out);
    if (first.type == SafetensorsType::kF8E4M3) BATON_RETURN_IF_ERROR(AddScales(matrices, out));
    out.data = {copy->data(), copy->size()};
    tensors_.push_back(out);
    return OkStatus();
  }

  // Gives `out` the matrices of packed experts, in a type that holds all of them.
  absl::Status StackPacked(const Experts& experts, GgufTensor& out) {
    const HfPackedMatrix& first = *packed_.Find(*experts.begin()->second);
    GgmlType type = first.type;
    for (const auto& [expert, tensor] : experts) {
      BATON_ASSIGN_OR_RETURN(type, CommonType(first, type, *packed_.Find(*tensor)));
    }
    const uint64_t matrix_bytes = first.n * first.RowBytes(type);
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(matrix_bytes * experts.size()));
    std::byte* at = copy->data();
    for (const auto& [expert, tensor] : experts) {
      BATON_RETURN_IF_ERROR(RepackHfMatrix(*packed_.Find(*tensor), type, at));
      packed_.Count(*packed_.Find(*tensor), type);
      at += matrix_bytes;
    }
    out.type = TypeRowOf(first, type);
    out.data = {copy->data(), copy->size()};
    return OkStatus();
  }

  // The row of a packed matrix's type, with the scale of the whole that NVFP4 has.
  const GgufTensorType* TypeRowOf(const HfPackedMatrix& matrix, GgmlType type) {
    if (type != GgmlType::kNvfp4) return FindGgufTensorType(static_cast<uint32_t>(type));
    return &storage_.types.emplace_back(Nvfp4TensorType(matrix.scale, matrix.divides));
  }

  // A vector that no tensor of the folder holds.
  absl::Status AddVector(std::string_view name, const std::vector<float>& values) {
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(values.size() * sizeof(float)));
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(copy->data()));
    GgufTensor out;
    out.name = name;
    SetShape({values.size()}, out);
    SetType(SafetensorsType::kF32, out);
    out.data = {copy->data(), copy->size()};
    tensors_.push_back(out);
    return OkStatus();
  }

  static void SetShape(const std::vector<uint64_t>& shape, GgufTensor& out) {
    out.num_dims = static_cast<uint32_t>(shape.size());
    std::reverse_copy(shape.begin(), shape.end(), out.dims.begin());
  }

  static void SetType(SafetensorsType type, GgufTensor& out) {
    switch (type) {
      case SafetensorsType::kF32:
        out.type = FindGgufTensorType(static_cast<uint32_t>(GgmlType::kF32));
        break;
      case SafetensorsType::kF16:
        out.type = FindGgufTensorType(static_cast<uint32_t>(GgmlType::kF16));
        break;
      case SafetensorsType::kBf16:
        out.type = FindGgufTensorType(static_cast<uint32_t>(GgmlType::kBf16));
        break;
      case SafetensorsType::kF8E4M3:
      case SafetensorsType::kU8:
      case SafetensorsType::kI8:
      case SafetensorsType::kI32:
      case SafetensorsType::kI64:
      case SafetensorsType::kF8E8M0:
        break;  // by AddScales, AddExpertForm and AddPacked
    }
  }

  void SetNames(const std::string& name, const SafetensorsTensor& tensor, GgufTensor& out) {
    std::string& both = storage_.names.emplace_back(name);
    both += tensor.name;
    out.name = std::string_view(both).substr(0, name.size());
    out.num_folder_name_bytes = static_cast<uint32_t>(tensor.name.size());
  }

  absl::StatusOr<AlignedBuffer*> NewCopy(size_t bytes) {
    BATON_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(bytes));
    return &storage_.copies.emplace_back(std::move(buffer));
  }

  const HfConfig& config_;
  FolderStorage& storage_;
  HfPackedModules packed_;
  std::deque<SafetensorsTensor> renamed_;          // with their names in a text model
  std::vector<const SafetensorsTensor*> taken_;    // of all files, in their order
  std::vector<const SafetensorsTensor*> by_name_;  // the same by ascending name
  size_t num_unused_scales_ = 0;
  size_t num_of_images_ = 0;       // tensors that are not taken
  size_t num_of_predictions_ = 0;  // as num_of_images_
  uint32_t num_predicting_ = 0;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::map<uint32_t, const SafetensorsTensor*>> experts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GgufFile>> OpenHfFolder(const std::string& path) {
  absl::StatusOr<FileMapping> config_file = FileMapping::Open(path + "/" + kConfigName);
  if (!config_file.ok()) return CannotOpenFile(kConfigName, config_file.status());
  BATON_ASSIGN_OR_RETURN(HfConfig config, ReadHfConfig(AsChars(config_file->bytes())));
  if (config.quantization.method == HfQuantMethod::kNone) {
    const auto quant_file = FileMapping::OpenIfThere(path + "/" + kQuantConfigName);
    if (!quant_file.ok()) return CannotOpenFile(kQuantConfigName, quant_file.status());
    if (quant_file->has_value()) {
      BATON_ASSIGN_OR_RETURN(config.quantization,
                             ReadHfQuantConfigFile(AsChars((*quant_file)->bytes())));
    }
  }
  const std::filesystem::path folder = std::filesystem::path(path).lexically_normal();
  const std::filesystem::path name =
      folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  config.keys.AddString("general.name", name.string());
  BATON_ASSIGN_OR_RETURN(const std::optional<Pooling> pooling, ReadHfPooling(path));
  if (pooling.has_value()) {
    config.keys.AddU32(fmt::format("{}.pooling_type", config.traits->name),
                       static_cast<uint32_t>(*pooling));
  }
  const auto storage = std::make_shared<FolderStorage>();
  BATON_ASSIGN_OR_RETURN(auto files, OpenHfShards(path));
  storage->files.assign(std::make_move_iterator(files.begin()),
                        std::make_move_iterator(files.end()));
  GgufAssembly assembly;
  TensorConverter converter(config, *storage);
  BATON_ASSIGN_OR_RETURN(assembly.tensors, converter.Convert());
  if (const std::string summary = converter.PackedSummary(); !summary.empty()) {
    config.keys.AddString(std::string(kPackedMatricesKey), summary);
  }
  if (config.traits->delta_nets) {
    const uint32_t num_predicting = converter.num_predicting();
    const std::string arch(config.traits->name);
    config.keys.AddU32(arch + ".block_count", config.num_layers + num_predicting);
    if (num_predicting > 0) config.keys.AddU32(arch + ".nextn_predict_layers", num_predicting);
    if (!config.delta_layers.empty()) {
      config.delta_layers.resize(config.num_layers + num_predicting, false);
      config.keys.AddBools(fmt::format("{}.{}", arch, kDeltaLayersKey), config.delta_layers);
    }
  }
  for (const auto& file : storage->files) {
    assembly.file_bytes += file->file_bytes();
    assembly.mappings.push_back(&file->mapping());
  }
  assembly.header = config.keys.Header();
  assembly.memory = storage->Memory();
  assembly.storage = storage;
  return GgufFile::FromAssembly(std::move(assembly));
}

absl::StatusOr<std::unique_ptr<GgufFile>> OpenModelFile(const std::string& path) {
  struct stat info {};
  const bool is_folder = ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  absl::StatusOr<std::unique_ptr<GgufFile>> file =
      is_folder ? OpenHfFolder(path) : GgufFile::Open(path);
  return file.ok() ? std::move(file) : WithOpenHint(file.status(), path);
}

}  // namespace baton::model
