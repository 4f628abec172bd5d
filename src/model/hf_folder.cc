#include "src/model/hf_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "src/base/log.h"
#include "src/base/quoted_text.h"
#include "src/device/aligned_buffer.h"
#include "src/model/folder_error.h"
#include "src/model/hf_config.h"
#include "src/model/hf_expert_form.h"
#include "src/model/hf_fp8.h"
#include "src/model/hf_index.h"
#include "src/model/hf_pooling.h"
#include "src/model/hf_tensors.h"
#include "src/model/rope_scaling.h"
#include "src/model/safetensors.h"

namespace baton::model {

using device::AlignedBuffer;

namespace {

constexpr const char* kConfigName = "config.json";
constexpr const char* kSingleName = "model.safetensors";

// Everything that the tensors of the result point into.
struct FolderStorage {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::deque<std::string> names;
  std::deque<AlignedBuffer> copies;
  std::deque<Fp8Scales> scales;
  std::deque<GgufTensorType> types;  // with those scales
};

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Status InFile(const absl::Status& status, std::string_view name) {
  if (status.ok()) return status;
  const std::string text =
      fmt::format("{}: {}", QuotedForMessage(name), std::string(status.message()));
  return FolderError(FolderErrorOf(status), text);
}

absl::Status TensorError(FolderErrorCode code, std::string_view name, std::string_view what) {
  return FolderError(code, fmt::format("tensor {}: {}", QuotedForMessage(name), what));
}

// Opens the weights of a folder, one file or the shards of an index.
class ShardReader {
 public:
  ShardReader(std::string folder, FolderStorage& storage)
      : folder_(std::move(folder)), storage_(storage) {}

  absl::Status Read() {
    absl::StatusOr<FileMapping> index = FileMapping::Open(folder_ + "/" + kHfIndexName);
    if (index.ok()) return ReadIndex(TextOf(index->bytes()));
    absl::Status status = AddFile(kSingleName);
    if (FolderErrorOf(status) != FolderErrorCode::kMissingFile) return status;
    return FolderError(FolderErrorCode::kMissingFile,
                       fmt::format("the folder has neither {} nor {} (other forms of weights are "
                                   "not read)",
                                   kSingleName, kHfIndexName));
  }

 private:
  absl::Status AddFile(const std::string& name) {
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
        SafetensorsFile::Open(folder_ + "/" + name);
    if (!file.ok()) return InFile(file.status(), name);
    num_tensors_ += (*file)->tensors().size();
    header_bytes_ += (*file)->header_bytes();
    if (num_tensors_ > kMaxHfTensors || header_bytes_ > kMaxHfHeaderBytes) {
      return FolderError(
          FolderErrorCode::kFileTooLarge,
          fmt::format("{} tensors in {} bytes of headers up to {}, the limits are {} and {}",
                      num_tensors_, header_bytes_, QuotedForMessage(name), kMaxHfTensors,
                      kMaxHfHeaderBytes));
    }
    storage_.files.push_back(*std::move(file));
    return OkStatus();
  }

  static absl::Status BadIndex(std::string_view what) {
    return FolderError(FolderErrorCode::kBadIndex, fmt::format("{}: {}", kHfIndexName, what));
  }

  absl::Status ReadIndex(std::string_view text) {
    BATON_ASSIGN_OR_RETURN(HfIndex index, ReadHfIndex(text));
    for (auto& [name, tensors] : index) BATON_RETURN_IF_ERROR(AddShard(name, tensors));
    return OkStatus();
  }

  // The file must hold the tensors that the index gives it, and no others.
  absl::Status AddShard(const std::string& name, std::vector<std::string>& tensors) {
    const absl::Status status = AddFile(name);
    if (FolderErrorOf(status) == FolderErrorCode::kMissingFile) {
      return FolderError(
          FolderErrorCode::kMissingShard,
          fmt::format("{}, which {} names", std::string(status.message()), kHfIndexName));
    }
    BATON_RETURN_IF_ERROR(status);
    std::sort(tensors.begin(), tensors.end());
    const std::vector<SafetensorsTensor>& held = storage_.files.back()->tensors();
    const auto by_name = [](const SafetensorsTensor& a, std::string_view b) { return a.name == b; };
    if (std::equal(held.begin(), held.end(), tensors.begin(), tensors.end(), by_name)) {
      return OkStatus();
    }
    const auto [mine, listed] =
        std::mismatch(held.begin(), held.end(), tensors.begin(), tensors.end(), by_name);
    const std::string& odd = mine == held.end() ? *listed : mine->name;
    return BadIndex(fmt::format("it and {} disagree about tensor {}", QuotedForMessage(name),
                                QuotedForMessage(odd)));
  }

