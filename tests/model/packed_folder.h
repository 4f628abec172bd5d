// Model folders made by a test: random weights whose matrices are packed integers with scales and
// zero points, and the same weights in F32.
#ifndef BATON_TESTS_MODEL_PACKED_FOLDER_H_
#define BATON_TESTS_MODEL_PACKED_FOLDER_H_

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/model/fp8_folder.h"

namespace baton::model {

// Which program's form the matrices have.
struct PackedForm {
  const char* name;  // letters and digits
  const char* method;
  uint32_t bits;
  bool has_zeros;
  bool in_order = false;  // columns of a group lie anywhere
  bool is_float = false;  // NVFP4
};

inline std::vector<PackedForm> PackedForms() {
  return {{"awq", "awq", 4, true},
          {"gptq4", "gptq", 4, false},
          {"gptq4_zeros", "gptq", 4, true},
          {"gptq8", "gptq", 8, false},
          {"gptq8_zeros", "gptq", 8, true},
          {"gptq4_order", "gptq", 4, true, true},
          {"ct4", "compressed-tensors", 4, false},
          {"ct4_zeros", "compressed-tensors", 4, true},
          {"ct8", "compressed-tensors", 8, false},
          {"ct_nvfp4", "compressed-tensors", 4, false, false, true},
          {"modelopt_nvfp4", "modelopt", 4, false, false, true}};
}

// Equal weights in both forms; see the file comment.
struct PackedModel {
  nlohmann::json config;
  FolderTensors packed;
  FolderTensors plain;
};

// Packs the projections of a model that Fp8ModelMaker made, or some matrices of another.
class PackedModelMaker {
 public:
  explicit PackedModelMaker(const PackedForm& form) : form_(form) {}

  PackedModel Make(bool has_experts) {
    const Fp8Model model = Fp8ModelMaker(Fp8Layouts()[0]).Make(has_experts);
    return Pack(model.config, model.bf16, {"_proj.weight"});
  }

  // A model of these tensors, but that matrices whose names end so are random ones, packed.
  PackedModel Pack(const nlohmann::json& config, const FolderTensors& tensors,
                   const std::vector<std::string_view>& ends) {
    model_.config = config;
    model_.config["quantization_config"] = Config();
    for (const auto& [name, tensor] : tensors) {
      model_.packed[name] = model_.plain[name] = tensor;
      if (std::ranges::none_of(ends, [&n = name](auto end) { return n.ends_with(end); })) continue;
      model_.packed.erase(name);
      PackModule(name.substr(0, name.rfind('.')), tensor.shape[0], tensor.shape[1]);
    }
    return std::move(model_);
  }

  static constexpr uint64_t kGroup = 32;
  static constexpr uint64_t kFp4Group = 16;

 private:
  // One matrix: code, zero point and scale of each element.
  struct Matrix {
    uint64_t n, k;
    std::vector<uint32_t> codes;     // [n][k]
    std::vector<uint32_t> zeros;     // [n][groups]
    std::vector<float> scales;       // [n][groups]
    std::vector<uint32_t> group_of;  // [k]
    uint64_t groups() const { return k / kGroup; }
  };

