// SafetensorsFile: the checked directory of one .safetensors file. Constant after opening; any
// thread. Format: the README of the safetensors project (u64 header length, a JSON header, data).
//
// The file is untrusted input. Invariants of an opened file
//  1. Every tensor's bytes lie in the file, and are as many as its shape and type need. The
//     tensors follow each other without gap or overlap up to the end of the file.
//  2. Names are unique.
//  3. The header is at most kMaxSafetensorsHeaderBytes and is never held as a tree: what parsing
//     holds at once is below eight times the header plus 4 KiB, whatever is in it.
// A refused file gives one Status that carries a FolderErrorCode.
#ifndef BATON_MODEL_SAFETENSORS_H_
#define BATON_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/model/file_mapping.h"

namespace baton::model {

// A tensor takes about 100 bytes of header; files of the largest models hold some ten thousand.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = uint64_t{16} << 20;
inline constexpr size_t kMaxSafetensorsDims = 6;  // patches of videos have 5

// The element types that weights are made of here. U8 are bytes of MXFP4 and NVFP4 and scales as
// F8_E8M0 has them (powers of two), integers are parts of packed matrices (hf_packed.h).
enum class SafetensorsType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBf16 = 2,
  kF8E4M3 = 3,
  kU8 = 4,
  kI8 = 5,
  kI32 = 6,
  kI64 = 7,
  kF8E8M0 = 8,
};
size_t BytesOf(SafetensorsType type);
// "F32", "F8_E4M3"
std::string_view SafetensorsTypeName(SafetensorsType type);
// Whether elements are numbers by themselves: neither integers nor codes.
constexpr bool IsFloat(SafetensorsType type) { return type <= SafetensorsType::kBf16; }

// One tensor.
struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<uint64_t> shape;  // slowest first, each >= 1, at most kMaxSafetensorsDims; [] is one
  std::span<const std::byte> data;
};
// "[2048, 1024]"
std::string ShapeText(const SafetensorsTensor& tensor);

// See the file comment.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  // Parses `bytes`, which must outlive the result.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> FromBytes(
      std::span<const std::byte> bytes);

  // Empty when it was parsed from bytes.
  const FileMapping& mapping() const { return mapping_; }
  uint64_t file_bytes() const { return bytes_.size(); }
  uint64_t header_bytes() const { return header_bytes_; }
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }  // by ascending name

 private:
  SafetensorsFile() = default;
  absl::Status Parse();

  FileMapping mapping_;
  std::span<const std::byte> bytes_;
  uint64_t header_bytes_ = 0;
  std::vector<SafetensorsTensor> tensors_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_SAFETENSORS_H_
