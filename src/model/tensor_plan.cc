#include "src/model/tensor_plan.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/check.h"
#include "src/base/quoted_text.h"
#include "src/model/delta_config.h"

namespace baton::model {

using kernels::Fp8Rows;
using kernels::WeightType;

namespace {

// Looks up tensors and counts those used, so that left-over tensors can be reported.
class TensorFinder {
 public:
  TensorFinder(const GgufFile& file, std::string_view architecture)
      : file_(file), architecture_(architecture), used_(file.tensors().size(), false) {}

  // A matrix [n, k] of any supported type.
  absl::StatusOr<const GgufTensor*> Matrix(std::string_view name, uint64_t n, uint64_t k) {
    BATON_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name));
    if (tensor->type->support != GgufTypeSupport::kSupported) return Unsupported(*tensor);
    if (tensor->num_dims != 2 || tensor->dims[0] != k || tensor->dims[1] != n) {
      return WrongShape(*tensor, {n, k});
    }
    return tensor;
  }

  // `count` matrices [n, k] of any supported type, one after the other.
  absl::StatusOr<const GgufTensor*> Matrices(std::string_view name, uint64_t count, uint64_t n,
                                             uint64_t k) {
    BATON_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name));
    if (tensor->type->support != GgufTypeSupport::kSupported) return Unsupported(*tensor);
    const bool fits = tensor->num_dims == 3 && tensor->dims[0] == k && tensor->dims[1] == n &&
                      tensor->dims[2] == count;
    if (!fits) {
      return WrongShape(*tensor, {count, n, k});
    }
    return tensor;
  }

  // A matrix [n, k] of F32: also `n` vectors [k], such as one for each expert.
  absl::StatusOr<const GgufTensor*> FloatMatrix(std::string_view name, uint64_t n, uint64_t k) {
    BATON_ASSIGN_OR_RETURN(const GgufTensor* tensor, Matrix(name, n, k));
    return IsF32(*tensor) ? absl::StatusOr<const GgufTensor*>(tensor) : NotF32(*tensor);
  }

  // A matrix [n, k] of F32; of one row, a vector [k] too, since some writers drop dimensions of 1.
  absl::StatusOr<const GgufTensor*> FloatRows(std::string_view name, uint64_t n, uint64_t k) {
    const GgufTensor* const tensor = file_.FindTensor(name);
    const bool is_vector = n == 1 && tensor != nullptr && tensor->num_dims == 1;
    return is_vector ? Vector(name, k) : FloatMatrix(name, n, k);
  }

  // A vector [n] of F32.
  absl::StatusOr<const GgufTensor*> Vector(std::string_view name, uint64_t n) {
    BATON_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name));
    if (!IsF32(*tensor)) return NotF32(*tensor);
    if (tensor->num_dims != 1 || tensor->dims[0] != n) {
      return WrongShape(*tensor, {n});
    }
    return tensor;
  }

  // A vector [k] of F32, or one row [1, k] of any supported type.
  absl::StatusOr<const GgufTensor*> Row(std::string_view name, uint64_t k) {
    const GgufTensor* tensor = file_.FindTensor(name);
    return tensor != nullptr && tensor->num_dims == 2 ? Matrix(name, 1, k) : Vector(name, k);
  }

  bool Has(std::string_view name) const { return file_.FindTensor(name) != nullptr; }

  // A tensor that the file may have and the model does not read.
  void Ignore(std::string_view name) {
    if (Has(name)) (void)Find(name);
  }
  bool HasKey(std::string_view key) const { return file_.FindValue(key) != nullptr; }
  bool is_folder() const { return file_.is_folder(); }
  // Tensors of a layer that nothing is computed with.
  void ReadPast(uint32_t layer) {
    const std::string prefix = fmt::format("blk.{}.", layer);
    for (size_t i = 0; i < used_.size(); ++i) {
      if (file_.tensors()[i].name.starts_with(prefix)) used_[i] = true;
    }
  }

  // Unimplemented naming the first tensor that nothing asked for.
  absl::Status CheckAllUsed() const {
    for (size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      return Unimplemented("tensor {} is not part of a {} model that is supported",
                           file_.tensors()[i].NameText(), architecture_);
    }
    return OkStatus();
  }

 private:
  absl::StatusOr<const GgufTensor*> Find(std::string_view name) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return Missing(name);
    used_[static_cast<size_t>(tensor - file_.tensors().data())] = true;
    return tensor;
  }

  // `wanted`: dimensions as folders have them, slowest first; a file has them the other way round.
  absl::Status WrongShape(const GgufTensor& tensor, std::vector<uint64_t> wanted) const {
    std::vector<uint64_t> dims(tensor.dims.begin(), tensor.dims.begin() + tensor.num_dims);
    std::reverse(is_folder() ? dims.begin() : wanted.begin(),
                 is_folder() ? dims.end() : wanted.end());
    return InvalidArgument("tensor {} is [{}], the model needs [{}]", tensor.NameText(),
                           fmt::join(dims, ", "), fmt::join(wanted, ", "));
  }

  // Says what a folder calls the same tensor of another layer.
  absl::Status Missing(std::string_view name) const {
    const std::string_view part = PartOf(name);
    for (const GgufTensor& tensor : file_.tensors()) {
      if (part.empty() || tensor.folder_name().empty() || PartOf(tensor.name) != part) continue;
      return NotFound("tensor \"{}\" is missing; of another layer the folder has {}", name,
                      QuotedForMessage(tensor.folder_name()));
    }
    return NotFound("tensor \"{}\" is missing", name);
  }

  // "attn_q.weight" of "blk.3.attn_q.weight"; empty for a tensor of no layer.
  static std::string_view PartOf(std::string_view name) {
    constexpr std::string_view kLayer = "blk.";
    const size_t dot = name.find('.', kLayer.size());
    return name.starts_with(kLayer) && dot != name.npos ? name.substr(dot + 1) : "";
  }

  static bool IsF32(const GgufTensor& tensor) {
    return tensor.type->id == static_cast<uint32_t>(GgmlType::kF32);
  }
  static absl::Status NotF32(const GgufTensor& tensor) {
    return Unimplemented("tensor {} has type {}, only F32 is supported here", tensor.NameText(),
                         tensor.type->name);
  }

  static absl::Status Unsupported(const GgufTensor& tensor) {
    return Unimplemented(
        "tensor {} has type {}, which is not supported (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, "
        "Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4 and NVFP4 are)",
        tensor.NameText(), tensor.type->name);
  }

  const GgufFile& file_;
  const std::string_view architecture_;
  std::vector<bool> used_;  // by index of file_.tensors()
};

