// GgufParser: fills a GgufFile from its bytes; the only place that reads lengths and offsets of an
// untrusted file. Private to the GGUF reader. One use, one thread.
#ifndef BATON_MODEL_GGUF_PARSER_H_
#define BATON_MODEL_GGUF_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "src/model/gguf.h"

namespace baton::model {

// Reads forward through the header. Every read names what it reads, for the error message.
class GgufHeaderCursor {
 public:
  // `max_bytes` is the header limit.
  GgufHeaderCursor(std::span<const std::byte> bytes, uint64_t max_bytes)
      : bytes_(bytes), max_bytes_(max_bytes) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }

  absl::StatusOr<uint32_t> U32(std::string_view what);
  absl::StatusOr<uint64_t> U64(std::string_view what);
  // `size` raw bytes; kTruncated when fewer are left, kHeaderTooLarge beyond the header limit.
  absl::StatusOr<std::span<const std::byte>> Bytes(uint64_t size, std::string_view what);
  // A u64 length <= max_bytes and that many characters.
  absl::StatusOr<std::string_view> String(uint64_t max_bytes, std::string_view what);

 private:
  std::span<const std::byte> bytes_;
  uint64_t max_bytes_;
  uint64_t offset_ = 0;
};

// Parses magic, metadata and tensor table in file order, then checks the data section.
class GgufParser {
 public:
  GgufParser(GgufFile& file, uint64_t max_header_bytes)
      : file_(file), cursor_(file.bytes_, max_header_bytes) {}
  absl::Status Parse();

 private:
  absl::Status ParseMagicAndCounts();
  absl::Status ParseEntry();
  absl::StatusOr<GgufValue> ParseValue(std::string_view key, GgufValueType type);
  absl::StatusOr<GgufValue> ParseArray(std::string_view key);
  // Sorts the names for lookup; kDuplicateKey when one occurs twice.
  absl::Status IndexKeys();
  absl::Status ReadSplit();
  absl::Status ReadAlignment();
  absl::Status ParseTensor();
  absl::Status ParseDims(GgufTensor& tensor);
  absl::Status CheckTypeAndSize(GgufTensor& tensor, uint32_t type_id, uint64_t& num_bytes) const;
  absl::Status PlaceTensors();

  GgufFile& file_;
  GgufHeaderCursor cursor_;
  uint64_t num_entries_ = 0;
  uint64_t num_tensors_ = 0;
  // Until PlaceTensors, tensors_[i].data is a placeholder and these hold what the file says.
  struct Extent {
    uint64_t offset;  // from the start of the data section
    uint64_t num_bytes;
  };
  std::vector<Extent> extents_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_GGUF_PARSER_H_
