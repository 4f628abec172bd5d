#include "src/model/model_report.h"

#include <algorithm>
#include <map>
#include <vector>

#include "src/base/quoted_text.h"
#include "src/base/size_text.h"
#include "src/model/model_weights.h"
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

// Of a model whose sequences have a fixed state: what that costs, and what a hand-over moves.
std::string StateText(const ModelConfig& config) {
  const KvLayout layout = KvLayoutOf(config, KvDtype::kBf16, 16);
  const kernels::DeltaShape& delta = config.delta;
  const uint64_t state = uint64_t{config.num_delta_layers()} * delta.state_bytes();
  const uint64_t owned = layout.BytesPerSequence();
  const uint64_t row = layout.BytesPerToken();
  std::string out =
      fmt::format("delta nets    in {} of {} layers, {} heads of {} x {}, {} tokens convolved\n",
                  config.num_delta_layers(), config.num_layers, delta.num_v_heads, delta.k_dim,
                  delta.v_dim, delta.num_taps);
  out += fmt::format(
      "state         {} bytes a sequence (f32), {} in {} blocks of its own; as much as the KV of "
      "{} "
      "tokens (bf16)\n",
      state, owned, layout.state_blocks, (owned + row - 1) / row);
  for (const uint64_t tokens : {uint64_t{1024}, uint64_t{32768}}) {
    if (tokens > config.context_length) continue;
    out += fmt::format("hand-over     {} of {} tokens (bf16)\n", FormatSize(owned + tokens * row),
                       tokens);
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
  if (config.traits->delta_nets) out += StateText(config);
  if (config.traits->multipliers) {
    out += fmt::format("scales        embedding {}, attention {}, branches {}, logits 1 / {}\n",
                       config.embedding_scale * config.branch_scale, config.attention_scale,
                       config.branch_scale, 1.0f / config.logit_scale);
  }
  if (config.temperature_beta != 0.0f) {
    out += fmt::format("query scale   1 + {} ln(1 + floor(position / {}))\n",
                       config.temperature_beta, config.temperature_length);
  }
  if (config.traits->experts) {
    out += fmt::format("experts       {} a layer, {} for each token\n", config.num_experts,
                       config.num_experts_used);
  }
  return out;
}

std::string ConfigText(const ModelConfig& config) {
  const KvLayout bf16 = KvLayoutOf(config, KvDtype::kBf16, 16);
  const KvLayout f32 = KvLayoutOf(config, KvDtype::kF32, 16);
  std::string out;
  out += fmt::format("name          {}\n", QuotedForMessage(config.name));
  out +=
      fmt::format("architecture  {}: {} layers, hidden {}, ffn {}, {} heads of {}, {} kv heads\n",
                  config.architecture, config.num_layers, config.hidden_size, config.ffn_size,
                  config.num_heads, config.head_dim, config.num_kv_heads);
  out += fmt::format("rope          base {}, {} of {} elements, {}{}\n", config.rope_base,
                     config.rope_dims, config.head_dim,
                     config.rope_interleaved ? "interleaved" : "halves",
                     config.has_rope_factors ? ", frequency factors" : "");
  out += ExtrasText(config);
  out += fmt::format("context       {} tokens\n", config.context_length);
  out += fmt::format("vocabulary    {} tokens, {} output\n", config.vocab_size,
                     config.tied_output ? "tied" : "own");
  out += fmt::format("KV cache      {} bytes a token (bf16), {} (f32); {} for the whole context\n",
                     bf16.BytesPerToken(), f32.BytesPerToken(),
                     FormatSize(uint64_t{bf16.BytesPerToken()} * config.context_length));
  return out;
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
  if (config.ok()) out += ConfigText(*config);
  out += TensorsText(file);
  const std::string reason = servable.ok() ? "nothing" : std::string(servable.message());
  out += fmt::format("unsupported   {}\n", reason);
  out += MetadataText(file);
  return out;
}

}  // namespace baton::model