// Names and finds the tensors of one layer.
struct LayerPlanner {
  TensorFinder& finder;
  const ModelConfig& config;
  uint32_t layer;

  std::string Name(std::string_view part, std::string_view kind = "weight") const {
    return fmt::format("blk.{}.{}.{}", layer, part, kind);
  }
  absl::Status Vector(const GgufTensor*& out, const std::string& name, uint64_t n) const {
    BATON_ASSIGN_OR_RETURN(out, finder.Vector(name, n));
    return OkStatus();
  }

  absl::Status CheckDeltaKind() const {
    const bool is_delta = config.IsDelta(layer);
    const std::string other = is_delta ? Name("attn_q") : fmt::format("blk.{}.ssm_a", layer);
    if (!finder.Has(other)) return OkStatus();
    const std::string list = fmt::format("{}.{}", config.architecture, kDeltaLayersKey);
    const std::string key =
        finder.HasKey(list) ? list : fmt::format("{}.full_attention_interval", config.architecture);
    return InvalidArgument("{} makes layer {} {}, but it has the tensor \"{}\"",
                           finder.is_folder() ? "\"layer_types\" (or \"full_attention_interval\")"
                                              : fmt::format("key \"{}\"", key),
                           layer, is_delta ? "a gated delta net" : "one of attention", other);
  }

  absl::Status CheckMambaKind() const {
    const std::string_view own = config.IsDelta(layer)         ? "ssm_in"
                                 : config.IsFeedForward(layer) ? "ffn_up"
                                                               : "attn_q";
    for (const std::string_view part : {"ssm_in", "ffn_up", "attn_q"}) {
      if (part == own || !finder.Has(Name(part))) continue;
      return InvalidArgument(
          "{} makes layer {} {}, but it has the tensor \"{}\"",
          finder.is_folder()
              ? "\"hybrid_override_pattern\" (or \"layers_block_type\")"
              : fmt::format("keys \"{0}.feed_forward_length\" and \"{0}.attention.head_count_kv\"",
                            config.architecture),
          layer,
          config.IsDelta(layer)         ? "one of Mamba-2"
          : config.IsFeedForward(layer) ? "a feed-forward layer"
                                        : "one of attention",
          Name(part));
    }
    return OkStatus();
  }

