// Model folders made by a test: random weights whose matrices are packed integers with scales and
// zero points, and the same weights in F32.
#ifndef BATON_TESTS_MODEL_PACKED_FOLDER_H_
#define BATON_TESTS_MODEL_PACKED_FOLDER_H_

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/model/fp4_matrix.h"
#include "tests/model/fp8_folder.h"
#include "tests/model/packed_forms.h"

namespace baton::model {

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
    model_.config["quantization_config"] = QuantizationConfigOf(form_);
    for (const auto& [name, tensor] : tensors) {
      model_.packed[name] = model_.plain[name] = tensor;
      if (std::ranges::none_of(ends, [&n = name](auto end) { return n.ends_with(end); })) continue;
      model_.packed.erase(name);
      PackModule(name.substr(0, name.rfind('.')), tensor.shape[0], tensor.shape[1]);
    }
    return std::move(model_);
  }

 private:
  static constexpr uint64_t kGroup = kPackedGroup;
  // One matrix: code, zero point and scale of each element.
  struct Matrix {
    uint64_t n, k;
    std::vector<uint32_t> codes;     // [n][k]
    std::vector<uint32_t> zeros;     // [n][groups]
    std::vector<float> scales;       // [n][groups]
    std::vector<uint32_t> group_of;  // [k]
    uint64_t groups() const { return k / kGroup; }
  };

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
    const bool has_packed = form_.method != std::string_view("modelopt");
    const float whole = has_packed ? 12345.0f : 0.1f / (448 * 6);
    const auto scale_of = [&](uint8_t code) {
      if (form_.is_mx) return std::ldexp(1.0f, code - 127);
      const float coded = kernels::FloatFromE4m3(code);
      return has_packed ? coded / whole : coded * whole;
    };
    const Fp4Scales scales = form_.is_mx ? Fp4Scales{"U8", kGroup, 120, 3, scale_of}
                                         : Fp4Scales{"F8_E4M3", kFp4Group, 96, 30, scale_of};
    const Fp4Matrix matrix = RandomFp4(n, k, scales, random_);
    FolderTensors& out = model_.packed;
    out[module + (has_packed ? ".weight_packed" : ".weight")] = matrix.codes;
    out[module + ".weight_scale"] = matrix.scales;
    model_.plain[module + ".weight"] = matrix.weights;
    if (form_.is_mx) return;
    out[module + (has_packed ? ".weight_global_scale" : ".weight_scale_2")] =
        NumbersTensor("F32", {1}, {whole});
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
      const bool is_own = form_.method == std::string_view("auto-round") && form_.has_zeros;
      for (uint32_t& zero : zeros) zero -= is_own ? 0 : 1;
      if (form_.method == std::string_view("gptq")) {
        out[module + ".g_idx"] = Tensor("I32", {m.k}, m.group_of);
      }
    }
    out[module + ".qzeros"] = Tensor("I32", {m.groups(), m.n / per_word}, Words(zeros));
  }

  const PackedForm form_;
  std::mt19937_64 random_{TestSeed()};
  PackedModel model_;
};

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_PACKED_FOLDER_H_
