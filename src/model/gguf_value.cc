#include "src/model/gguf_value.h"

#include <cstring>

#include "src/base/byte_text.h"

namespace baton::model {
namespace {

template <typename T>
T LoadAs(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

template <typename T>
std::optional<uint64_t> LoadNonNegative(std::span<const std::byte> bytes) {
  const T value = LoadAs<T>(bytes);
  if (value < T{0}) return std::nullopt;
  return static_cast<uint64_t>(value);
}

}  // namespace

std::optional<uint64_t> GgufValue::AsUint() const {
  if (payload_.size() != GgufValueBytes(type_)) return std::nullopt;
  switch (type_) {
    case GgufValueType::kUint8:
      return LoadAs<uint8_t>(payload_);
    case GgufValueType::kUint16:
      return LoadAs<uint16_t>(payload_);
    case GgufValueType::kUint32:
      return LoadAs<uint32_t>(payload_);
    case GgufValueType::kUint64:
      return LoadAs<uint64_t>(payload_);
    case GgufValueType::kInt8:
      return LoadNonNegative<int8_t>(payload_);
    case GgufValueType::kInt16:
      return LoadNonNegative<int16_t>(payload_);
    case GgufValueType::kInt32:
      return LoadNonNegative<int32_t>(payload_);
    case GgufValueType::kInt64:
      return LoadNonNegative<int64_t>(payload_);
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufValue::AsDouble() const {
  if (type_ == GgufValueType::kFloat32) return LoadAs<float>(payload_);
  if (type_ == GgufValueType::kFloat64) return LoadAs<double>(payload_);
  return std::nullopt;
}

std::optional<bool> GgufValue::AsBool() const {
  if (type_ != GgufValueType::kBool) return std::nullopt;
  return LoadAs<uint8_t>(payload_) != 0;
}

std::optional<std::string_view> GgufValue::AsString() const {
  if (type_ != GgufValueType::kString) return std::nullopt;
  return AsChars(payload_);
}

std::optional<GgufValue> GgufValue::At(uint64_t idx) const {
  const size_t bytes = GgufValueBytes(element_type_);
  if (!is_array() || bytes == 0 || idx >= count_) return std::nullopt;
  return GgufValue(element_type_, payload_.subspan(idx * bytes, bytes));
}

GgufStringCursor::GgufStringCursor(const GgufValue& array) {
  if (!array.is_array() || array.element_type() != GgufValueType::kString) return;
  rest_ = array.payload();
  left_ = array.count();
}

std::optional<std::string_view> GgufStringCursor::Next() {
  if (left_ == 0) return std::nullopt;
  --left_;
  const uint64_t length = LoadAs<uint64_t>(rest_);
  const std::string_view text = AsChars(rest_.subspan(sizeof(uint64_t), length));
  rest_ = rest_.subspan(sizeof(uint64_t) + length);
  return text;
}

}  // namespace baton::model