  // The keys that name the kinds of layers agree with the tensors that the layer has.
  absl::Status CheckKind() const {
    if (config.traits->delta_nets) return CheckDeltaKind();
    if (config.traits->mamba) return CheckMambaKind();
    if (!config.traits->short_convs) return OkStatus();
    const bool is_conv = config.IsConv(layer);
    const std::string other = Name(is_conv ? "attn_q" : "shortconv.in_proj");
    if (!finder.Has(other)) return OkStatus();
    return InvalidArgument(
        "{} makes layer {} {}, but it has the tensor \"{}\"",
        finder.is_folder() ? "\"layer_types\" (or \"full_attn_idxs\")"
                           : fmt::format("key \"{}.attention.head_count_kv\"", config.architecture),
        layer, is_conv ? "a convolution" : "one of attention", other);
  }

  absl::Status Convolution(LayerTensors& out) const {
    const uint32_t hidden = config.hidden_size;
    BATON_RETURN_IF_ERROR(Vector(out.attn_norm, Name("attn_norm"), hidden));
    BATON_ASSIGN_OR_RETURN(out.conv_in,
                           finder.Matrix(Name("shortconv.in_proj"), 3 * hidden, hidden));
    BATON_ASSIGN_OR_RETURN(out.conv_taps,
                           finder.FloatMatrix(Name("shortconv.conv"), hidden, config.conv_taps));
    BATON_ASSIGN_OR_RETURN(out.conv_out, finder.Matrix(Name("shortconv.out_proj"), hidden, hidden));
    return OkStatus();
  }

  // Attention of a layer whose heads may be its own (traits->mixed_layers).
  absl::Status MixedAttention(LayerTensors& out) const {
    const uint32_t hidden = config.hidden_size;
    const uint32_t dim = config.HeadDim(layer);
    BATON_RETURN_IF_ERROR(Vector(out.attn_norm, Name("attn_norm"), hidden));
    BATON_ASSIGN_OR_RETURN(out.q, finder.Matrix(Name("attn_q"), config.QSize(layer), hidden));
    BATON_RETURN_IF_ERROR(Vector(out.q_norm, Name("attn_q_norm"), dim));
    if (config.SharesKv(layer)) {  // published files have them all the same
      for (const char* part : {"attn_k", "attn_v", "attn_k_norm"}) finder.Ignore(Name(part));
    } else {
      const uint32_t kv_size = config.KvSize(layer);
      BATON_ASSIGN_OR_RETURN(out.k, finder.Matrix(Name("attn_k"), kv_size, hidden));
      BATON_RETURN_IF_ERROR(Vector(out.k_norm, Name("attn_k_norm"), dim));
      if (config.key_is_value && !config.IsLocal(layer)) {
        out.v = out.k;
      } else {
        BATON_ASSIGN_OR_RETURN(out.v, finder.Matrix(Name("attn_v"), kv_size, hidden));
      }
    }
    BATON_ASSIGN_OR_RETURN(out.attn_output,
                           finder.Matrix(Name("attn_output"), hidden, config.QSize(layer)));
    BATON_RETURN_IF_ERROR(Vector(out.post_attn_norm, Name("post_attention_norm"), hidden));
    BATON_RETURN_IF_ERROR(Vector(out.post_ffn_norm, Name("post_ffw_norm"), hidden));
    if (finder.Has(Name("layer_output_scale"))) {
      BATON_RETURN_IF_ERROR(Vector(out.layer_scale, Name("layer_output_scale"), 1));
    }
    return config.per_layer_size == 0 ? OkStatus() : PerLayer(out);
  }

  absl::Status PerLayer(LayerTensors& out) const {
    const uint32_t hidden = config.hidden_size;
    const uint32_t size = config.per_layer_size;
    BATON_ASSIGN_OR_RETURN(out.per_layer_gate, finder.Matrix(Name("inp_gate"), size, hidden));
    BATON_ASSIGN_OR_RETURN(out.per_layer_out, finder.Matrix(Name("proj"), hidden, size));
    return Vector(out.post_per_layer, Name("post_norm"), hidden);
  }

