// Model folders made by a test: random weights whose matrices are F8_E4M3 with scales, and the same
// weights in bf16.
#ifndef BATON_TESTS_MODEL_FP8_FOLDER_H_
#define BATON_TESTS_MODEL_FP8_FOLDER_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "kernels/math.h"
#include "src/model/safetensors.h"
#include "tests/test_seed.h"

namespace baton::model {

// A tensor of a folder as it is written.
struct FolderTensor {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};
using FolderTensors = std::map<std::string, FolderTensor>;

// The tensors of all files of a folder.
inline FolderTensors TensorsOfFolder(const std::string& path) {
  FolderTensors out;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file = SafetensorsFile::Open(entry.path());
    EXPECT_TRUE(file.ok()) << file.status();
    for (const SafetensorsTensor& tensor : (*file)->tensors()) {
      const auto* bytes = reinterpret_cast<const char*>(tensor.data.data());
      out[tensor.name] = {std::string(SafetensorsTypeName(tensor.type)), tensor.shape,
                          std::string(bytes, tensor.data.size())};
    }
  }
  return out;
}

// The numbers in F32, in BF16, to which they are rounded, or powers of two as F8_E8M0 has them.
inline FolderTensor NumbersTensor(std::string dtype, std::vector<uint64_t> shape,
                                  const std::vector<float>& values) {
  FolderTensor out{std::move(dtype), std::move(shape), ""};
  for (const float value : values) {
    const uint16_t half = kernels::Bf16FromFloat(value);
    const bool is_f32 = out.dtype == "F32";
    if (!is_f32 && out.dtype != "BF16") {
      out.bytes += static_cast<char>(std::ilogb(value) + 127);
      continue;
    }
    out.bytes.append(
        is_f32 ? reinterpret_cast<const char*>(&value) : reinterpret_cast<const char*>(&half),
        is_f32 ? 4 : 2);
  }
  return out;
}

// How the scales of a matrix [n, k] lie beside it.
struct Fp8Layout {
  const char* name;  // letters and digits
  const char* suffix;
  const char* dtype;                                                            // of the scales
  uint64_t rows_each, columns_each;                                             // 0: all
  std::function<std::vector<uint64_t>(uint64_t rows, uint64_t columns)> shape;  // of so many scales
};

inline std::vector<Fp8Layout> Fp8Layouts() {
  using Shape = std::vector<uint64_t>;
  const auto grid = [](uint64_t rows, uint64_t columns) { return Shape{rows, columns}; };
  return {
      {"scalar", "_scale", "F32", 0, 0, [](uint64_t, uint64_t) { return Shape{}; }},
      {"one", "_scale", "BF16", 0, 0, [](uint64_t, uint64_t) { return Shape{1}; }},
      {"rows", "_scale", "F32", 1, 0, [](uint64_t rows, uint64_t) { return Shape{rows}; }},
      {"column", "_scale", "BF16", 1, 0, grid},
      {"blocks", "_scale", "F32", 128, 128, grid},
      {"inverse", "_scale_inv", "F32", 128, 128, grid},
      {"inverse_bf16", "_scale_inv", "BF16", 128, 128, grid},
      {"inverse_powers", "_scale_inv", "F8_E8M0", 128, 128, grid},
      {"of_four", "_scale", "F32", 128, 128,
       [](uint64_t rows, uint64_t columns) {
         return Shape{rows, 1, columns, 1};
       }},
      {"mx", "_scale", "U8", 1, 32, grid},
      {"mx_powers", "_scale", "F8_E8M0", 1, 32, grid},
  };
}

// A folder that is removed at the end.
class TestFolder {
 public:
  explicit TestFolder(const std::string& name) : path_(::testing::TempDir() + "baton_fp8_" + name) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  const std::string& path() const { return path_; }

  void Write(const nlohmann::json& config, const FolderTensors& tensors) const {
    nlohmann::json header;
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      header[name] = {{"dtype", tensor.dtype},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    const std::string text = header.dump();
    const uint64_t size = text.size();
    std::ofstream out(path_ + "/model.safetensors", std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof(size));
    out << text << data;
    std::ofstream(path_ + "/config.json") << config.dump();
  }

 private:
  const std::string path_;
};

// Equal weights in both forms; see the file comment.
struct Fp8Model {
  nlohmann::json config;
  FolderTensors fp8;
  FolderTensors bf16;
};

// Builds an Fp8Model. Blocks of 128 end inside its matrices, in both directions.
class Fp8ModelMaker {
 public:
  explicit Fp8ModelMaker(const Fp8Layout& layout) : layout_(layout) {}

