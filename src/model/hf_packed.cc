#include "src/model/hf_packed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/math.h"
#include "kernels/weight_type.h"
#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"
#include "src/model/hf_expert_form.h"
#include "src/model/hf_tensors.h"
#include "src/model/nvfp4_rows.h"

namespace baton::model {

using kernels::Bf16FromFloat;
using kernels::FloatFromBf16;
using kernels::FloatFromHalf;
using kernels::HalfFromFloat;
using kernels::kQuantBlock;

namespace {

using E = FolderErrorCode;
using Layout = HfPackedLayout;

// Where AutoAWQ puts output j of 8 in a word, in nibbles from the low bits up.
constexpr std::array<uint32_t, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};
// Rows that are unpacked together: words of column layouts hold one element for each of them, so a
// line of 64 bytes is read once for 16 rows, and of AutoAWQ for 128.
constexpr uint64_t kTileRows = 128;
// e2m1 numbers (OCP Microscaling) by their code; bit 3 is the sign, of zeros too.
constexpr float kE2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                             -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
constexpr uint64_t kFp4Group = 16;
constexpr uint64_t kMxFp4Group = 32;
// The first of 2^(code - 127) that is infinite in bf16 when the largest e2m1, 6, is multiplied.
constexpr uint32_t kInfiniteE8m0 = 253;

absl::Status WantType(const SafetensorsTensor& tensor, SafetensorsType type) {
  if (tensor.type == type) return OkStatus();
  return TensorError(
      E::kBadDtype, tensor.name,
      fmt::format("{}, wanted {}", SafetensorsTypeName(tensor.type), SafetensorsTypeName(type)));
}

absl::Status WantShape(const SafetensorsTensor& tensor, const std::vector<uint64_t>& shape) {
  if (tensor.shape == shape) return OkStatus();
  return TensorError(E::kBadShape, tensor.name,
                     fmt::format("{}, wanted [{}]", ShapeText(tensor), fmt::join(shape, ", ")));
}

bool IsOneNumber(const SafetensorsTensor& tensor) {
  return std::all_of(tensor.shape.begin(), tensor.shape.end(), [](uint64_t d) { return d == 1; });
}

// Safetensors files do not align their tensors.
template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

uint32_t WordAt(const SafetensorsTensor& tensor, uint64_t i) {
  return Load<uint32_t>(tensor.data.data() + i * sizeof(uint32_t));
}

uint64_t Words(uint64_t elements, uint32_t bits) { return (elements * bits + 31) / 32; }

bool IsRowLayout(Layout layout) {
  return layout != Layout::kColumnWords && layout != Layout::kAwqWords;
}

bool IsFp4(Layout layout) { return layout == Layout::kFp4 || layout == Layout::kMxFp4; }

// Scales and zero points by [row][group], and the group of each column where groups are no runs.
struct Tables {
  std::vector<float> scales;
  std::vector<int16_t> zeros;
  std::vector<uint32_t> group_of;  // [k], or empty