  absl::Status LatentAttention(LayerTensors& out) const {
    const uint32_t hidden = config.hidden_size;
    const uint32_t heads = config.num_heads;
    const uint32_t latent = config.latent_dim;
    BATON_RETURN_IF_ERROR(Vector(out.attn_norm, Name("attn_norm"), hidden));
    if (config.q_rank > 0) {
      BATON_ASSIGN_OR_RETURN(out.q_a, finder.Matrix(Name("attn_q_a"), config.q_rank, hidden));
      BATON_RETURN_IF_ERROR(Vector(out.q_a_norm, Name("attn_q_a_norm"), config.q_rank));
      BATON_ASSIGN_OR_RETURN(
          out.q_b, finder.Matrix(Name("attn_q_b"), config.latent_q_size(), config.q_rank));
    } else {
      BATON_ASSIGN_OR_RETURN(out.q, finder.Matrix(Name("attn_q"), config.latent_q_size(), hidden));
    }
    BATON_ASSIGN_OR_RETURN(out.kv_a, finder.Matrix(Name("attn_kv_a_mqa"), config.head_dim, hidden));
    BATON_RETURN_IF_ERROR(Vector(out.kv_a_norm, Name("attn_kv_a_norm"), latent));
    if (finder.Has(Name("attn_kv_b")) && !finder.Has(Name("attn_k_b"))) {
      BATON_ASSIGN_OR_RETURN(
          out.kv_b,
          finder.Matrix(Name("attn_kv_b"), heads * (config.nope_dim + config.value_dim), latent));
    } else {
      BATON_ASSIGN_OR_RETURN(out.k_b,
                             finder.Matrices(Name("attn_k_b"), heads, latent, config.nope_dim));
      BATON_ASSIGN_OR_RETURN(out.v_b,
                             finder.Matrices(Name("attn_v_b"), heads, config.value_dim, latent));
    }
    BATON_ASSIGN_OR_RETURN(out.attn_output,
                           finder.Matrix(Name("attn_output"), hidden, config.mixed_size(layer)));
    return OkStatus();
  }

  // Experts that serve every row.
  absl::Status SharedExperts(LayerTensors& out) const {
    const uint32_t hidden = config.hidden_size;
    const uint32_t ffn = config.shared_ffn_size;
    BATON_ASSIGN_OR_RETURN(out.shared_gate, finder.Matrix(Name("ffn_gate_shexp"), ffn, hidden));
    BATON_ASSIGN_OR_RETURN(out.shared_up, finder.Matrix(Name("ffn_up_shexp"), ffn, hidden));
    BATON_ASSIGN_OR_RETURN(out.shared_down, finder.Matrix(Name("ffn_down_shexp"), hidden, ffn));
    if (config.traits->gated_shared_expert) {
      BATON_ASSIGN_OR_RETURN(out.shared_router, finder.Row(Name("ffn_gate_inp_shexp"), hidden));
    }
    return OkStatus();
  }

  // Gates and ups of all experts: two tensors, or one with the gates of an expert above its ups.
  // Read where no device computes the model: none takes them apart.
  absl::Status ExpertGates(LayerTensors& out) const {
    const uint32_t hidden = config.hidden_size;
    const uint32_t ffn = config.ffn_size;
    const uint32_t count = config.num_experts;
    const bool is_for_processors = config.traits->delta_nets || config.traits->latent_kv;
    if (is_for_processors && finder.Has(Name("ffn_gate_up_exps"))) {
      BATON_ASSIGN_OR_RETURN(out.gate_up,
                             finder.Matrices(Name("ffn_gate_up_exps"), count, 2 * ffn, hidden));
      return OkStatus();
    }
    BATON_ASSIGN_OR_RETURN(out.gate, finder.Matrices(Name("ffn_gate_exps"), count, ffn, hidden));
    BATON_ASSIGN_OR_RETURN(out.up, finder.Matrices(Name("ffn_up_exps"), count, ffn, hidden));
    return OkStatus();
  }

