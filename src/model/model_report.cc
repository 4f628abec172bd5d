#include "src/model/model_report.h"

#include <algorithm>
#include <map>
#include <vector>

#include "src/base/quoted_text.h"
#include "src/base/size_text.h"
#include "src/model/gguf_nvfp4.h"
#include "src/model/hf_folder.h"
#include "src/model/model_weights.h"
#include "src/model/state_pools.h"
#include "src/model/tokenizer_metadata.h"

namespace baton::model {

using device::ThreadPool;
using kv::KvDtype;
using kv::KvLayout;

namespace {

// Tensors of one type, summed up.
struct TypeTotal {
  const GgufTensorType* type = nullptr;
  uint64_t num_tensors = 0;
  uint64_t num_bytes = 0;
};

std::vector<TypeTotal> TotalsByType(const GgufFile& file) {
  std::map<uint32_t, TypeTotal> totals;
  for (const GgufTensor& tensor : file.tensors()) {
    TypeTotal& total = totals[tensor.type->id];
    total.type = tensor.type;
    total.num_tensors += 1;
    total.num_bytes += tensor.data.size();
  }
  std::vector<TypeTotal> out;
  out.reserve(totals.size());
  for (const auto& [id, total] : totals) out.push_back(total);
  std::sort(out.begin(), out.end(),
            [](const TypeTotal& a, const TypeTotal& b) { return a.num_bytes > b.num_bytes; });
  return out;
}

std::string ScalarText(const GgufValue& value) {
  if (value.AsUint().has_value()) return fmt::format("{}", *value.AsUint());
  if (value.AsBool().has_value()) return *value.AsBool() ? "true" : "false";
  if (value.AsDouble().has_value()) {
    return value.type() == GgufValueType::kFloat32
               ? fmt::format("{}", static_cast<float>(*value.AsDouble()))
               : fmt::format("{}", *value.AsDouble());
  }
  if (value.AsString().has_value()) return QuotedForMessage(*value.AsString());
  return "negative";  // only negative integers are left
}

std::string ArrayText(const GgufValue& value) {
  constexpr uint64_t kShown = 4;
  std::vector<std::string> elements;
  GgufStringCursor strings(value);
  for (uint64_t i = 0; i < std::min(kShown, value.count()); ++i) {
    if (value.element_type() == GgufValueType::kString) {
      elements.push_back(QuotedForMessage(strings.Next().value_or("")));
    } else {
      elements.push_back(ScalarText(value.At(i).value_or(GgufValue())));
    }
  }
  return fmt::format("{} of {}: [{}{}]", GgufValueTypeName(value.element_type()), value.count(),
                     fmt::join(elements, ", "), value.count() > kShown ? ", ..." : "");
}

// Lines about latent rows and about experts.
std::string LatentText(const ModelConfig& config) {
  if (!config.traits->latent_kv) return "";
  std::string out;
  out += fmt::format(
      "latent KV     {} elements a token and layer, one row for all heads: {} that are its value, "
      "and a key of {}\n",
      config.head_dim, config.latent_dim, config.rope_dims);
  out +=
      fmt::format("heads         {} + {} of a query, {} of a value{}\n", config.nope_dim,
                  config.rope_dims, config.value_dim,
                  config.q_rank == 0 ? "" : fmt::format(", queries by way of {}", config.q_rank));
  return out;
}

std::string ExpertsText(const ModelConfig& config) {
  if (!config.traits->experts) return "";
  std::string out;
  out += fmt::format("experts       {} a layer, {} for each token\n", config.num_experts,
                     config.num_experts_used);
  if (config.traits->gated_shared_expert) {
    out += fmt::format("              one of width {} for every token, times a gate of its own\n",
                       config.shared_ffn_size);
  }
  if (!config.traits->scored_experts) return out;
  const ExpertRule& rule = config.expert_rule;
  out += fmt::format(
      "              by {} in {} of {} groups, weights times {}{}{}; none in the first {} layers, "
      "of width {}\n",
      rule.score == ExpertScore::kSigmoid ? "sigmoid and bias" : "softmax", rule.num_groups_used,
      rule.num_groups, rule.scale, rule.sum_to_one ? " of a sum of 1" : "",
      config.shared_ffn_size == 0
          ? ""
          : fmt::format("; one of width {} for every token", config.shared_ffn_size),
      config.num_dense_layers, config.dense_ffn_size);
  return out;
}

// Lines about the layers of a model with a recurrence: gated delta nets or Mamba-2.
std::string DeltaNetsText(const ModelConfig& config) {
  const kernels::DeltaShape& delta = config.delta;
  const bool is_mamba = config.traits->mamba;
  std::string out =
      fmt::format("{}    in {} of {} layers, {} heads of {} x {}, {} tokens convolved\n",
                  is_mamba ? "Mamba-2   " : "delta nets", config.num_delta_layers(),
                  config.num_layers, delta.num_v_heads, delta.k_dim, delta.v_dim, delta.num_taps);
  if (is_mamba) {
    out +=
        fmt::format("              attention in {} layers, feed-forward layers alone in {}\n",
                    config.num_attention_layers(),
                    config.num_layers - config.num_attention_layers() - config.num_delta_layers());
  }
  if (config.num_mtp_layers > 0) {
    out += fmt::format("prediction    {} layer(s) of several tokens at once are not used\n",
                       config.num_mtp_layers);
  }
  return out;
}

// Lines about what only some architectures have.
std::string ExtrasText(const ModelConfig& config) {
  std::string out;
  if (config.rope_scaling.type == RopeScalingType::kLong) {
    out +=
        fmt::format("rope scaling  longrope, long factors for a context above {}, sines times {}\n",
                    config.rope_scaling.original_context, config.rope_scaling.attention_factor);
  } else if (config.rope_scaling.type != RopeScalingType::kNone) {
    const bool yarn = config.rope_scaling.type == RopeScalingType::kYarn;
    out += fmt::format("rope scaling  {}, factor {}\n", yarn ? "yarn" : "linear",
                       config.rope_scaling.factor);
  }
  if (config.traits->windowed) {
    const auto num_local =
        std::count(config.layer_is_local.begin(), config.layer_is_local.end(), true);
    out += fmt::format("window        {} positions in {} of {} layers, rope base {} there\n",
                       config.window, num_local, config.num_layers, config.local_rope_base);
  }
  if (config.traits->sinks) out += "sinks         a logit of each head joins its softmax\n";
  if (config.traits->uniform_window && config.window > 0) {
    out += fmt::format("window        {} positions in all layers\n", config.window);
  }
  if (!config.layer_is_unrotated.empty()) {
    const auto num_unrotated =
        std::count(config.layer_is_unrotated.begin(), config.layer_is_unrotated.end(), true);
    out += fmt::format("no rotation   in {} of {} layers\n", num_unrotated, config.num_layers);
  }
  if (config.traits->short_convs) {
    const KvLayout layout = KvLayoutOf(config, KvDtype::kBf16, 16);
    const uint32_t num_slices = config.num_conv_layers() * config.conv_slices();
    out += fmt::format(
        "convolutions  in {} of {} layers, of {} tokens, {} of the {} KV bytes a token (bf16)\n",
        config.num_conv_layers(), config.num_layers, config.conv_taps,
        layout.BytesPerToken() / layout.num_layers * num_slices, layout.BytesPerToken());
  }
  if (!config.layer_is_delta.empty()) out += DeltaNetsText(config);
  if (config.traits->multipliers) {
    out += fmt::format("scales        embedding {}, attention {}, branches {}, logits 1 / {}\n",
                       config.embedding_scale * config.branch_scale, config.attention_scale,
                       config.branch_scale, 1.0f / config.logit_scale);
  }
  if (config.temperature_beta != 0.0f) {
    out += fmt::format("query scale   1 + {} ln(1 + floor(position / {}))\n",
                       config.temperature_beta, config.temperature_length);
  }
  out += LatentText(config) + ExpertsText(config);
  return out;
}

// The heads, the shared K and V and the per-layer vectors of traits->mixed_layers.
std::string MixedLayersText(const ModelConfig& config, const GgufFile& file) {
  std::string out = fmt::format("local heads   {} of {}, {} kv heads\n", config.num_heads,
                                config.local_head_dim, config.local_kv_heads);
  if (config.key_is_value) out += "values        of layers without a window are their keys\n";
  const auto [least, most] = std::minmax_element(config.ffn_sizes.begin(), config.ffn_sizes.end());
  if (*least != *most) out += fmt::format("ffn           {} to {} by layer\n", *least, *most);
  if (config.num_shared_layers > 0) {
    uint32_t num_unused = 0;
    for (uint32_t i = config.last_storing_layer() + 1; i < config.num_layers; ++i) {
      for (const char* part : {"attn_k", "attn_v", "attn_k_norm"}) {
        num_unused += file.FindTensor(fmt::format("blk.{}.{}.weight", i, part)) != nullptr ? 1 : 0;
      }
    }
    out += fmt::format("shared KV     the last {} of {} layers store none; {} tensors unused\n",
                       config.num_shared_layers, config.num_layers, num_unused);
  }
  if (config.per_layer_size > 0) {
    const GgufTensor* table = file.FindTensor("per_layer_token_embd.weight");
    const GgufMemory* memory = file.MemoryOf(table->data);
    const bool is_mapped = memory != nullptr && memory->is_mapping;
    const bool becomes_bf16 = table->fp8() != nullptr || IsNvfp4(*table);
    const uint64_t num_bytes =
        becomes_bf16 ? table->num_elements() * sizeof(uint16_t) : table->data.size();
    out += fmt::format("per layer     {} elements of each token, {} {}\n", config.per_layer_size,
                       FormatSize(num_bytes),
                       is_mapped && !becomes_bf16 ? "read from the file's mapping"
                       : becomes_bf16             ? "in memory, in bf16"
                                                  : "in memory");
  }
  if (config.logit_softcap != 0.0f) {
    out += fmt::format("logits        {0} tanh(logit / {0})\n", config.logit_softcap);
  }
  return out;
}

std::string ConfigText(const GgufFile& file, const ModelConfig& config) {
  const KvLayout bf16 = KvLayoutOf(config, KvDtype::kBf16, 16);
  const KvLayout f32 = KvLayoutOf(config, KvDtype::kF32, 16);
  std::string out;
  out += fmt::format("name          {}\n", QuotedForMessage(config.name));
  out +=
      fmt::format("architecture  {}: {} layers, hidden {}, ffn {}, {} heads of {}, {} kv heads\n",
                  config.architecture, config.num_layers, config.hidden_size, config.ffn_size,
                  config.num_heads, config.head_dim, config.num_kv_heads);
  out += config.traits->rotates ? fmt::format("rope          base {}, {} of {} elements, {}{}\n",
                                              config.rope_base, config.rope_dims, config.head_dim,
                                              config.rope_interleaved ? "interleaved" : "halves",
                                              config.has_rope_factors ? ", frequency factors" : "")
                                : "rope          none: positions change no layer\n";
  out += ExtrasText(config);
  if (config.traits->mixed_layers) out += MixedLayersText(config, file);
  out += fmt::format("context       {} tokens\n", config.context_length);
  out += fmt::format("vocabulary    {} tokens, {} output\n", config.vocab_size,
                     config.tied_output ? "tied" : "own");
  const std::string q8 =
      config.has_plain_rows()
          ? fmt::format(", {} (q8)", KvLayoutOf(config, KvDtype::kQ8, 16).BytesPerToken())
          : "";
  out += fmt::format(
      "KV cache      {} bytes a token (bf16), {} (f32){}; {} for the whole context (bf16)\n",
      bf16.BytesPerToken(), f32.BytesPerToken(), q8,
      FormatSize(uint64_t{bf16.BytesPerToken()} * config.context_length));
  return out + StateManifestText(config);
}

std::string TensorsText(const GgufFile& file) {
  uint64_t total_bytes = 0;
  for (const GgufTensor& tensor : file.tensors()) total_bytes += tensor.data.size();
  std::string out =
      fmt::format("tensors       {} in {}\n", file.tensors().size(), FormatSize(total_bytes));
  for (const TypeTotal& total : TotalsByType(file)) {
    const bool supported = total.type->support == GgufTypeSupport::kSupported;
    out += fmt::format("  {:<10}  {:>5}  {:>10}  {} bytes{}\n", total.type->name, total.num_tensors,
                       FormatSize(total.num_bytes), total.num_bytes,
                       supported ? "" : "  NOT SUPPORTED: no kernel for this type");
  }
  return out;
}

// The line about packed matrices of a folder and the types that they became.
std::string PackedText(const GgufFile& file) {
  constexpr size_t kMaxBytes = 400;
  const GgufValue* packed = file.FindValue(kPackedMatricesKey);
  if (packed == nullptr || !packed->AsString().has_value()) return "";
  return fmt::format("packed        {}\n", LineForMessage(*packed->AsString(), kMaxBytes));
}

std::string MetadataText(const GgufFile& file) {
  std::string out = fmt::format("metadata      {} keys\n", file.entries().size());
  for (const GgufEntry& entry : file.entries()) {
    const std::string key = QuotedForMessage(entry.key);
    const GgufValue& value = entry.value;
    out += fmt::format("  {} {}\n", key.substr(1, key.size() - 2),
                       value.is_array() ? ArrayText(value)
                                        : fmt::format("{} {}", GgufValueTypeName(value.type()),
                                                      ScalarText(value)));
  }
  return out;
}

}  // namespace

absl::Status CheckServable(const GgufFile& file) {
  BATON_RETURN_IF_ERROR(ReadModelConfig(file).status());
  // A folder's tokenizer is a file of its own, which src/text reads.
  return file.is_folder() ? OkStatus() : ReadTokenizerMetadata(file).status();
}

absl::Status CheckWeights(const GgufFile& file, ThreadPool& pool) {
  return CheckWeightValues(file, pool);
}

std::string DescribeModelFile(const GgufFile& file, const absl::Status& servable) {
  const std::string form = file.is_folder() ? "folder" : fmt::format("GGUF v{}", file.version());
  std::string out = fmt::format("file          {}, {} ({} bytes), alignment {}\n", form,
                                FormatSize(file.file_bytes()), file.file_bytes(), file.alignment());
  if (file.split().num_parts > 1) {
    out += fmt::format("parts         {}\n", file.split().num_parts);
  }
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(file);
  if (config.ok()) out += ConfigText(file, *config);
  out += TensorsText(file);
  out += PackedText(file);
  const std::string reason = servable.ok() ? "nothing" : std::string(servable.message());
  out += fmt::format("unsupported   {}\n", reason);
  out += MetadataText(file);
  return out;
}

}  // namespace baton::model
