// GgufValue: one metadata value, decoded on demand from the file's bytes. A view: valid while the
// GgufFile lives. Constant after parsing; any thread.
#ifndef BATON_MODEL_GGUF_VALUE_H_
#define BATON_MODEL_GGUF_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "src/model/gguf_types.h"

namespace baton::model {

// A metadata value whose bytes the parser has already bounds-checked.
class GgufValue {
 public:
  GgufValue() = default;
  // `payload`: the scalar's bytes, the string's characters, or all elements of the array (each
  // string element with its u64 length in front).
  GgufValue(GgufValueType type, std::span<const std::byte> payload)
      : type_(type), element_type_(type), payload_(payload) {}
  static GgufValue Array(GgufValueType element_type, uint64_t count,
                         std::span<const std::byte> payload) {
    GgufValue value(GgufValueType::kArray, payload);
    value.element_type_ = element_type;
    value.count_ = count;
    return value;
  }

  GgufValueType type() const { return type_; }
  bool is_array() const { return type_ == GgufValueType::kArray; }
  GgufValueType element_type() const { return element_type_; }  // of an array
  uint64_t count() const { return count_; }                     // elements of an array
  std::span<const std::byte> payload() const { return payload_; }

  // Each returns nullopt when the value is of another kind or does not fit; never reinterprets.
  std::optional<uint64_t> AsUint() const;  // any integer type, not negative
  std::optional<double> AsDouble() const;  // f32 or f64
  std::optional<bool> AsBool() const;      // bool
  std::optional<std::string_view> AsString() const;
  // Element `idx` of an array of a fixed-size type.
  std::optional<GgufValue> At(uint64_t idx) const;

 private:
  GgufValueType type_ = GgufValueType::kUint8;
  GgufValueType element_type_ = GgufValueType::kUint8;
  uint64_t count_ = 0;
  std::span<const std::byte> payload_;
};

// Walks an array of strings; strings have no index because their lengths lie between them.
class GgufStringCursor {
 public:
  // `array` must be an array of strings; any other value gives an empty walk.
  explicit GgufStringCursor(const GgufValue& array);
  // The next string, nullopt at the end.
  std::optional<std::string_view> Next();

 private:
  std::span<const std::byte> rest_;
  uint64_t left_ = 0;
};

}  // namespace baton::model

#endif  // BATON_MODEL_GGUF_VALUE_H_
