// The shapes that timings are taken at: a model, its products, and a few numbers of rows.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_MODEL_SHAPE_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_MODEL_SHAPE_H_

#include <cstdint>
#include <vector>

namespace baton::kernels::gpu_check {

// The sizes of a model that decide what its kernels cost.
struct ModelShape {
  uint32_t num_layers;
  uint32_t hidden_size;
  uint32_t ffn_size;
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t vocab_size;

  uint32_t QkvSize() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

inline constexpr ModelShape kLlama8b = {32, 4096, 14336, 32, 8, 128, 128'256};
inline constexpr ModelShape kTinyShape = {2, 128, 256, 4, 2, 64, 304};
inline constexpr uint32_t kShapeBlockSize = 64;  // tokens of a KV block on a device

constexpr const ModelShape& ShapeFor(bool is_tiny) { return is_tiny ? kTinyShape : kLlama8b; }

// One weight matrix [n][k].
struct ProductShape {
  const char* name;
  uint32_t n;
  uint32_t k;
  bool is_output;  // whose rows are few: a prompt wants the logits of one
};

inline std::vector<ProductShape> ProductsOf(const ModelShape& shape) {
  return {{"qkv", shape.QkvSize(), shape.hidden_size, false},
          {"o", shape.hidden_size, shape.num_heads * shape.head_dim, false},
          {"gate_up", 2 * shape.ffn_size, shape.hidden_size, false},
          {"down", shape.hidden_size, shape.ffn_size, false},
          {"output", shape.vocab_size, shape.hidden_size, true}};
}

// Numbers of rows of x, for decode and for prefill.
inline std::vector<uint32_t> RowCounts(bool is_tiny) {
  if (is_tiny) return {1, 9};
  return {1, 8, 32, 64, 2048, 8192};
}
inline constexpr uint32_t kMostOutputRows = 64;

// Rows of each sequence's decode, and the keys that they see.
struct DecodeShape {
  uint32_t num_rows;
  uint32_t context;
};
inline std::vector<DecodeShape> DecodeShapes(bool is_tiny) {
  if (is_tiny) return {{1, 70}, {2, 20}};
  return {{1, 1024}, {8, 1024}, {64, 1024}, {1, 8192}, {8, 8192}, {64, 8192}};
}

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_MODEL_SHAPE_H_
