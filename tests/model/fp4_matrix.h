// Random matrices of e2m1 numbers as model folders hold them, and the weights that they stand for.
#ifndef BATON_TESTS_MODEL_FP4_MATRIX_H_
#define BATON_TESTS_MODEL_FP4_MATRIX_H_

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/model/fp8_folder.h"

namespace baton::model {

// How the scales of a matrix lie, and which ones it gets.
struct Fp4Scales {
  const char* dtype;
  uint64_t group;  // elements that share one
  uint32_t first;  // the smallest byte
  uint32_t count;  // of different bytes
  std::function<float(uint8_t)> value;
};

// See the file comment.
struct Fp4Matrix {
  FolderTensor codes;    // U8 [n, k / 2]
  FolderTensor scales;   // [n, k / group]
  FolderTensor weights;  // BF16 [n, k]
};

inline Fp4Matrix RandomFp4(uint64_t n, uint64_t k, const Fp4Scales& scales,
                           std::mt19937_64& random) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  Fp4Matrix out = {{"U8", {n, k / 2}, std::string(n * k / 2, '\0')},
                   {scales.dtype, {n, k / scales.group}, ""},
                   {}};
  for (uint64_t i = 0; i < n * k / scales.group; ++i) {
    out.scales.bytes += static_cast<char>(scales.first + random() % scales.count);
  }
  std::vector<float> weights;
  for (uint64_t i = 0; i < n * k; ++i) {
    const auto code = static_cast<uint32_t>(random() % 16);
    char& pair = out.codes.bytes[i / 2];
    pair = static_cast<char>(static_cast<uint32_t>(pair) | code << (i % 2 * 4));
    const float scale = scales.value(static_cast<uint8_t>(out.scales.bytes[i / scales.group]));
    weights.push_back((code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8]) * scale);
  }
  out.weights = NumbersTensor("BF16", {n, k}, weights);
  return out;
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_FP4_MATRIX_H_