  nlohmann::json Config() const {
    if (form_.method == std::string_view("awq")) {
      return {{"quant_method", "awq"}, {"bits", 4},
              {"group_size", kGroup},  {"version", "gemm"},
              {"zero_point", true},    {"modules_to_not_convert", {"lm_head"}}};
    }
    if (form_.method == std::string_view("gptq")) {
      return {{"quant_method", "gptq"},  {"bits", form_.bits},
              {"group_size", kGroup},    {"desc_act", form_.in_order},
              {"sym", !form_.has_zeros}, {"checkpoint_format", "gptq"}};
    }
    if (form_.method == std::string_view("modelopt")) {
      return {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head"}}};
    }
    const nlohmann::json weights = {{"num_bits", form_.bits},
                                    {"type", form_.is_float ? "float" : "int"},
                                    {"symmetric", !form_.has_zeros},
                                    {"strategy", form_.is_float ? "tensor_group" : "group"},
                                    {"group_size", form_.is_float ? kFp4Group : kGroup}};
    return {{"quant_method", "compressed-tensors"},
            {"format", form_.is_float ? "nvfp4-pack-quantized" : "pack-quantized"},
            {"ignore", {"lm_head"}},
            {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  }

  template <typename T>
  static FolderTensor Tensor(std::string dtype, std::vector<uint64_t> shape,
                             const std::vector<T>& values) {
    return {std::move(dtype), std::move(shape),
            std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
  }

  // Words of neighbours in a row of `values` [rows][columns].
  std::vector<uint32_t> Words(const std::vector<uint32_t>& values) const {
    const uint32_t per_word = 32 / form_.bits;
    std::vector<uint32_t> out(values.size() / per_word);
    for (size_t i = 0; i < values.size(); ++i) {
      out[i / per_word] |= values[i] << (i % per_word * form_.bits);
    }
    return out;
  }

  template <typename T>
  static std::vector<T> Transposed(const std::vector<T>& in, uint64_t rows, uint64_t columns) {
    std::vector<T> out(in.size());
    for (uint64_t i = 0; i < in.size(); ++i) out[i % columns * rows + i / columns] = in[i];
    return out;
  }

  // In each 8 neighbours of a row, the order of AutoAWQ.
  static std::vector<uint32_t> AwqOrder(const std::vector<uint32_t>& in) {
    constexpr uint32_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
    std::vector<uint32_t> out(in.size());
    for (size_t i = 0; i < in.size(); ++i) out[i] = in[i / 8 * 8 + kOrder[i % 8]];
    return out;
  }

  std::vector<uint16_t> Halves(const std::vector<float>& values) const {
    std::vector<uint16_t> out;
    for (const float value : values) out.push_back(kernels::HalfFromFloat(value));
    return out;
  }

  Matrix Random(uint64_t n, uint64_t k) {
    Matrix m = {n, k, {}, {}, {}, std::vector<uint32_t>(k)};
    const uint32_t end = 1u << form_.bits;
    std::uniform_int_distribution<uint32_t> code(0, end - 1);
    std::uniform_real_distribution<float> scale(0.07f, 0.2f);
    for (uint64_t i = 0; i < n * k; ++i) m.codes.push_back(code(random_));
    for (uint64_t i = 0; i < n * m.groups(); ++i) {
      // Not 0, of which GPTQ's subtraction would borrow (packed.safetensors has that).
      m.zeros.push_back(form_.has_zeros ? 1 + code(random_) % (end - 1) : end / 2);
      const uint16_t half = kernels::HalfFromFloat(scale(random_) / static_cast<float>(end / 2));
      m.scales.push_back(kernels::FloatFromHalf(half));
    }
    for (uint64_t i = 0; i < k; ++i) m.group_of[i] = static_cast<uint32_t>(i / kGroup);
    if (form_.in_order) std::shuffle(m.group_of.begin(), m.group_of.end(), random_);
    return m;
  }

  void PackFp4(const std::string& module, uint64_t n, uint64_t k) {
    constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const bool is_compressed = form_.method == std::string_view("compressed-tensors");
    const float whole = is_compressed ? 12345.0f : 0.1f / (448 * 6);
    std::vector<uint8_t> codes(n * k / 2);
    std::vector<uint8_t> scales;
    for (uint64_t i = 0; i < n * k / kFp4Group; ++i) {
      scales.push_back(static_cast<uint8_t>(96 + random_() % 30));  // up to 384
    }
    std::vector<float> weights;
    for (uint64_t i = 0; i < n * k; ++i) {
      const auto code = static_cast<uint8_t>(random_() % 16);
      codes[i / 2] = static_cast<uint8_t>(codes[i / 2] | code << (i % 2 * 4));
      const float coded = kernels::FloatFromE4m3(scales[i / kFp4Group]);
      const float scale = is_compressed ? coded / whole : coded * whole;
      weights.push_back((code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8]) * scale);
    }
    FolderTensors& out = model_.packed;
    out[module + (is_compressed ? ".weight_packed" : ".weight")] = Tensor("U8", {n, k / 2}, codes);
    out[module + ".weight_scale"] = Tensor("F8_E4M3", {n, k / kFp4Group}, scales);
    out[module + (is_compressed ? ".weight_global_scale" : ".weight_scale_2")] =
        NumbersTensor("F32", {1}, {whole});
    model_.plain[module + ".weight"] = NumbersTensor("BF16", {n, k}, weights);
  }

  void PackModule(const std::string& module, uint64_t n, uint64_t k) {
    if (form_.is_float) return PackFp4(module, n, k);
    const Matrix m = Random(n, k);
    std::vector<float> weights;
    for (uint64_t i = 0; i < n * k; ++i) {
      const uint64_t group = i / k * m.groups() + m.group_of[i % k];
      const float difference = static_cast<float>(m.codes[i]) - static_cast<float>(m.zeros[group]);
      weights.push_back(m.scales[group] * difference);
      const bool is_shuffled = form_.in_order && m.groups() > 1;
      if (!is_shuffled && (form_.bits != 8 || !form_.has_zeros)) continue;
      weights.back() = kernels::FloatFromHalf(kernels::HalfFromFloat(weights.back()));
    }
    model_.plain[module + ".weight"] = NumbersTensor("F32", {n, k}, weights);
    if (form_.method == std::string_view("compressed-tensors")) {
      PackRows(module, m);
    } else {
      PackColumns(module, m);
    }
  }

  void PackRows(const std::string& module, const Matrix& m) {
    const uint64_t per_word = 32 / form_.bits;
    FolderTensors& out = model_.packed;
    out[module + ".weight_packed"] = Tensor("I32", {m.n, m.k / per_word}, Words(m.codes));
    out[module + ".weight_scale"] = Tensor("F16", {m.n, m.groups()}, Halves(m.scales));
    out[module + ".weight_shape"] = Tensor("I64", {2}, std::vector<uint64_t>{m.n, m.k});
    if (!form_.has_zeros) return;
    const std::vector<uint32_t> words = Words(Transposed(m.zeros, m.n, m.groups()));
    out[module + ".weight_zero_point"] =
        Tensor("I32", {m.n / per_word, m.groups()}, Transposed(words, m.groups(), m.n / per_word));
  }

  void PackColumns(const std::string& module, const Matrix& m) {
    const uint64_t per_word = 32 / form_.bits;
    FolderTensors& out = model_.packed;
    std::vector<uint32_t> zeros = Transposed(m.zeros, m.n, m.groups());
    out[module + ".scales"] =
        Tensor("F16", {m.groups(), m.n}, Halves(Transposed(m.scales, m.n, m.groups())));
    if (form_.method == std::string_view("awq")) {
      out[module + ".qweight"] =
          Tensor("I32", {m.k, m.n / 8}, Words(AwqOrder(Transposed(m.codes, m.n, m.k))));
      zeros = AwqOrder(zeros);
    } else {
      out[module + ".qweight"] =
          Tensor("I32", {m.k / per_word, m.n}, Transposed(Words(m.codes), m.n, m.k / per_word));
      for (uint32_t& zero : zeros) zero -= 1;
      out[module + ".g_idx"] = Tensor("I32", {m.k}, m.group_of);
    }
    out[module + ".qzeros"] = Tensor("I32", {m.groups(), m.n / per_word}, Words(zeros));
  }

  const PackedForm form_;
  std::mt19937_64 random_{TestSeed()};
  PackedModel model_;
};

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_PACKED_FOLDER_H_