  absl::Status DeltaNet(LayerTensors& out) const {
    const uint32_t hidden = config.hidden_size;
    const kernels::DeltaShape& shape = config.delta;
    const uint32_t heads = shape.num_v_heads;
    BATON_RETURN_IF_ERROR(Vector(out.attn_norm, Name("attn_norm"), hidden));
    BATON_ASSIGN_OR_RETURN(out.delta_qkv,
                           finder.Matrix(Name("attn_qkv"), shape.num_channels(), hidden));
    BATON_ASSIGN_OR_RETURN(out.delta_z,
                           finder.Matrix(Name("attn_gate"), shape.value_size(), hidden));
    BATON_ASSIGN_OR_RETURN(out.delta_beta, finder.Matrix(Name("ssm_beta"), heads, hidden));
    BATON_ASSIGN_OR_RETURN(out.delta_decay, finder.Matrix(Name("ssm_alpha"), heads, hidden));
    BATON_ASSIGN_OR_RETURN(
        out.delta_taps,
        finder.FloatMatrix(Name("ssm_conv1d"), shape.num_channels(), shape.num_taps));
    BATON_RETURN_IF_ERROR(Vector(out.delta_rates, fmt::format("blk.{}.ssm_a", layer), heads));
    BATON_RETURN_IF_ERROR(Vector(out.dt_bias, Name("ssm_dt", "bias"), heads));
    BATON_RETURN_IF_ERROR(Vector(out.delta_norm, Name("ssm_norm"), shape.v_dim));
    BATON_ASSIGN_OR_RETURN(out.delta_out,
                           finder.Matrix(Name("ssm_out"), hidden, shape.value_size()));
    return OkStatus();
  }

  absl::Status Mamba(LayerTensors& out) const {
    const uint32_t hidden = config.hidden_size;
    const kernels::DeltaShape& shape = config.delta;
    const uint32_t heads = shape.num_v_heads;
    const uint32_t channels = shape.num_channels();
    const uint32_t groups = shape.num_k_heads;
    BATON_RETURN_IF_ERROR(Vector(out.attn_norm, Name("attn_norm"), hidden));
    BATON_ASSIGN_OR_RETURN(out.mamba_in,
                           finder.Matrix(Name("ssm_in"), shape.input_size() - heads, hidden));
    BATON_ASSIGN_OR_RETURN(out.delta_taps,
                           finder.FloatMatrix(Name("ssm_conv1d"), channels, shape.num_taps));
    if (finder.Has(Name("ssm_conv1d", "bias"))) {
      BATON_RETURN_IF_ERROR(Vector(out.conv_bias, Name("ssm_conv1d", "bias"), channels));
    }
    BATON_RETURN_IF_ERROR(Vector(out.dt_bias, Name("ssm_dt", "bias"), heads));
    BATON_ASSIGN_OR_RETURN(out.delta_rates,
                           finder.FloatMatrix(fmt::format("blk.{}.ssm_a", layer), heads, 1));
    BATON_ASSIGN_OR_RETURN(out.skips,
                           finder.FloatMatrix(fmt::format("blk.{}.ssm_d", layer), heads, 1));
    BATON_ASSIGN_OR_RETURN(out.delta_norm,
                           finder.FloatRows(Name("ssm_norm"), groups, shape.value_size() / groups));
    BATON_ASSIGN_OR_RETURN(out.delta_out,
                           finder.Matrix(Name("ssm_out"), hidden, shape.value_size()));
    return OkStatus();
  }

  // Whether one tensor holds q, k and v. Writers of files may join them for other architectures
  // too.
  bool HoldsQkv() const {
    const bool can_be_joined =
        !config.traits->output_gate && !config.traits->mixed_layers && !finder.Has(Name("attn_q"));
    return config.traits->fused_projections || (can_be_joined && finder.Has(Name("attn_qkv")));
  }

  // Beside a joined matrix the biases may be joined, too, or not.
  absl::Status QkvBiases(LayerTensors& out) const {
    const std::string joined = Name("attn_qkv", "bias");
    if (out.qkv != nullptr && finder.Has(joined)) {
      return Vector(out.qkv_bias, joined, config.qkv_size());
    }
    BATON_RETURN_IF_ERROR(Vector(out.q_bias, Name("attn_q", "bias"), config.q_size()));
    BATON_RETURN_IF_ERROR(Vector(out.k_bias, Name("attn_k", "bias"), config.kv_size()));
    return Vector(out.v_bias, Name("attn_v", "bias"), config.kv_size());
  }

