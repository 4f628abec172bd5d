#include "src/model/gguf_parser.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "src/base/byte_text.h"
#include "src/base/checked_math.h"
#include "src/base/quoted_text.h"

namespace baton::model {
namespace {

// Smallest file size of one metadata entry: key length, 1-byte key, type, 1-byte value.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
// Smallest tensor row: name length, 1-byte name, n_dims, one dim, type, offset.
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr uint64_t kMaxSigned = std::numeric_limits<int64_t>::max();

// Fills `order` with 0..count-1 in ascending order of name; a name that occurs twice, if any.
template <typename NameOf>
std::optional<std::string_view> SortByName(size_t count, NameOf name_of,
                                           std::vector<uint32_t>& order) {
  order.resize(count);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return name_of(a) < name_of(b); });
  const auto twice = std::adjacent_find(
      order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return name_of(a) == name_of(b); });
  if (twice == order.end()) return std::nullopt;
  return name_of(*twice);
}

bool IsBadBool(std::byte byte) { return byte > std::byte{1}; }

}  // namespace

absl::StatusOr<std::span<const std::byte>> GgufHeaderCursor::Bytes(uint64_t size,
                                                                   std::string_view what) {
  if (size > remaining()) {
    return GgufError(GgufErrorCode::kTruncated,
                     fmt::format("{} needs {} bytes at offset {}, the file has {} left", what, size,
                                 offset_, remaining()));
  }
  if (size > max_bytes_ - offset_) {
    return GgufError(GgufErrorCode::kHeaderTooLarge,
                     fmt::format("{} of {} bytes at offset {} goes beyond the header limit of {}",
                                 what, size, offset_, max_bytes_));
  }
  const std::span<const std::byte> bytes = bytes_.subspan(offset_, size);
  offset_ += size;
  return bytes;
}

