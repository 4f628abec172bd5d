// JsonValue: one JSON value with everything below it, and its text. Plain values; any thread.
#ifndef BATON_BASE_JSON_VALUE_H_
#define BATON_BASE_JSON_VALUE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace baton {

// One value with everything below it.
class JsonValue {
 public:
  using Array = std::vector<JsonValue>;
  using Member = std::pair<std::string, JsonValue>;
  // Members in the order of the text.
  using Object = std::vector<Member>;

  JsonValue() = default;  // null
  explicit JsonValue(bool value) : data_(value) {}
  explicit JsonValue(int64_t value) : data_(value) {}
  explicit JsonValue(uint64_t value) : data_(value) {}
  explicit JsonValue(double value) : data_(value) {}
  explicit JsonValue(std::string value) : data_(std::move(value)) {}
  explicit JsonValue(Array value) : data_(std::move(value)) {}
  explicit JsonValue(Object value) : data_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(data_); }
  // Each is null when the value has another type.
  const bool* AsBool() const { return std::get_if<bool>(&data_); }
  const std::string* AsString() const { return std::get_if<std::string>(&data_); }
  const Array* AsArray() const { return std::get_if<Array>(&data_); }
  const Object* AsObject() const { return std::get_if<Object>(&data_); }
  Array* AsArray() { return std::get_if<Array>(&data_); }
  Object* AsObject() { return std::get_if<Object>(&data_); }

  // False when this is no number. An integer converts exactly up to 2^53.
  bool GetNumber(double* out) const;
  // False when this is no integer within int64; 5.0 is an integer, 5.5 and 1e300 are not.
  bool GetInteger(int64_t* out) const;
  // The integers from 2^63 to 2^64 - 1, which GetInteger does not have; false for all others.
  bool GetUnsigned(uint64_t* out) const;
  bool IsNumber() const {
    return std::holds_alternative<int64_t>(data_) || std::holds_alternative<uint64_t>(data_) ||
           std::holds_alternative<double>(data_);
  }
  // True for a number that was written without point and exponent and is within int64.
  bool IsInteger() const { return std::holds_alternative<int64_t>(data_); }

  // The member of this name; null when there is none or this is no object.
  const JsonValue* Find(std::string_view name) const;

 private:
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> data_;
};

// The first member of this name; null when there is none.
const JsonValue* FindMember(const JsonValue::Object& members, std::string_view name);

// Appends `value` as JSON text without blanks. A double keeps its point or exponent, so that no
// reader takes it for an integer. Text that is not UTF-8 is copied as it is.
void AppendJson(const JsonValue& value, std::string* out);
// Appends `text` as a JSON string.
void AppendJsonString(std::string_view text, std::string* out);

}  // namespace baton

#endif  // BATON_BASE_JSON_VALUE_H_