  uint64_t GroupAt(const HfPackedMatrix& matrix, uint64_t column) const {
    return group_of.empty() ? column / matrix.group : group_of[column];
  }
};

// Where the scale of a row and group stands in its tensor.
uint64_t ScaleIndex(const HfPackedMatrix& matrix, uint64_t row, uint64_t group) {
  if (!IsRowLayout(matrix.layout)) return group * matrix.n + row;
  return IsOneNumber(*matrix.parts.scales) ? 0 : row * matrix.groups() + group;
}

// Scales of NVFP4, times or divided by that of the matrix.
absl::Status ReadFp4Scales(const HfPackedMatrix& matrix, Tables& tables) {
  const SafetensorsTensor& tensor = *matrix.parts.scales;
  tables.scales.resize(tensor.data.size());
  ToF32(tensor.type, tensor.data, 0.0f, tables.scales.data());
  for (uint64_t i = 0; i < tables.scales.size(); ++i) {
    float& scale = tables.scales[i];
    if (std::isnan(scale) || scale < 0) {
      return TensorError(E::kBadScale, tensor.name,
                         fmt::format("element {} is {}, wanted a number of at least 0", i, scale));
    }
    const float coded = scale;
    scale = matrix.divides ? scale / matrix.scale : scale * matrix.scale;
    if (std::isfinite(FloatFromBf16(Bf16FromFloat(scale * kE2m1[7])))) continue;
    return TensorError(
        E::kBadScale, matrix.parts.global->name,
        fmt::format("{} {} element {} of {}, {}: a weight of {} times that is infinite",
                    matrix.scale, matrix.divides ? "divides" : "times", i,
                    QuotedForMessage(tensor.name), coded, kE2m1[7]));
  }
  return OkStatus();
}

// Powers of two, in U8 or F8_E8M0.
absl::Status ReadMxFp4Scales(const HfPackedMatrix& matrix, Tables& tables) {
  const SafetensorsTensor& tensor = *matrix.parts.scales;
  for (uint64_t i = 0; i < tensor.data.size(); ++i) {
    const auto code = static_cast<uint32_t>(tensor.data[i]);
    if (code < kInfiniteE8m0) continue;
    const std::string what =
        code == 255 ? "NaN" : fmt::format("2^{}: a weight of 6 times that is infinite", code - 127);
    return TensorError(E::kBadScale, tensor.name, fmt::format("element {} is {}", i, what));
  }
  tables.scales.resize(tensor.data.size());
  ToF32(SafetensorsType::kF8E8M0, tensor.data, 0.0f, tables.scales.data());
  return OkStatus();
}

absl::Status ReadScales(const HfPackedMatrix& matrix, Tables& tables) {
  if (matrix.layout == Layout::kFp4) return ReadFp4Scales(matrix, tables);
  if (matrix.layout == Layout::kMxFp4) return ReadMxFp4Scales(matrix, tables);
  const SafetensorsTensor& tensor = *matrix.parts.scales;
  const size_t size = BytesOf(tensor.type);
  tables.scales.resize(matrix.n * matrix.groups());
  float* out = tables.scales.data();
  for (uint64_t row = 0; row < matrix.n; ++row) {
    for (uint64_t group = 0; group < matrix.groups(); ++group, ++out) {
      const uint64_t at = ScaleIndex(matrix, row, group);
      ToF32(tensor.type, tensor.data.subspan(at * size, size), 0.0f, out);
      if (std::isfinite(*out)) continue;
      return TensorError(E::kBadScale, tensor.name,
                         fmt::format("element {} is {}, not a number", at, *out));
    }
  }
  return OkStatus();
}

// The stored zero point of a row and group.
int16_t ZeroAt(const HfPackedMatrix& matrix, uint64_t row, uint64_t group) {
  const SafetensorsTensor* zeros = matrix.parts.zeros;
  if (matrix.layout == Layout::kBytes) {
    if (zeros == nullptr) return 0;
    return static_cast<int8_t>(zeros->data[ScaleIndex(matrix, row, group)]);
  }
  if (zeros == nullptr) return static_cast<int16_t>(1 << (matrix.bits - 1));
  const uint32_t per_word = 32 / matrix.bits;
  const uint32_t mask = (1u << matrix.bits) - 1;
  uint64_t at = group * (matrix.n / per_word) + row / per_word;
  uint32_t place = row % per_word;
  if (matrix.layout == Layout::kRowWords) at = row / per_word * matrix.groups() + group;
  if (matrix.layout == Layout::kAwqWords) place = kAwqPlace[place];
  // The program that writes the first format of GPTQ takes one from each zero point of a word by
  // one subtraction, which borrows from the next where a zero point is 0. One addition undoes it.
  const uint32_t ones = !matrix.zeros_less_one ? 0 : matrix.bits == 4 ? 0x11111111 : 0x01010101;
  const uint32_t word = WordAt(*zeros, at) + ones;
  return static_cast<int16_t>(word >> (place * matrix.bits) & mask);
}

absl::Status ReadGroups(const HfPackedMatrix& matrix, Tables& tables) {
  const SafetensorsTensor* tensor = matrix.parts.group_of;
  if (tensor == nullptr) return OkStatus();
  bool is_run = true;
  std::vector<uint64_t> counts(matrix.groups());
  tables.group_of.resize(matrix.k);
  for (uint64_t i = 0; i < matrix.k; ++i) {
    const uint32_t group = WordAt(*tensor, i);
    // compressed-tensors: not in use.
    const bool is_unset = matrix.layout == Layout::kRowWords && group == UINT32_MAX;
    if (is_unset) {
      tables.group_of.clear();
      return OkStatus();
    }
    if (group >= matrix.groups()) {
      return TensorError(E::kBadScale, tensor->name,
                         fmt::format("element {} is {}, wanted a group in [0, {})", i,
                                     static_cast<int32_t>(group), matrix.groups()));
    }
    tables.group_of[i] = group;
    counts[group] += 1;
    is_run = is_run && group == i / matrix.group;
  }
  if (is_run) tables.group_of.clear();
  const auto odd = std::ranges::find_if(counts, [&](uint64_t c) { return c != matrix.group; });
  // compressed-tensors sorts the columns by group and cuts them evenly.
  if (matrix.layout != Layout::kRowWords || odd == counts.end()) return OkStatus();
  return TensorError(
      E::kBadScale, tensor->name,
      fmt::format("group {} has {} columns, wanted {}", odd - counts.begin(), *odd, matrix.group));
}

absl::StatusOr<Tables> ReadTables(const HfPackedMatrix& matrix) {
  Tables tables;
  BATON_RETURN_IF_ERROR(ReadScales(matrix, tables));
  BATON_RETURN_IF_ERROR(ReadGroups(matrix, tables));
  if (IsFp4(matrix.layout)) return tables;
  tables.zeros.resize(tables.scales.size());
  int16_t* out = tables.zeros.data();
  for (uint64_t row = 0; row < matrix.n; ++row) {
    for (uint64_t group = 0; group < matrix.groups(); ++group) *out++ = ZeroAt(matrix, row, group);
  }
  return tables;
}

// Whether each block of 32 columns has one group, and f16 holds all scales.
bool FitsBlocks(const HfPackedMatrix& matrix, const Tables& tables) {
  if (matrix.k % kQuantBlock != 0) return false;
  if (tables.group_of.empty() && matrix.group % kQuantBlock != 0) return false;
  for (uint64_t i = 0; i < tables.group_of.size(); ++i) {
    if (tables.group_of[i] != tables.group_of[i / kQuantBlock * kQuantBlock]) return false;
  }
  return std::ranges::all_of(
      tables.scales, [](float scale) { return FloatFromHalf(HalfFromFloat(scale)) == scale; });
}

GgmlType TypeOf(const HfPackedMatrix& matrix, const Tables& tables) {
  if (matrix.layout == Layout::kFp4) {
    return matrix.k % kNvfp4Block == 0 ? GgmlType::kNvfp4 : matrix.wide_type;
  }
  if (matrix.layout == Layout::kMxFp4) return GgmlType::kMxfp4;
  if (!FitsBlocks(matrix, tables)) return matrix.wide_type;
  const int middle = matrix.layout == Layout::kBytes ? 0 : 1 << (matrix.bits - 1);
  const bool is_symmetric =
      std::ranges::all_of(tables.zeros, [middle](int zero) { return zero == middle; });
  if (matrix.bits == 8) return is_symmetric ? GgmlType::kQ8_0 : matrix.wide_type;
  return is_symmetric ? GgmlType::kQ4_0 : GgmlType::kQ5_0;
}

GgmlType WideTypeOf(SafetensorsType scales) {
  if (scales == SafetensorsType::kF32) return GgmlType::kF32;
  return scales == SafetensorsType::kF16 ? GgmlType::kF16 : GgmlType::kBf16;
}

// Sets group from the shape of the scales.
absl::Status ReadGroupSize(HfPackedMatrix& matrix) {
  const SafetensorsTensor& scales = *matrix.parts.scales;
  if (!IsFloat(scales.type)) {
    return TensorError(
        E::kBadDtype, scales.name,
        fmt::format("{}, wanted F16, BF16 or F32", SafetensorsTypeName(scales.type)));
  }
  matrix.wide_type = WideTypeOf(scales.type);
  const std::vector<uint64_t>& shape = scales.shape;
  uint64_t groups = 0;
  if (!IsRowLayout(matrix.layout)) {
    if (shape.size() == 2 && shape[1] == matrix.n) groups = shape[0];
  } else if (IsOneNumber(scales) || shape == std::vector{matrix.n}) {
    groups = 1;
  } else if (shape.size() == 2 && shape[0] == matrix.n) {
    groups = shape[1];
  }
  if (groups == 0) {
    return TensorError(E::kBadScale, scales.name,
                       fmt::format("shape {} does not scale {}, which is a matrix of {} rows of {}",
                                   ShapeText(scales), QuotedForMessage(matrix.parts.codes->name),
                                   matrix.n, matrix.k));
  }
  if (matrix.k % groups != 0) {
    return TensorError(E::kBadScale, scales.name,
                       fmt::format("{} groups do not divide rows of {}", groups, matrix.k));
  }
  matrix.group = matrix.k / groups;
  return OkStatus();
}

absl::Status CheckZeros(const HfPackedMatrix& matrix) {
  const SafetensorsTensor* zeros = matrix.parts.zeros;
  if (zeros == nullptr) return OkStatus();
  if (matrix.layout == Layout::kBytes) {
    BATON_RETURN_IF_ERROR(WantType(*zeros, SafetensorsType::kI8));
    return WantShape(*zeros, matrix.parts.scales->shape);
  }
  BATON_RETURN_IF_ERROR(WantType(*zeros, SafetensorsType::kI32));
  const uint64_t words = Words(matrix.n, matrix.bits);
  return matrix.layout == Layout::kRowWords ? WantShape(*zeros, {words, matrix.groups()})
                                            : WantShape(*zeros, {matrix.groups(), words});
}

// Sets n, k and bits of X.weight_packed or of X.weight in I8.
absl::Status ReadRowShape(HfPackedMatrix& matrix) {
  const SafetensorsTensor& codes = *matrix.parts.codes;
  if (codes.shape.size() != 2)
    return TensorError(E::kBadShape, codes.name, ShapeText(codes) + " is no matrix");
  matrix.n = codes.shape[0];
  matrix.k = codes.shape[1];
  matrix.bits = 8;
  if (matrix.layout == Layout::kBytes) return OkStatus();
  const SafetensorsTensor& shape = *matrix.parts.shape;
  BATON_RETURN_IF_ERROR(WantType(shape, SafetensorsType::kI64));
  BATON_RETURN_IF_ERROR(WantShape(shape, {2}));
  const auto n = Load<int64_t>(shape.data.data());
  const auto k = Load<int64_t>(shape.data.data() + sizeof(int64_t));
  for (const uint32_t bits : {4u, 8u}) {
    const bool is_it = n == static_cast<int64_t>(matrix.n) && k > 0 && k <= UINT32_MAX &&
                       Words(static_cast<uint64_t>(k), bits) == codes.shape[1];
    if (!is_it) continue;
    matrix.bits = bits;
    matrix.k = static_cast<uint64_t>(k);
    return OkStatus();
  }
  return TensorError(E::kBadShape, codes.name,
                     fmt::format("{} holds no [{}, {}] of 4 or 8 bits, as {} says",
                                 ShapeText(codes), n, k, QuotedForMessage(shape.name)));
}

// Sets n, k and bits of X.qweight. Its zero points tell the bits, as there is one for each output.
absl::Status ReadColumnShape(HfPackedMatrix& matrix) {
  const SafetensorsTensor& codes = *matrix.parts.codes;
  if (codes.shape.size() != 2)
    return TensorError(E::kBadShape, codes.name, ShapeText(codes) + " is no matrix");
  if (matrix.layout == Layout::kAwqWords) {
    matrix.k = codes.shape[0];
    matrix.n = codes.shape[1] * 8;
    return OkStatus();
  }
  matrix.n = codes.shape[1];
  const std::vector<uint64_t>& zeros = matrix.parts.zeros->shape;
  matrix.bits = zeros.size() == 2 && zeros[1] == Words(matrix.n, 8) ? 8 : 4;
  matrix.k = codes.shape[0] * (32 / matrix.bits);
  if (matrix.n * matrix.bits % 32 == 0) return OkStatus();
  return TensorError(
      E::kBadShape, codes.name,
      fmt::format("{} outputs of {} bits are no whole words", matrix.n, matrix.bits));
}

absl::Status CheckFp4(HfPackedMatrix& matrix) {
  const SafetensorsTensor& codes = *matrix.parts.codes;
  const SafetensorsTensor& scales = *matrix.parts.scales;
  matrix.group = matrix.layout == Layout::kFp4 ? kFp4Group : kMxFp4Group;
  if (codes.shape.size() != 2 || codes.shape[1] % (matrix.group / 2) != 0) {
    return TensorError(E::kBadShape, codes.name,
                       fmt::format("{} is no matrix of rows of whole groups of {}",
                                   ShapeText(codes), matrix.group));
  }
  matrix.n = codes.shape[0];
  matrix.k = codes.shape[1] * 2;
  matrix.wide_type = GgmlType::kBf16;
  if (matrix.layout == Layout::kMxFp4) return WantShape(scales, {matrix.n, matrix.groups()});
  const SafetensorsTensor& global = *matrix.parts.global;
  BATON_RETURN_IF_ERROR(WantType(scales, SafetensorsType::kF8E4M3));
  BATON_RETURN_IF_ERROR(WantShape(scales, {matrix.n, matrix.groups()}));
  BATON_RETURN_IF_ERROR(WantType(global, SafetensorsType::kF32));
  if (!IsOneNumber(global)) return WantShape(global, {1});
  matrix.scale = Load<float>(global.data.data());
  if (std::isfinite(matrix.scale) && matrix.scale > 0) return OkStatus();
  return TensorError(E::kBadScale, global.name,
                     fmt::format("it is {}, wanted a positive number", matrix.scale));
}

// The config declares such a matrix.
absl::Status CheckDeclared(const HfPackedMatrix& matrix, const HfQuantization& quantization) {
  std::string_view lacks;
  const bool is_float = IsFp4(matrix.layout);
  const std::string_view name = matrix.parts.codes->name;
  for (const HfWeightKind& kind : KindsOf(quantization, name.substr(0, name.rfind('.')))) {
    const bool same_group = kind.group == matrix.group || (kind.group == 0 && matrix.groups() == 1);
    // A byte also holds the codes of fewer bits, as compressed-tensors 0.20 writes its W4A8.
    const bool same_bits =
        matrix.layout == Layout::kBytes ? kind.bits <= matrix.bits : kind.bits == matrix.bits;
    if (kind.is_float != is_float || !same_bits || !same_group) continue;
    const bool lacks_zeros = kind.has_zeros && matrix.parts.zeros == nullptr;
    const bool lacks_order =
        kind.has_order && matrix.groups() > 1 && matrix.parts.group_of == nullptr;
    if (!lacks_zeros && !lacks_order) return OkStatus();
    lacks = lacks_zeros ? "config.json says that it has zero points, and there are none"
                        : "config.json says that its columns are in another order, and there is "
                          "no g_idx";
  }
  if (!lacks.empty()) return TensorError(E::kBadScale, matrix.parts.codes->name, lacks);
  return TensorError(
      E::kUnsupportedValue, matrix.parts.codes->name,
      fmt::format("{}, which quantization_config does not declare", HfPackedText(matrix)));
}

absl::Status CheckLimits(const HfPackedMatrix& matrix) {
  if (matrix.n <= UINT32_MAX && matrix.k <= UINT32_MAX) return OkStatus();
  return TensorError(E::kBadShape, matrix.parts.codes->name, "more than 2^32 - 1 rows or columns");
}

// A part beside the codes, and the layouts that must and that may have it.
struct PartRow {
  const SafetensorsTensor* HfPackedParts::*part;
  E missing;
  const char* what;
  uint32_t needed;   // a bit for each layout
  uint32_t allowed;  // as `needed`
};

constexpr uint32_t BitOf(Layout layout) { return 1u << static_cast<uint32_t>(layout); }
constexpr uint32_t kWordRows = BitOf(Layout::kRowWords);
constexpr uint32_t kByteRows = BitOf(Layout::kBytes);
constexpr uint32_t kFp4Rows = BitOf(Layout::kFp4);
constexpr uint32_t kMxFp4Rows = BitOf(Layout::kMxFp4);
constexpr uint32_t kColumns = BitOf(Layout::kColumnWords);
constexpr uint32_t kAwqColumns = BitOf(Layout::kAwqWords);
constexpr uint32_t kIntegers = kWordRows | kByteRows | kColumns | kAwqColumns;
constexpr PartRow kParts[] = {
    {&HfPackedParts::scales, E::kBadScale, "are no scales", kIntegers | kFp4Rows | kMxFp4Rows,
     kIntegers | kFp4Rows | kMxFp4Rows},
    {&HfPackedParts::zeros, E::kBadScale, "is no tensor qzeros", kColumns | kAwqColumns, kIntegers},
    {&HfPackedParts::group_of, E::kBadScale, "is no tensor g_idx", 0,
     kWordRows | kByteRows | kColumns},
    {&HfPackedParts::shape, E::kBadShape, "is no tensor weight_shape", kWordRows, kWordRows},
    {&HfPackedParts::global, E::kBadScale, "is no scale of the whole matrix", kFp4Rows, kFp4Rows},
};

std::string_view NameOf(Layout layout) {
  switch (layout) {
    case Layout::kFp4:
      return "in NVFP4";
    case Layout::kMxFp4:
      return "in MXFP4";
    case Layout::kBytes:
      return "of a byte each";
    case Layout::kRowWords:
      return "in words along rows";
    case Layout::kColumnWords:
      return "in words of GPTQ";
    case Layout::kAwqWords:
      return "in words of AWQ";
  }
  return "";
}

// Its layout has all parts that are there, and all that it needs are.
absl::Status CheckParts(const HfPackedMatrix& matrix) {
  const uint32_t layout = BitOf(matrix.layout);
  for (const PartRow& row : kParts) {
    const SafetensorsTensor* part = matrix.parts.*row.part;
    if (part == nullptr && (row.needed & layout) != 0) {
      return TensorError(row.missing, matrix.parts.codes->name,
                         fmt::format("there {} beside it", row.what));
    }
    if (part == nullptr || (row.allowed & layout) != 0) continue;
    return TensorError(
        E::kUnknownTensor, part->name,
        fmt::format("no part of {}, whose codes lie {}", QuotedForMessage(matrix.parts.codes->name),
                    NameOf(matrix.layout)));
  }
  return OkStatus();
}

absl::Status CheckMatrix(const HfQuantization& quantization, HfPackedMatrix& matrix) {
  const HfPackedParts& parts = matrix.parts;
  BATON_RETURN_IF_ERROR(CheckParts(matrix));
  if (IsFp4(matrix.layout)) {
    BATON_RETURN_IF_ERROR(CheckFp4(matrix));
    BATON_RETURN_IF_ERROR(CheckLimits(matrix));
    return CheckDeclared(matrix, quantization);
  }
  if (IsRowLayout(matrix.layout)) {
    BATON_RETURN_IF_ERROR(ReadRowShape(matrix));
  } else {
    BATON_RETURN_IF_ERROR(ReadColumnShape(matrix));
  }
  BATON_RETURN_IF_ERROR(CheckLimits(matrix));
  BATON_RETURN_IF_ERROR(ReadGroupSize(matrix));
  BATON_RETURN_IF_ERROR(CheckZeros(matrix));
  if (parts.group_of != nullptr) {
    BATON_RETURN_IF_ERROR(WantType(*parts.group_of, SafetensorsType::kI32));
    BATON_RETURN_IF_ERROR(WantShape(*parts.group_of, {matrix.k}));
  }
  return CheckDeclared(matrix, quantization);
}

// Codes of `count` elements of a row from column `at` on, as they are stored.
void CodesOf(const HfPackedMatrix& matrix, uint64_t row, uint64_t at, int16_t* out,
             uint32_t count) {
  const std::byte* data = matrix.parts.codes->data.data();
  if (matrix.layout == Layout::kBytes) {
    const std::byte* from = data + row * matrix.k + at;
    for (uint32_t i = 0; i < count; ++i) out[i] = static_cast<int8_t>(from[i]);
    return;
  }
  if (matrix.layout == Layout::kAwqWords) {
    const uint64_t row_bytes = matrix.n / 8 * sizeof(uint32_t);
    const std::byte* from = data + at * row_bytes + row / 8 * sizeof(uint32_t);
    const uint32_t shift = kAwqPlace[row % 8] * 4;
    for (uint32_t i = 0; i < count; ++i, from += row_bytes) {
      out[i] = static_cast<int16_t>(Load<uint32_t>(from) >> shift & 15);
    }
    return;
  }
  const bool by_row = matrix.layout == Layout::kRowWords;
  const uint32_t per_word = 32 / matrix.bits;
  const uint32_t mask = (1u << matrix.bits) - 1;
  const uint64_t first =
      by_row ? row * Words(matrix.k, matrix.bits) + at / per_word : at / per_word * matrix.n + row;
  const std::byte* from = data + first * sizeof(uint32_t);
  const uint64_t step = (by_row ? 1 : matrix.n) * sizeof(uint32_t);
  for (uint32_t i = 0; i < count; from += step) {
    uint32_t word = Load<uint32_t>(from);
    for (uint32_t end = std::min(i + per_word, count); i < end; ++i, word >>= matrix.bits) {
      out[i] = static_cast<int16_t>(word & mask);
    }
  }
}

// Writes one block of 32 integers that the type holds, with their scale.
void PutBlock(GgmlType type, float scale, const int16_t* q, std::byte* out) {
  const uint16_t half = HalfFromFloat(scale);
  std::memcpy(out, &half, sizeof(half));
  out += sizeof(half);
  if (type == GgmlType::kQ8_0) {
    for (uint32_t i = 0; i < kQuantBlock; ++i) out[i] = static_cast<std::byte>(q[i]);
    return;
  }
  const int offset = type == GgmlType::kQ4_0 ? 8 : 16;
  uint32_t fifth_bits = 0;
  std::byte* nibbles = type == GgmlType::kQ4_0 ? out : out + sizeof(fifth_bits);
  for (uint32_t i = 0; i < kQuantBlock / 2; ++i) {
    const uint32_t low = static_cast<uint32_t>(q[i] + offset);
    const uint32_t high = static_cast<uint32_t>(q[i + kQuantBlock / 2] + offset);
    nibbles[i] = static_cast<std::byte>((low & 15) | (high & 15) << 4);
    fifth_bits |= low >> 4 << i | high >> 4 << (i + kQuantBlock / 2);
  }
  if (type == GgmlType::kQ5_0) std::memcpy(out, &fifth_bits, sizeof(fifth_bits));
}

void PutFloat(GgmlType type, float value, std::byte* out) {
  if (type == GgmlType::kF32) {
    std::memcpy(out, &value, sizeof(value));
    return;
  }
  const uint16_t bits = type == GgmlType::kF16 ? HalfFromFloat(value) : Bf16FromFloat(value);
  std::memcpy(out, &bits, sizeof(bits));
}

Layout LayoutOf(HfQuantMethod method, const HfPackedParts& parts) {
  if (method == HfQuantMethod::kAwq) return Layout::kAwqWords;
  if (method == HfQuantMethod::kGptq) return Layout::kColumnWords;
  if (parts.codes->type == SafetensorsType::kU8) {
    const bool has_powers =
        parts.scales != nullptr && (parts.scales->type == SafetensorsType::kU8 ||
                                    parts.scales->type == SafetensorsType::kF8E8M0);
    return has_powers ? Layout::kMxFp4 : Layout::kFp4;
  }
  return parts.codes->type == SafetensorsType::kI8 ? Layout::kBytes : Layout::kRowWords;
}

const GgufTensorType& RowOf(GgmlType type) {
  return *FindGgufTensorType(static_cast<uint32_t>(type));
}

// Where the repacked rows go.
struct Target {
  GgmlType type;
  std::byte* out;
  uint64_t row_bytes;
};

// A block of GGUF pairs element j of 16 with j + 8, a folder element 2j with 2j + 1.
void RepackFp4(const HfPackedMatrix& matrix, std::byte* out) {
  constexpr std::byte kLow{0x0F};
  constexpr std::byte kHigh{0xF0};
  constexpr uint64_t kGroups = kNvfp4Block / kFp4Group;
  const std::byte* in = matrix.parts.codes->data.data();
  const std::byte* scales = matrix.parts.scales->data.data();
  for (uint64_t block = 0; block < matrix.n * matrix.k / kNvfp4Block; ++block) {
    out = std::copy_n(scales + block * kGroups, kGroups, out);
    for (uint64_t group = 0; group < kGroups; ++group, in += kFp4Group / 2) {
      for (uint64_t i = 0; i < kFp4Group / 4; ++i) {
        const std::byte low = in[i];
        const std::byte high = in[i + kFp4Group / 4];
        *out++ = (low & kLow) | (high & kLow) << 4;
        *out++ = low >> 4 | (high & kHigh);
      }
    }
  }
}

// Groups divide rows, so neither knows where a row ends.
void WidenFp4(const HfPackedMatrix& matrix, const Tables& tables, std::byte* out) {
  const std::byte* codes = matrix.parts.codes->data.data();
  const float* scales = tables.scales.data();
  for (uint64_t i = 0; i < matrix.n * matrix.k; ++i, out += sizeof(uint16_t)) {
    const auto code = static_cast<uint32_t>(codes[i / 2]) >> (i % 2 * 4) & 15;
    PutFloat(GgmlType::kBf16, kE2m1[code] * scales[i / matrix.group], out);
  }
}

// Repacks the elements of a row from column `at` on, at most a block.
void RepackBlock(const HfPackedMatrix& matrix, const Tables& tables, uint64_t row, uint64_t at,
                 const Target& target) {
  const auto count = static_cast<uint32_t>(std::min<uint64_t>(kQuantBlock, matrix.k - at));
  int16_t q[kQuantBlock];
  CodesOf(matrix, row, at, q, count);
  const float* scales = tables.scales.data() + row * matrix.groups();
  const int16_t* zeros = tables.zeros.data() + row * matrix.groups();
  const GgufTensorType& type = RowOf(target.type);
  std::byte* out =
      target.out + row * target.row_bytes + at / type.block_elements * type.block_bytes;
  if (type.block_elements == kQuantBlock) {
    const uint64_t group = tables.GroupAt(matrix, at);
    for (int16_t& code : q) code = static_cast<int16_t>(code - zeros[group]);
    PutBlock(target.type, scales[group], q, out);
    return;
  }
  for (uint32_t i = 0; i < count; ++i, out += type.block_bytes) {
    const uint64_t group = tables.GroupAt(matrix, at + i);
    PutFloat(target.type, scales[group] * static_cast<float>(q[i] - zeros[group]), out);
  }
}

}  // namespace