absl::StatusOr<uint32_t> GgufHeaderCursor::U32(std::string_view what) {
  BATON_ASSIGN_OR_RETURN(const auto bytes, Bytes(sizeof(uint32_t), what));
  uint32_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

absl::StatusOr<uint64_t> GgufHeaderCursor::U64(std::string_view what) {
  BATON_ASSIGN_OR_RETURN(const auto bytes, Bytes(sizeof(uint64_t), what));
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

absl::StatusOr<std::string_view> GgufHeaderCursor::String(uint64_t max_bytes,
                                                          std::string_view what) {
  BATON_ASSIGN_OR_RETURN(const uint64_t length, U64(what));
  if (length > max_bytes) {
    return GgufError(GgufErrorCode::kStringTooLong,
                     fmt::format("{} has length {}, the limit is {}", what, length, max_bytes));
  }
  BATON_ASSIGN_OR_RETURN(const auto bytes, Bytes(length, what));
  return AsChars(bytes);
}

absl::Status GgufParser::Parse() {
  BATON_RETURN_IF_ERROR(ParseMagicAndCounts());
  // Reserving what the counts claim is safe: the file must be able to hold that many.
  file_.entries_.reserve(std::min(num_entries_, cursor_.remaining() / kMinEntryBytes));
  for (uint64_t i = 0; i < num_entries_; ++i) BATON_RETURN_IF_ERROR(ParseEntry());
  BATON_RETURN_IF_ERROR(IndexKeys());
  BATON_RETURN_IF_ERROR(ReadSplit());
  BATON_RETURN_IF_ERROR(ReadAlignment());
  const uint64_t most_tensors = cursor_.remaining() / kMinTensorBytes;
  file_.tensors_.reserve(std::min(num_tensors_, most_tensors));
  extents_.reserve(std::min(num_tensors_, most_tensors));
  for (uint64_t i = 0; i < num_tensors_; ++i) BATON_RETURN_IF_ERROR(ParseTensor());
  file_.header_bytes_ = cursor_.offset();
  BATON_RETURN_IF_ERROR(file_.IndexTensors());
  return PlaceTensors();
}

absl::Status GgufParser::ParseMagicAndCounts() {
  BATON_ASSIGN_OR_RETURN(const auto magic, cursor_.Bytes(4, "magic"));
  const std::string_view magic_text = AsChars(magic);
  if (magic_text == "FUGG") {
    return GgufError(GgufErrorCode::kWrongEndian, "magic is \"FUGG\": a big-endian file");
  }
  if (magic_text != "GGUF") {
    return GgufError(GgufErrorCode::kBadMagic,
                     fmt::format("magic is {}, not \"GGUF\"", QuotedForMessage(magic_text)));
  }
  BATON_ASSIGN_OR_RETURN(file_.version_, cursor_.U32("version"));
  if ((file_.version_ & 0xFFFFu) == 0) {
    return GgufError(
        GgufErrorCode::kWrongEndian,
        fmt::format("version 0x{:08x} has its low 16 bits 0: a big-endian file", file_.version_));
  }
  if (file_.version_ != 2 && file_.version_ != 3) {
    return GgufError(GgufErrorCode::kBadVersion,
                     fmt::format("version {} is not supported (2 and 3 are)", file_.version_));
  }
  BATON_ASSIGN_OR_RETURN(num_tensors_, cursor_.U64("tensor count"));
  if (num_tensors_ > kMaxGgufTensors) {  // negative counts are huge here
    return GgufError(GgufErrorCode::kTooManyTensors,
                     fmt::format("tensor count {} is outside [0, {}]",
                                 static_cast<int64_t>(num_tensors_), kMaxGgufTensors));
  }
  BATON_ASSIGN_OR_RETURN(num_entries_, cursor_.U64("key count"));
  if (num_entries_ > kMaxGgufKeys) {
    return GgufError(GgufErrorCode::kTooManyKeys,
                     fmt::format("key count {} is outside [0, {}]",
                                 static_cast<int64_t>(num_entries_), kMaxGgufKeys));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseEntry() {
  BATON_ASSIGN_OR_RETURN(const std::string_view key, cursor_.String(kMaxGgufKeyBytes, "key"));
  if (key.empty() || key.find('\0') != std::string_view::npos) {
    return GgufError(GgufErrorCode::kBadKey,
                     fmt::format("key {} at offset {} is empty or has a NUL", QuotedForMessage(key),
                                 cursor_.offset() - key.size()));
  }
  BATON_ASSIGN_OR_RETURN(const uint32_t type, cursor_.U32("value type"));
  BATON_ASSIGN_OR_RETURN(const GgufValue value, ParseValue(key, static_cast<GgufValueType>(type)));
  file_.entries_.push_back({key, value});
  return absl::OkStatus();
}

absl::StatusOr<GgufValue> GgufParser::ParseValue(std::string_view key, GgufValueType type) {
  if (type == GgufValueType::kArray) return ParseArray(key);
  if (type == GgufValueType::kString) {
    BATON_ASSIGN_OR_RETURN(const std::string_view text,
                           cursor_.String(kMaxGgufStringBytes, "string value"));
    return GgufValue(type, std::as_bytes(std::span(text)));
  }
  const size_t size = GgufValueBytes(type);
  if (size == 0) {
    return GgufError(GgufErrorCode::kBadValueType,
                     fmt::format("key {} has value type {}, the types are 0..12",
                                 QuotedForMessage(key), static_cast<uint32_t>(type)));
  }
  BATON_ASSIGN_OR_RETURN(const auto bytes, cursor_.Bytes(size, "value"));
  if (type == GgufValueType::kBool && IsBadBool(bytes[0])) {
    return GgufError(GgufErrorCode::kBadBool,
                     fmt::format("key {} has bool {}, neither 0 nor 1", QuotedForMessage(key),
                                 static_cast<uint32_t>(bytes[0])));
  }
  return GgufValue(type, bytes);
}

absl::StatusOr<GgufValue> GgufParser::ParseArray(std::string_view key) {
  BATON_ASSIGN_OR_RETURN(const uint32_t raw_type, cursor_.U32("array element type"));
  const auto type = static_cast<GgufValueType>(raw_type);
  BATON_ASSIGN_OR_RETURN(const uint64_t count, cursor_.U64("array count"));
  if (type == GgufValueType::kArray) {
    return GgufError(GgufErrorCode::kNestedArray,
                     fmt::format("key {} is an array of arrays", QuotedForMessage(key)));
  }
  if (count > kMaxGgufArrayCount) {
    return GgufError(GgufErrorCode::kArrayTooLong,
                     fmt::format("key {} is an array of {} elements, the limit is {}",
                                 QuotedForMessage(key), count, kMaxGgufArrayCount));
  }
  const uint64_t begin = cursor_.offset();
  if (type == GgufValueType::kString) {
    for (uint64_t i = 0; i < count; ++i) {
      BATON_RETURN_IF_ERROR(cursor_.String(kMaxGgufStringBytes, "array string").status());
    }
    const std::span<const std::byte> payload =
        file_.bytes_.subspan(begin, cursor_.offset() - begin);
    return GgufValue::Array(type, count, payload);
  }
  const size_t size = GgufValueBytes(type);
  if (size == 0) {
    return GgufError(GgufErrorCode::kBadValueType,
                     fmt::format("key {} has array element type {}, the types are 0..12",
                                 QuotedForMessage(key), raw_type));
  }
  // count <= 2^30 and size <= 8: no overflow.
  BATON_ASSIGN_OR_RETURN(const auto payload, cursor_.Bytes(count * size, "array"));
  if (type == GgufValueType::kBool && std::any_of(payload.begin(), payload.end(), IsBadBool)) {
    return GgufError(
        GgufErrorCode::kBadBool,
        fmt::format("key {} has a bool that is neither 0 nor 1", QuotedForMessage(key)));
  }
  return GgufValue::Array(type, count, payload);
}

absl::Status GgufParser::IndexKeys() {
  const auto key_of = [this](uint32_t idx) { return file_.entries_[idx].key; };
  const auto twice = SortByName(file_.entries_.size(), key_of, file_.entry_order_);
  if (!twice.has_value()) return absl::OkStatus();
  return GgufError(GgufErrorCode::kDuplicateKey,
                   fmt::format("key {} appears twice", QuotedForMessage(*twice)));
}

absl::Status GgufFile::IndexTensors() {
  const auto name_of = [this](uint32_t idx) { return tensors_[idx].name; };
  const auto twice = SortByName(tensors_.size(), name_of, tensor_order_);
  if (!twice.has_value()) return absl::OkStatus();
  return GgufError(GgufErrorCode::kDuplicateTensor,
                   fmt::format("tensor {} appears twice", QuotedForMessage(*twice)));
}

absl::Status GgufParser::ReadSplit() {
  GgufSplit& split = file_.split_;
  BATON_ASSIGN_OR_RETURN(split.num_parts, file_.UintOr("split.count", 1));
  split.num_parts = std::max<uint64_t>(split.num_parts, 1);
  if (split.num_parts == 1) return absl::OkStatus();
  if (split.num_parts > kMaxGgufParts) {
    return GgufError(
        GgufErrorCode::kSplitMismatch,
        fmt::format("key \"split.count\" is {}, the limit is {}", split.num_parts, kMaxGgufParts));
  }
  BATON_ASSIGN_OR_RETURN(split.part_idx, file_.UintOr("split.no", 0));
  if (split.part_idx >= split.num_parts) {
    return GgufError(
        GgufErrorCode::kSplitMismatch,
        fmt::format("key \"split.no\" is {}, there are {} parts", split.part_idx, split.num_parts));
  }
  BATON_ASSIGN_OR_RETURN(split.num_tensors, file_.UintOr("split.tensors.count", 0));
  return absl::OkStatus();
}

absl::Status GgufParser::ReadAlignment() {
  const GgufValue* value = file_.FindValue("general.alignment");
  if (value == nullptr) return absl::OkStatus();
  const bool is_u32 = value->type() == GgufValueType::kUint32;
  const uint64_t alignment = is_u32 ? value->AsUint().value_or(0) : 0;
  if (alignment < 8 || (alignment & (alignment - 1)) != 0) {
    return GgufError(GgufErrorCode::kBadAlignment,
                     fmt::format("general.alignment ({} {}) is not a u32 power of two >= 8",
                                 GgufValueTypeName(value->type()), value->AsUint().value_or(0)));
  }
  file_.alignment_ = static_cast<uint32_t>(alignment);
  return absl::OkStatus();
}

absl::Status GgufParser::ParseTensor() {
  GgufTensor tensor;
  BATON_ASSIGN_OR_RETURN(tensor.name, cursor_.String(kMaxGgufStringBytes, "tensor name"));
  if (tensor.name.empty() || tensor.name.size() > kMaxGgufTensorNameBytes ||
      tensor.name.find('\0') != std::string_view::npos) {
    return GgufError(
        GgufErrorCode::kBadTensorName,
        fmt::format("tensor name {} of {} bytes: it must have 1..{} and no NUL",
                    QuotedForMessage(tensor.name), tensor.name.size(), kMaxGgufTensorNameBytes));
  }
  BATON_RETURN_IF_ERROR(ParseDims(tensor));
  BATON_ASSIGN_OR_RETURN(const uint32_t type_id, cursor_.U32("tensor type"));
  Extent extent{};
  BATON_RETURN_IF_ERROR(CheckTypeAndSize(tensor, type_id, extent.num_bytes));
  BATON_ASSIGN_OR_RETURN(extent.offset, cursor_.U64("tensor offset"));
  file_.tensors_.push_back(tensor);
  extents_.push_back(extent);
  return absl::OkStatus();
}

absl::Status GgufParser::ParseDims(GgufTensor& tensor) {
  BATON_ASSIGN_OR_RETURN(tensor.num_dims, cursor_.U32("number of dimensions"));
  if (tensor.num_dims < 1 || tensor.num_dims > kMaxGgufDims) {
    return GgufError(GgufErrorCode::kBadDims,
                     fmt::format("tensor {} has {} dimensions, allowed are 1..{}",
                                 QuotedForMessage(tensor.name), tensor.num_dims, kMaxGgufDims));
  }
  uint64_t product = 1;
  for (uint32_t i = 0; i < tensor.num_dims; ++i) {
    BATON_ASSIGN_OR_RETURN(tensor.dims[i], cursor_.U64("dimension"));
    if (tensor.dims[i] == 0) {
      return GgufError(GgufErrorCode::kBadDims, fmt::format("tensor {} has dimension {} of size 0",
                                                            QuotedForMessage(tensor.name), i));
    }
    const std::optional<uint64_t> next = CheckedMul(product, tensor.dims[i]);
    if (!next.has_value() || *next > kMaxSigned) {
      return GgufError(GgufErrorCode::kSizeOverflow,
                       fmt::format("tensor {}: the product of its dimensions up to {} (size {}) is "
                                   "beyond 2^63 - 1",
                                   QuotedForMessage(tensor.name), i, tensor.dims[i]));
    }
    product = *next;
  }
  return absl::OkStatus();
}

absl::Status GgufParser::CheckTypeAndSize(GgufTensor& tensor, uint32_t type_id,
                                          uint64_t& num_bytes) const {
  tensor.type = FindGgufTensorType(type_id);
  const std::string name = QuotedForMessage(tensor.name);
  if (tensor.type == nullptr) {
    return GgufError(GgufErrorCode::kUnknownTensorType,
                     fmt::format("tensor {} has the unknown type {}", name, type_id));
  }
  const GgufTensorType& type = *tensor.type;
  if (type.support == GgufTypeSupport::kRemoved) {
    return GgufError(GgufErrorCode::kRemovedTensorType,
                     fmt::format("tensor {} has type {} ({}), which the format has removed; "
                                 "convert the model anew",
                                 name, type.name, type_id));
  }
  if (type.support == GgufTypeSupport::kUnsized) {
    return GgufError(GgufErrorCode::kUnsizedTensorType,
                     fmt::format("tensor {} has type {} ({}), which is not supported", name,
                                 type.name, type_id));
  }
  if (tensor.dims[0] % type.block_elements != 0) {
    return GgufError(GgufErrorCode::kBadRowLength,
                     fmt::format("tensor {} has rows of {} elements, no multiple of the {} block "
                                 "of {}",
                                 name, tensor.dims[0], type.name, type.block_elements));
  }
  const std::optional<uint64_t> bytes =
      CheckedMul(tensor.num_elements() / type.block_elements, type.block_bytes);
  if (!bytes.has_value() || *bytes > kMaxSigned) {
    return GgufError(GgufErrorCode::kSizeOverflow,
                     fmt::format("tensor {} {} of type {} has more than 2^63 - 1 bytes", name,
                                 tensor.DimsText(), type.name));
  }
  num_bytes = *bytes;
  return absl::OkStatus();
}

absl::Status GgufParser::PlaceTensors() {
  if (file_.tensors_.empty()) return absl::OkStatus();
  // The header is at most 2^28 bytes and the alignment at most 2^31: no overflow.
  const uint64_t data_begin =
      (cursor_.offset() + file_.alignment_ - 1) / file_.alignment_ * file_.alignment_;
  const uint64_t file_size = file_.bytes_.size();
  uint64_t expected = 0;  // running padded sum, relative to the data section
  for (size_t i = 0; i < file_.tensors_.size(); ++i) {
    GgufTensor& tensor = file_.tensors_[i];
    const Extent& extent = extents_[i];
    if (extent.offset != expected) {
      return GgufError(GgufErrorCode::kBadOffset,
                       fmt::format("tensor {} has offset {}, the data before it ends at {}",
                                   QuotedForMessage(tensor.name), extent.offset, expected));
    }
    // expected <= file_size + alignment here, so only the tensor's own size can be too large.
    const uint64_t begin = data_begin + expected;
    if (begin > file_size || extent.num_bytes > file_size - begin) {
      return GgufError(
          GgufErrorCode::kDataOutOfFile,
          fmt::format("tensor {} has bytes [{}, {} + {}), the file has {}",
                      QuotedForMessage(tensor.name), begin, begin, extent.num_bytes, file_size));
    }
    tensor.data = file_.bytes_.subspan(begin, extent.num_bytes);
    expected += (extent.num_bytes + file_.alignment_ - 1) / file_.alignment_ * file_.alignment_;
  }
  return absl::OkStatus();
}

}  // namespace baton::model