  absl::Status Attention(LayerTensors& out) const {
    if (!HoldsQkv() && finder.Has(Name("attn_qkv")) && !finder.Has(Name("attn_q"))) {
      return Unimplemented(
          "tensor \"{}\" holds q, k and v, which a {} model has apart: convert it without "
          "--fuse-qkv",
          Name("attn_qkv"), config.architecture);
    }
    if (config.traits->mixed_layers) return MixedAttention(out);
    if (config.traits->latent_kv) return LatentAttention(out);
    const uint32_t hidden = config.hidden_size;
    const uint32_t q_rows = (config.traits->output_gate ? 2 : 1) * config.q_size();
    if (config.traits->pre_norms) {
      BATON_RETURN_IF_ERROR(Vector(out.attn_norm, Name("attn_norm"), hidden));
    }
    if (HoldsQkv()) {
      BATON_ASSIGN_OR_RETURN(out.qkv, finder.Matrix(Name("attn_qkv"), config.qkv_size(), hidden));
    } else {
      BATON_ASSIGN_OR_RETURN(out.q, finder.Matrix(Name("attn_q"), q_rows, hidden));
      BATON_ASSIGN_OR_RETURN(out.k, finder.Matrix(Name("attn_k"), config.kv_size(), hidden));
      BATON_ASSIGN_OR_RETURN(out.v, finder.Matrix(Name("attn_v"), config.kv_size(), hidden));
    }
    BATON_ASSIGN_OR_RETURN(out.attn_output,
                           finder.Matrix(Name("attn_output"), hidden, config.q_size()));
    if (config.has_qkv_bias) BATON_RETURN_IF_ERROR(QkvBiases(out));
    if (config.traits->head_norms) {
      BATON_RETURN_IF_ERROR(Vector(out.q_norm, Name("attn_q_norm"), config.head_dim));
      BATON_RETURN_IF_ERROR(Vector(out.k_norm, Name("attn_k_norm"), config.head_dim));
    }
    if (config.traits->sinks) {
      BATON_RETURN_IF_ERROR(Vector(out.sinks, Name("attn_sinks"), config.num_heads));
    }
    if (config.has_output_bias) {
      BATON_RETURN_IF_ERROR(Vector(out.output_bias, Name("attn_output", "bias"), hidden));
    }
    if (config.traits->whole_norms) {
      BATON_RETURN_IF_ERROR(Vector(out.q_norm, Name("attn_q_norm"), config.q_size()));
      BATON_RETURN_IF_ERROR(Vector(out.k_norm, Name("attn_k_norm"), config.kv_size()));
    }
    if (!config.traits->post_norms) return OkStatus();
    BATON_RETURN_IF_ERROR(Vector(out.post_attn_norm, Name("post_attention_norm"), hidden));
    return Vector(out.post_ffn_norm, Name("post_ffw_norm"), hidden);
  }

  // A layer of its own: one product, squares of what is positive, another product.
  absl::Status FeedForwardAlone(LayerTensors& out) const {
    const uint32_t hidden = config.hidden_size;
    const uint32_t ffn = config.FfnSize(layer);
    BATON_RETURN_IF_ERROR(Vector(out.ffn_norm, Name("attn_norm"), hidden));
    BATON_ASSIGN_OR_RETURN(out.gate_up, finder.Matrix(Name("ffn_up"), ffn, hidden));
    BATON_ASSIGN_OR_RETURN(out.down, finder.Matrix(Name("ffn_down"), hidden, ffn));
    if (!config.has_ffn_bias) return OkStatus();
    BATON_RETURN_IF_ERROR(Vector(out.up_bias, Name("ffn_up", "bias"), ffn));
    return Vector(out.down_bias, Name("ffn_down", "bias"), hidden);
  }

