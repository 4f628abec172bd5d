// Matrices that a folder keeps packed (compressed-tensors, AutoAWQ, GPTQ, ModelOpt), and the blocks
// of GGUF that they become when the folder is opened. Private to the folder reader; pure; any
// thread.
//
// Integers: a weight is scale * (code - zero), with one scale and zero for each group of a row.
// Q4_0, Q5_0 and Q8_0 are scale * integer for each 32, so they hold it exactly: 4 bits without zero
// points become Q4_0, with zero points Q5_0 (code - zero is in [-16, 15]), 8 bits without zero
// points Q8_0. A matrix takes its scales' type instead (16 or 32 bits a weight) where no block can
// hold it: 8 bits with zero points, groups or rows that are not whole blocks of 32, groups that mix
// within a block (act-order), scales that f16 rounds. The product is then rounded once, as the
// formats' own dequantisation rounds it.
//
// NVFP4: a weight is e2m1 * scale, with an e4m3 for each 16 and an fp32 for the whole matrix. Rows
// of whole blocks of 64 become GGUF's NVFP4 (4.5 bits), which loading turns into bf16: the product
// in fp32, rounded once, as the formats dequantise. Other rows are bf16 at once. MXFP4: a weight is
// e2m1 * 2^e, with an e for each 32, which GGUF's MXFP4 holds exactly (4.25 bits).
#ifndef BATON_MODEL_HF_PACKED_H_
#define BATON_MODEL_HF_PACKED_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/base/status.h"
#include "src/model/gguf_types.h"
#include "src/model/hf_quantization.h"
#include "src/model/safetensors.h"

namespace baton::model {

// Where the codes of a matrix [n, k] lie.
enum class HfPackedLayout : uint8_t {
  kRowWords = 0,     // I32 [n, k * bits / 32]: neighbours of a row, the first in the low bits
  kColumnWords = 1,  // I32 [k * bits / 32, n]: of output n, neighbours in k
  kAwqWords = 2,     // I32 [k, n / 8]: 8 outputs, output 0 2 4 6 1 3 5 7 from the low bits up
  kBytes = 3,        // I8 [n, k]
  kFp4 = 4,          // U8 [n, k / 2]: e2m1 numbers, the first of two in the low bits
  kMxFp4 = 5,        // the same, whose scales are powers of two
};

// The tensors of one module; null for one that is not there.
struct HfPackedParts {
  const SafetensorsTensor* codes = nullptr;
  const SafetensorsTensor* scales = nullptr;
  const SafetensorsTensor* zeros = nullptr;
  const SafetensorsTensor* group_of = nullptr;  // [k] I32: the group of each column (g_idx)
  const SafetensorsTensor* shape = nullptr;     // [2] I64: n, k
  const SafetensorsTensor* global = nullptr;    // one F32: the scale of a whole NVFP4 matrix
};

// A checked matrix. Its parts outlive it.
struct HfPackedMatrix {
  HfPackedParts parts;
  HfPackedLayout layout = HfPackedLayout::kRowWords;
  bool zeros_less_one = false;
  float scale = 1.0f;    // of the whole matrix: `global`
  bool divides = false;  // scales are divided by it instead (compressed-tensors)
  uint32_t bits = 4;
  uint64_t n = 0;
  uint64_t k = 0;
  uint64_t group = 0;                   // elements that share a scale; k for a whole row
  GgmlType type = GgmlType::kQ4_0;      // what holds the weights exactly, or wide_type
  GgmlType wide_type = GgmlType::kF16;  // of the scales

  uint64_t groups() const { return k / group; }
  uint64_t RowBytes(GgmlType as) const;
};

// Checks the parts of a module against each other and against what the config declares. Reads the
// scales, not the codes. Fails naming a tensor: kBadDtype, kBadShape, or kBadScale (missing, of
// another shape, not a finite number, so large that a weight is infinite in bf16, a group out of
// range); kUnknownTensor for a part that such a matrix does not have; kUnsupportedValue for bits
// and groups that config.json does not declare.
absl::StatusOr<HfPackedMatrix> HfPackedMatrixOf(const HfPackedParts& parts,
                                                const HfQuantization& quantization);

// A type that both can be written in: equal types (of NVFP4 with equal scales of the whole), or
// Q5_0 for Q4_0 and Q5_0, or a common wide_type. kBadScale naming the second matrix when there is
// none.
absl::StatusOr<GgmlType> CommonType(const HfPackedMatrix& a, GgmlType type_a,
                                    const HfPackedMatrix& b);

// Writes the rows of the matrix to out [n][RowBytes(type)], one thread. `type` is the matrix's, its
// wide_type or what CommonType gave. kBadScale where the file has changed since it was checked.
absl::Status RepackHfMatrix(const HfPackedMatrix& matrix, GgmlType type, std::byte* out);

// "4 bits in groups of 128", "8 bits, a scale each row", "NVFP4", "MXFP4"
std::string HfPackedText(const HfPackedMatrix& matrix);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_PACKED_H_
