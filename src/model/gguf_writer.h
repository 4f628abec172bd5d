// GgufWriter: a GGUF v3 header (metadata and tensor table) in memory. One use, one thread.
// Format: ggml's docs/gguf.md.
#ifndef BATON_MODEL_GGUF_WRITER_H_
#define BATON_MODEL_GGUF_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/model/gguf.h"

namespace baton::model {

// See the file comment. Keys and names must be unique; the writer does not check.
class GgufWriter {
 public:
  void AddString(std::string_view key, std::string_view text);
  void AddU32(std::string_view key, uint32_t value);
  void AddF32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddBools(std::string_view key, const std::vector<bool>& values);
  void AddStrings(std::string_view key, std::span<const std::string> texts);
  void AddFloats(std::string_view key, std::span<const float> values);
  void AddInts(std::string_view key, std::span<const int32_t> values);
  // A value of a file that was read.
  void AddValue(std::string_view key, const GgufValue& value);

  // A row of the tensor table; its data begins at the next multiple of kAlignment of the data.
  struct TensorRow {
    std::string_view name;
    std::span<const uint64_t> dims;  // dims[0] contiguous
    uint32_t type_id = 0;
    uint64_t num_bytes = 0;
  };
  void AddTensor(const TensorRow& row);

  // Everything up to the data, padded to kAlignment when there are tensors.
  std::vector<std::byte> Header() const;

  static constexpr uint64_t kAlignment = 32;  // general.alignment's default
  static constexpr uint64_t Padded(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  void BeginValue(std::string_view key, GgufValueType type);
  void BeginArray(std::string_view key, GgufValueType element_type, uint64_t count);

  std::vector<std::byte> entries_;
  std::vector<std::byte> tensors_;
  uint64_t num_entries_ = 0;
  uint64_t num_tensors_ = 0;
  uint64_t data_bytes_ = 0;
};

}  // namespace baton::model

#endif  // BATON_MODEL_GGUF_WRITER_H_