  absl::Status FeedForward(LayerTensors& out) const {
    const uint32_t hidden = config.hidden_size;
    const uint32_t ffn = config.FfnSize(layer);
    if (config.traits->pre_norms) {
      BATON_RETURN_IF_ERROR(Vector(out.ffn_norm, Name(config.traits->ffn_norm), hidden));
    }
    if (config.traits->fused_projections) {
      BATON_ASSIGN_OR_RETURN(out.gate_up, finder.Matrix(Name("ffn_up"), 2 * ffn, hidden));
      BATON_ASSIGN_OR_RETURN(out.down, finder.Matrix(Name("ffn_down"), hidden, ffn));
      return OkStatus();
    }
    if (!config.HasExperts(layer)) {
      BATON_ASSIGN_OR_RETURN(out.gate, finder.Matrix(Name("ffn_gate"), ffn, hidden));
      BATON_ASSIGN_OR_RETURN(out.up, finder.Matrix(Name("ffn_up"), ffn, hidden));
      BATON_ASSIGN_OR_RETURN(out.down, finder.Matrix(Name("ffn_down"), hidden, ffn));
      if (!config.has_ffn_bias) return OkStatus();
      BATON_RETURN_IF_ERROR(Vector(out.gate_bias, Name("ffn_gate", "bias"), ffn));
      BATON_RETURN_IF_ERROR(Vector(out.up_bias, Name("ffn_up", "bias"), ffn));
      return Vector(out.down_bias, Name("ffn_down", "bias"), hidden);
    }
    const uint32_t count = config.num_experts;
    BATON_ASSIGN_OR_RETURN(out.router, finder.Matrix(Name("ffn_gate_inp"), count, hidden));
    BATON_RETURN_IF_ERROR(ExpertGates(out));
    BATON_ASSIGN_OR_RETURN(out.down, finder.Matrices(Name("ffn_down_exps"), count, hidden, ffn));
    if (config.traits->shared_experts) BATON_RETURN_IF_ERROR(SharedExperts(out));
    if (config.expert_rule.score == ExpertScore::kSigmoid) {
      BATON_RETURN_IF_ERROR(Vector(out.choice_bias, Name("exp_probs_b", "bias"), count));
    }
    if (!config.traits->expert_biases) return OkStatus();
    BATON_RETURN_IF_ERROR(Vector(out.router_bias, Name("ffn_gate_inp", "bias"), count));
    BATON_ASSIGN_OR_RETURN(out.gate_bias,
                           finder.FloatMatrix(Name("ffn_gate_exps", "bias"), count, ffn));
    BATON_ASSIGN_OR_RETURN(out.up_bias,
                           finder.FloatMatrix(Name("ffn_up_exps", "bias"), count, ffn));
    BATON_ASSIGN_OR_RETURN(out.down_bias,
                           finder.FloatMatrix(Name("ffn_down_exps", "bias"), count, hidden));
    return OkStatus();
  }

  absl::Status All(LayerTensors& out) const {
    if (config.traits->mamba) {
      return config.IsDelta(layer)         ? Mamba(out)
             : config.IsFeedForward(layer) ? FeedForwardAlone(out)
                                           : Attention(out);
    }
    BATON_RETURN_IF_ERROR(config.IsDelta(layer)  ? DeltaNet(out)
                          : config.IsConv(layer) ? Convolution(out)
                                                 : Attention(out));
    return FeedForward(out);
  }
};

}  // namespace

absl::StatusOr<TensorPlan> PlanTensors(const GgufFile& file, const ModelConfig& config) {
  TensorFinder finder(file, config.traits->name);
  TensorPlan plan;
  BATON_ASSIGN_OR_RETURN(plan.token_embd,
                         finder.Matrix("token_embd.weight", config.vocab_size, config.hidden_size));
  // lfm2's last norm has the name of a norm of the embedding.
  const std::string_view last_norm =
      config.traits->short_convs ? "token_embd_norm.weight" : "output_norm.weight";
  BATON_ASSIGN_OR_RETURN(plan.output_norm, finder.Vector(last_norm, config.hidden_size));
  plan.norms_values = config.traits->mixed_layers;
  plan.output = plan.token_embd;
  if (!config.tied_output) {
    BATON_ASSIGN_OR_RETURN(plan.output,
                           finder.Matrix("output.weight", config.vocab_size, config.hidden_size));
  }
  if (config.per_layer_size > 0) {
    const uint32_t size = config.per_layer_size;
    const uint32_t all = config.num_layers * size;
    BATON_ASSIGN_OR_RETURN(plan.per_layer_embd,
                           finder.Matrix("per_layer_token_embd.weight", config.vocab_size, all));
    BATON_ASSIGN_OR_RETURN(plan.per_layer_proj,
                           finder.Matrix("per_layer_model_proj.weight", all, config.hidden_size));
    BATON_ASSIGN_OR_RETURN(plan.per_layer_norm, finder.Vector("per_layer_proj_norm.weight", size));
  }
  const bool is_long = config.rope_scaling.type == RopeScalingType::kLong;
  if (config.has_rope_factors) {
    const std::string_view name = is_long ? kShortFactorsName : "rope_freqs.weight";
    BATON_ASSIGN_OR_RETURN(plan.rope_factors, finder.Vector(name, config.rope_dims / 2));
  }
  if (is_long) {
    BATON_ASSIGN_OR_RETURN(plan.long_factors,
                           finder.Vector(kLongFactorsName, config.rope_dims / 2));
  }
  if (config.reorders_heads() || config.traits->output_gate) {
    plan.head_order = {config.num_heads + config.num_kv_heads, config.head_dim, config.rope_dims,
                       config.traits->output_gate};
  }
  if (config.traits->latent_kv) {
    plan.latent = {config.num_heads, config.nope_dim, config.value_dim};
  }
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    LayerTensors tensors;
    const LayerPlanner planner{finder, config, layer};
    BATON_RETURN_IF_ERROR(planner.CheckKind());
    BATON_RETURN_IF_ERROR(planner.All(tensors));
    plan.layers.push_back(tensors);
  }
  for (uint32_t i = 0; i < config.num_mtp_layers; ++i) finder.ReadPast(config.num_layers + i);
  BATON_RETURN_IF_ERROR(finder.CheckAllUsed());
  return plan;
}

