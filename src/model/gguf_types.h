// The two type tables of the GGUF format: value types of metadata and element types of tensors.
// Constant data; any thread.
//
// To support another quantised tensor type: give the kernels a packer for it and set its row of the
// table to kSupported. Nothing else of the reader changes.
#ifndef BATON_MODEL_GGUF_TYPES_H_
#define BATON_MODEL_GGUF_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace baton::model {

// Type of a metadata value or of an array's elements (ggml's gguf.md, "gguf_metadata_value_type").
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Bytes of one value of a fixed-size type; 0 for strings, arrays and unknown types.
size_t GgufValueBytes(GgufValueType type);
// "u32", "string"; "?" for an unknown type.
std::string_view GgufValueTypeName(GgufValueType type);

// How this build supports a tensor type.
enum class GgufTypeSupport : uint8_t {
  kSupported = 0,  // as weights of a matmul, or (F32) as a norm
  kSized = 1,      // the reader knows its size, the kernels cannot compute with it
  kUnsized = 2,    // known by name only
  kRemoved = 3,    // withdrawn by the format
};

// Ids of the supported types, as in ggml.h.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23,
  kBf16 = 30,
  kMxfp4 = 39,
  kNvfp4 = 40,  // becomes bf16 when it is loaded (nvfp4_rows.h)
};

// The scales that the codes of an fp8 matrix are multiplied by (kernels/fp8_rows.h).
struct Fp8Scales {
  std::span<const float> values;  // [rows][ceil(row length / group)]
  uint32_t group = 0;
};

// One row of the tensor type table.
struct GgufTensorType {
  uint32_t id;
  std::string_view name;
  uint32_t block_elements;  // elements of one block; a row is a whole number of blocks
  uint32_t block_bytes;     // 0 when not known
  GgufTypeSupport support;
  const Fp8Scales* fp8 = nullptr;  // of one tensor in fp8, whose row this is
  float scale = 1.0f;              // NVFP4: what all block scales are multiplied by
  bool divides = false;            // or divided by
};

// The row of a matrix in fp8, which folders alone have: the format has no id for it.
inline GgufTensorType Fp8TensorType(const Fp8Scales& scales) {
  return {UINT32_MAX, "F8_E4M3", 1, 1, GgufTypeSupport::kSupported, &scales};
}

// The row of a matrix in NVFP4 that has a scale of its own.
inline GgufTensorType Nvfp4TensorType(float scale, bool divides) {
  return {static_cast<uint32_t>(GgmlType::kNvfp4),
          "NVFP4",
          64,
          36,
          GgufTypeSupport::kSupported,
          nullptr,
          scale,
          divides};
}

// The row of `id`; nullptr when the format has never had it (as far as this table knows).
const GgufTensorType* FindGgufTensorType(uint32_t id);

}  // namespace baton::model

#endif  // BATON_MODEL_GGUF_TYPES_H_