  // Makes a model of llama, whose rows of q and k are reordered, or of qwen3_moe.
  Fp8Model Make(bool has_experts) {
    constexpr uint64_t kHidden = 160;
    constexpr uint64_t kVocab = 263;
    const uint64_t ffn = has_experts ? 96 : 288;
    model_.config = {{"model_type", has_experts ? "qwen3_moe" : "llama"},
                     {"num_hidden_layers", 2},
                     {"max_position_embeddings", 512},
                     {"hidden_size", kHidden},
                     {"intermediate_size", ffn},
                     {"vocab_size", kVocab},
                     {"num_attention_heads", 3},
                     {"num_key_value_heads", 1},
                     {"head_dim", 64},
                     {"rms_norm_eps", 1e-5},
                     {"tie_word_embeddings", false}};
    if (has_experts) {
      model_.config.update({{"num_experts", kExperts},
                            {"num_experts_per_tok", 2},
                            {"moe_intermediate_size", ffn},
                            {"norm_topk_prob", true}});
    }
    Float("model.embed_tokens.weight", {kVocab, kHidden}, 0, 1);
    Float("model.norm.weight", {kHidden}, 1, 0.1f);
    Matrix("lm_head.weight", kVocab, kHidden);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string at = "model.layers." + std::to_string(layer) + ".";
      Matrix(at + "self_attn.q_proj.weight", 192, kHidden);
      Matrix(at + "self_attn.k_proj.weight", 64, kHidden);
      Matrix(at + "self_attn.v_proj.weight", 64, kHidden);
      Matrix(at + "self_attn.o_proj.weight", kHidden, 192);
      Float(at + "input_layernorm.weight", {kHidden}, 1, 0.1f);
      Float(at + "post_attention_layernorm.weight", {kHidden}, 1, 0.1f);
      if (has_experts) {
        Float(at + "self_attn.q_norm.weight", {64}, 1, 0.1f);
        Float(at + "self_attn.k_norm.weight", {64}, 1, 0.1f);
        Float(at + "mlp.gate.weight", {kExperts, kHidden}, 0, 0.3f);
      }
      for (uint64_t expert = 0; expert < (has_experts ? kExperts : 1); ++expert) {
        const std::string mlp =
            at + (has_experts ? "mlp.experts." + std::to_string(expert) + "." : "mlp.");
        Matrix(mlp + "gate_proj.weight", ffn, kHidden);
        Matrix(mlp + "up_proj.weight", ffn, kHidden);
        Matrix(mlp + "down_proj.weight", kHidden, ffn);
      }
    }
    return std::move(model_);
  }

 private:
  static constexpr uint64_t kExperts = 4;

  std::vector<float> Numbers(uint64_t count, float mean, float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    std::vector<float> out(count);
    for (float& value : out) value = normal(random_);
    return out;
  }

  void Float(const std::string& name, std::vector<uint64_t> shape, float mean, float deviation) {
    uint64_t count = 1;
    for (const uint64_t size : shape) count *= size;
    model_.bf16[name] = NumbersTensor("BF16", std::move(shape), Numbers(count, mean, deviation));
    model_.fp8[name] = model_.bf16[name];
  }

  void Matrix(const std::string& name, uint64_t n, uint64_t k) {
    const std::vector<float> exact = Numbers(n * k, 0, 0.08f);
    const uint64_t rows_each = layout_.rows_each == 0 ? n : layout_.rows_each;
    const uint64_t columns_each = layout_.columns_each == 0 ? k : layout_.columns_each;
    const uint64_t columns = (k - 1) / columns_each + 1;
    std::vector<float> scales(((n - 1) / rows_each + 1) * columns);
    const auto scale_of = [&](uint64_t i) -> float& {
      return scales[i / k / rows_each * columns + i % k / columns_each];
    };
    for (uint64_t i = 0; i < n * k; ++i) {
      scale_of(i) = std::max(scale_of(i), std::abs(exact[i]) / 448);
    }
    const bool is_power = layout_.dtype != std::string("F32") && layout_.dtype[0] != 'B';
    for (float& scale : scales) scale = is_power ? std::exp2(std::ceil(std::log2(scale))) : scale;
    if (std::string(layout_.dtype) == "BF16") {
      for (float& scale : scales) scale = kernels::FloatFromBf16(kernels::Bf16FromFloat(scale));
    }
    FolderTensor codes{"F8_E4M3", {n, k}, ""};
    std::vector<float> weights;
    for (uint64_t i = 0; i < n * k; ++i) {
      const uint8_t code = kernels::E4m3FromFloat(exact[i] / scale_of(i));
      codes.bytes += static_cast<char>(code);
      weights.push_back(kernels::FloatFromE4m3(code) * scale_of(i));
    }
    model_.fp8[name] = codes;
    model_.fp8[name + layout_.suffix] =
        NumbersTensor(layout_.dtype, layout_.shape(scales.size() / columns, columns), scales);
    model_.bf16[name] = NumbersTensor("BF16", {n, k}, weights);
  }

  const Fp8Layout layout_;
  std::mt19937_64 random_{TestSeed()};
  Fp8Model model_;
};

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_FP8_FOLDER_H_