  const std::string folder_;
  FolderStorage& storage_;
  size_t num_tensors_ = 0;     // of all files so far
  uint64_t header_bytes_ = 0;  // of all files so far
};

// Gives the tensors their GGUF names, order and types.
class TensorConverter {
 public:
  TensorConverter(const HfConfig& config, FolderStorage& storage)
      : config_(config), storage_(storage) {
    for (const auto& file : storage_.files) {
      for (const SafetensorsTensor& tensor : file->tensors()) Take(tensor);
    }
    by_name_ = taken_;
    std::sort(by_name_.begin(), by_name_.end(),
              [](const auto* a, const auto* b) { return a->name < b->name; });
  }

  absl::StatusOr<std::vector<GgufTensor>> Convert() {
    BATON_RETURN_IF_ERROR(CheckPrefix());
    BATON_RETURN_IF_ERROR(CheckTied());
    for (const SafetensorsTensor* tensor : taken_) BATON_RETURN_IF_ERROR(Add(*tensor));
    for (auto& [name, experts] : experts_) BATON_RETURN_IF_ERROR(Stack(name, experts));
    if (!config_.rope_factors.empty()) {
      const bool is_short = !config_.long_factors.empty();
      BATON_RETURN_IF_ERROR(
          AddRopeFactors(is_short ? kShortFactorsName : "rope_freqs.weight", config_.rope_factors));
    }
    if (!config_.long_factors.empty()) {
      BATON_RETURN_IF_ERROR(AddRopeFactors(kLongFactorsName, config_.long_factors));
    }
    if (num_unused_scales_ > 0) {
      BATON_LOG_INFO(
          "{} scales of activations or KV are not used: activations are not quantised, KV in fp8 "
          "has scales of its own",
          num_unused_scales_);
    }
    if (num_of_images_ > 0) {
      BATON_LOG_INFO("{} tensors of the image part are left out: only text is read",
                     num_of_images_);
    }
    return std::move(tensors_);
  }

  // Layers that predict several tokens; known from the start.
  uint32_t num_predicting() const { return num_predicting_; }