std::vector<float> FloatsOf(const GgufTensor& tensor) {
  std::vector<float> out(tensor.num_elements());
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

std::vector<float> QkvBiasOf(const LayerTensors& tensors) {
  std::vector<float> out;
  for (const GgufTensor* bias :
       {tensors.qkv_bias, tensors.q_bias, tensors.k_bias, tensors.v_bias}) {
    if (bias == nullptr) continue;
    const std::vector<float> values = FloatsOf(*bias);
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

WeightType WeightTypeOf(const GgufTensor& tensor) {
  if (tensor.fp8() != nullptr) return WeightType::kBf16;
  switch (static_cast<GgmlType>(tensor.type->id)) {
    case GgmlType::kF32:
      return WeightType::kF32;
    case GgmlType::kF16:
      return WeightType::kF16;
    case GgmlType::kBf16:
      return WeightType::kBf16;
    case GgmlType::kQ4_0:
      return WeightType::kQ4_0;
    case GgmlType::kQ4_1:
      return WeightType::kQ4_1;
    case GgmlType::kQ5_0:
      return WeightType::kQ5_0;
    case GgmlType::kQ5_1:
      return WeightType::kQ5_1;
    case GgmlType::kQ8_0:
      return WeightType::kQ8_0;
    case GgmlType::kQ4_K:
      return WeightType::kQ4_K;
    case GgmlType::kQ5_K:
      return WeightType::kQ5_K;
    case GgmlType::kQ6_K:
      return WeightType::kQ6_K;
    case GgmlType::kNvfp4:
      return WeightType::kBf16;
    case GgmlType::kMxfp4:
      return WeightType::kMxfp4;
    case GgmlType::kIq4Nl:
      return WeightType::kIq4Nl;
    case GgmlType::kIq4Xs:
      return WeightType::kIq4Xs;
    case GgmlType::kQ3_K:
      return WeightType::kQ3_K;
    case GgmlType::kQ2_K:
      return WeightType::kQ2_K;
  }
  // PlanTensors lets supported types through only.
  BATON_CHECK(false, "tensor type {} has no kernel", tensor.type->id);
  return WeightType::kF32;
}

Nvfp4Rows Nvfp4RowsOf(const GgufTensor& tensor) {
  return {.bytes = tensor.data,
          .n = static_cast<uint32_t>(tensor.num_elements() / tensor.dims[0]),
          .k = static_cast<uint32_t>(tensor.dims[0]),
          .scale = tensor.type->scale,
          .divides = tensor.type->divides};
}

Fp8Rows Fp8RowsOf(const GgufTensor& tensor) {
  return {.codes = tensor.data,
          .scales = tensor.fp8()->values,
          .n = static_cast<uint32_t>(tensor.num_elements() / tensor.dims[0]),
          .k = static_cast<uint32_t>(tensor.dims[0]),
          .group = tensor.fp8()->group};
}

}  // namespace baton::model