uint64_t HfPackedMatrix::RowBytes(GgmlType as) const {
  return k / RowOf(as).block_elements * RowOf(as).block_bytes;
}

absl::StatusOr<HfPackedMatrix> HfPackedMatrixOf(const HfPackedParts& parts,
                                                const HfQuantization& quantization) {
  HfPackedMatrix matrix;
  matrix.parts = parts;
  matrix.zeros_less_one = quantization.zeros_less_one;
  matrix.divides = quantization.method == HfQuantMethod::kCompressed;
  matrix.layout = LayoutOf(quantization.method, parts);
  if (matrix.layout != Layout::kBytes && !IsFp4(matrix.layout)) {
    BATON_RETURN_IF_ERROR(WantType(*parts.codes, SafetensorsType::kI32));
  }
  BATON_RETURN_IF_ERROR(CheckMatrix(quantization, matrix));
  BATON_ASSIGN_OR_RETURN(const Tables tables, ReadTables(matrix));
  matrix.type = TypeOf(matrix, tables);
  return matrix;
}

absl::StatusOr<GgmlType> CommonType(const HfPackedMatrix& a, GgmlType type_a,
                                    const HfPackedMatrix& b) {
  const bool has_scale = type_a == GgmlType::kNvfp4;
  if (type_a == b.type && (!has_scale || a.scale == b.scale)) return type_a;
  const auto is_of_four = [](GgmlType type) {
    return type == GgmlType::kQ4_0 || type == GgmlType::kQ5_0;
  };
  if (is_of_four(type_a) && is_of_four(b.type)) return GgmlType::kQ5_0;
  if (a.wide_type == b.wide_type) return a.wide_type;
  return TensorError(
      E::kBadScale, b.parts.scales->name,
      fmt::format("{}, and {} of another expert is {}", SafetensorsTypeName(b.parts.scales->type),
                  QuotedForMessage(a.parts.scales->name),
                  SafetensorsTypeName(a.parts.scales->type)));
}