 private:
  // Tensors of a model that reads images too get the names of a text model, those that predict
  // several tokens the names of layers.
  void Take(const SafetensorsTensor& tensor) {
    const bool predicts = config_.traits->delta_nets;
    if (!config_.has_images && !predicts) {
      taken_.push_back(&tensor);
      return;
    }
    std::string name = config_.has_images ? TextNameOfHfTensor(tensor.name) : tensor.name;
    if (predicts) name = NameOfPrediction(name, config_.num_layers, &num_predicting_);
    num_of_images_ += name.empty() ? 1 : 0;
    if (name.empty()) return;
    SafetensorsTensor& renamed = renamed_.emplace_back(tensor);
    renamed.name = std::move(name);
    taken_.push_back(&renamed);
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
    if (head->type == SafetensorsType::kF8E4M3) {
      return FolderError(
          FolderErrorCode::kTiedMismatch,
          "config.json says tie_word_embeddings true, but lm_head.weight is F8_E4M3");
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
    if (tensor.type == SafetensorsType::kU8) {
      return TensorError(FolderErrorCode::kBadDtype, tensor.name,
                         "U8 is read in blocks and scales of MXFP4 experts alone");
    }
    if (plan->all_experts) return AddAllExperts(tensor, *plan);
    std::vector<uint64_t> shape = tensor.shape;
    if (plan->is_conv && shape.size() == 3 && shape[1] == 1) shape.erase(shape.begin() + 1);
    if (shape.empty() || shape.size() > 2) {
      return TensorError(FolderErrorCode::kBadShape, tensor.name,
                         fmt::format("{} dimensions", tensor.shape.size()));
    }
    if (plan->expert.has_value()) {
      experts_[plan->gguf_name][*plan->expert] = &tensor;
      return OkStatus();
    }
    GgufTensor out;
    out.name = Keep(plan->gguf_name);
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
    if (plan->permuted_q || plan->permuted_k) {
      const uint32_t heads = plan->permuted_q ? config_.num_heads : config_.num_kv_heads;
      BATON_RETURN_IF_ERROR(Permute(tensor, heads, out));
    } else if (plan->as_f32 && (tensor.type != SafetensorsType::kF32 || plan->plus_one)) {
      BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy,
                             NewCopy(tensor.data.size() / BytesOf(tensor.type) * sizeof(float)));
      ToF32(tensor.type, tensor.data, plan->plus_one ? 1.0f : 0.0f,
            reinterpret_cast<float*>(copy->data()));
      out.data = {copy->data(), copy->size()};
    }
    if (plan->is_log) BATON_RETURN_IF_ERROR(MakeRates(out));
    if (plan->v_heads != HfVHeads::kNone && config_.delta.num_k_heads < config_.delta.num_v_heads) {
      BATON_RETURN_IF_ERROR(TileHeads(tensor, plan->v_heads, out));
    }
    tensors_.push_back(out);
    return OkStatus();
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

  absl::Status TileHeads(const SafetensorsTensor& tensor, HfVHeads form, GgufTensor& out) {
    const uint64_t num_rows = tensor.shape[0];
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
      out.name = Keep(part == 0 ? plan.gguf_name : plan.second_gguf_name);
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
      out.name = Keep(part == 0 ? plan.gguf_name : plan.second_gguf_name);
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

  absl::Status Permute(const SafetensorsTensor& tensor, uint32_t heads, GgufTensor& out) {
    const uint64_t rows = tensor.shape[0];
    if (rows % (uint64_t{heads} * 2) != 0) {
      return TensorError(FolderErrorCode::kBadShape, tensor.name,
                         fmt::format("{} rows for {} heads", rows, heads));
    }
    BATON_ASSIGN_OR_RETURN(out.data, PermutedRows(tensor.data, rows, heads));
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

  // The experts' matrices one after the other.
  absl::Status Stack(const std::string& name,
                     const std::map<uint32_t, const SafetensorsTensor*>& experts) {
    const SafetensorsTensor& first = *experts.begin()->second;
    for (const auto& [expert, tensor] : experts) {
      if (tensor->type != first.type || tensor->shape != first.shape) {
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
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(first.data.size() * experts.size()));
    std::byte* at = copy->data();
    std::vector<const SafetensorsTensor*> matrices;
    for (const auto& [expert, tensor] : experts) {
      at = std::copy(tensor->data.begin(), tensor->data.end(), at);
      matrices.push_back(tensor);
    }
    GgufTensor out;
    out.name = Keep(name);
    std::vector<uint64_t> shape = first.shape;
    shape.insert(shape.begin(), experts.size());
    SetShape(shape, out);
    SetType(first.type, out);
    if (first.type == SafetensorsType::kF8E4M3) BATON_RETURN_IF_ERROR(AddScales(matrices, out));
    out.data = {copy->data(), copy->size()};
    tensors_.push_back(out);
    return OkStatus();
  }

  absl::Status AddRopeFactors(std::string_view name, const std::vector<float>& factors) {
    BATON_ASSIGN_OR_RETURN(AlignedBuffer * copy, NewCopy(factors.size() * sizeof(float)));
    std::copy(factors.begin(), factors.end(), reinterpret_cast<float*>(copy->data()));
    GgufTensor out;
    out.name = name;
    SetShape({factors.size()}, out);
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
        break;  // by AddScales and AddExpertForm
    }
  }

  std::string_view Keep(const std::string& name) { return storage_.names.emplace_back(name); }

  absl::StatusOr<AlignedBuffer*> NewCopy(size_t bytes) {
    BATON_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(bytes));
    return &storage_.copies.emplace_back(std::move(buffer));
  }

  const HfConfig& config_;
  FolderStorage& storage_;
  std::deque<SafetensorsTensor> renamed_;          // with their names in a text model
  std::vector<const SafetensorsTensor*> taken_;    // of all files, in their order
  std::vector<const SafetensorsTensor*> by_name_;  // the same by ascending name
  size_t num_unused_scales_ = 0;
  size_t num_of_images_ = 0;  // tensors that are not taken
  uint32_t num_predicting_ = 0;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::map<uint32_t, const SafetensorsTensor*>> experts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GgufFile>> OpenHfFolder(const std::string& path) {
  absl::StatusOr<FileMapping> config_file = FileMapping::Open(path + "/" + kConfigName);
  if (!config_file.ok()) {
    return FolderError(
        FolderErrorCode::kMissingFile,
        fmt::format("{}: {}", kConfigName, std::string(config_file.status().message())));
  }
  BATON_ASSIGN_OR_RETURN(HfConfig config, ReadHfConfig(TextOf(config_file->bytes())));
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
  BATON_RETURN_IF_ERROR(ShardReader(path, *storage).Read());
  GgufAssembly assembly;
  TensorConverter converter(config, *storage);
  BATON_ASSIGN_OR_RETURN(assembly.tensors, converter.Convert());
  if (config.traits->delta_nets) {
    const uint32_t num_predicting = converter.num_predicting();
    const std::string arch(config.traits->name);
    config.keys.AddU32(arch + ".block_count", config.num_layers + num_predicting);
    if (num_predicting > 0) config.keys.AddU32(arch + ".nextn_predict_layers", num_predicting);
  }
  for (const auto& file : storage->files) {
    assembly.file_bytes += file->file_bytes();
    assembly.mappings.push_back(&file->mapping());
  }
  assembly.header = config.keys.Header();
  assembly.storage = storage;
  return GgufFile::FromAssembly(std::move(assembly));
}

absl::StatusOr<std::unique_ptr<GgufFile>> OpenModelFile(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return OpenHfFolder(path);
  return GgufFile::Open(path);
}

}  // namespace baton::model