absl::Status RepackHfMatrix(const HfPackedMatrix& matrix, GgmlType type, std::byte* out) {
  BATON_ASSIGN_OR_RETURN(const Tables tables, ReadTables(matrix));
  const Target target = {type, out, matrix.RowBytes(type)};
  if (IsFp4(matrix.layout)) {
    if (type == GgmlType::kNvfp4) {
      RepackFp4(matrix, out);
    } else if (type == GgmlType::kMxfp4) {
      const HfExpertShape one = {.experts = 1, .n = matrix.n, .k = matrix.k};
      RepackMxfp4Experts(one, matrix.parts.codes->data, matrix.parts.scales->data, 0, out);
    } else {
      WidenFp4(matrix, tables, out);
    }
    return OkStatus();
  }
  for (uint64_t tile = 0; tile < matrix.n; tile += kTileRows) {
    const uint64_t end = std::min(tile + kTileRows, matrix.n);
    for (uint64_t at = 0; at < matrix.k; at += kQuantBlock) {
      for (uint64_t row = tile; row < end; ++row) RepackBlock(matrix, tables, row, at, target);
    }
  }
  return OkStatus();
}

std::string HfPackedText(const HfPackedMatrix& matrix) {
  if (matrix.layout == Layout::kFp4) return "NVFP4";
  if (matrix.layout == Layout::kMxFp4) return "MXFP4";
  if (matrix.groups() == 1) return fmt::format("{} bits, a scale each row", matrix.bits);
  return fmt::format("{} bits in groups of {}", matrix.bits, matrix.group);
}

}  // namespace baton::model
