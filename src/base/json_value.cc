#include "src/base/json_value.h"

#include <cmath>

#include "fmt/format.h"

namespace baton {
namespace {

void AppendNumber(double number, std::string* out) {
  const std::string text = fmt::format("{}", number);
  out->append(text);
  if (text.find_first_of(".en") == std::string::npos) out->append(".0");
}

}  // namespace

bool JsonValue::GetNumber(double* out) const {
  if (const int64_t* integer = std::get_if<int64_t>(&data_)) {
    *out = static_cast<double>(*integer);
    return true;
  }
  if (const uint64_t* integer = std::get_if<uint64_t>(&data_)) {
    *out = static_cast<double>(*integer);
    return true;
  }
  if (const double* number = std::get_if<double>(&data_)) {
    *out = *number;
    return true;
  }
  return false;
}

bool JsonValue::GetUnsigned(uint64_t* out) const {
  const uint64_t* integer = std::get_if<uint64_t>(&data_);
  if (integer != nullptr) *out = *integer;
  return integer != nullptr;
}

bool JsonValue::GetInteger(int64_t* out) const {
  if (const int64_t* integer = std::get_if<int64_t>(&data_)) {
    *out = *integer;
    return true;
  }
  const double* number = std::get_if<double>(&data_);
  // Above 2^53 a double does not say which integer was meant.
  constexpr double kExact = 9007199254740992.0;
  if (number == nullptr || std::fabs(*number) > kExact || std::floor(*number) != *number) {
    return false;
  }
  *out = static_cast<int64_t>(*number);
  return true;
}

const JsonValue* JsonValue::Find(std::string_view name) const {
  const Object* object = AsObject();
  return object == nullptr ? nullptr : FindMember(*object, name);
}

const JsonValue* FindMember(const JsonValue::Object& members, std::string_view name) {
  for (const auto& [key, value] : members) {
    if (key == name) return &value;
  }
  return nullptr;
}

void AppendJsonString(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  for (const char c : text) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (byte < 0x20) {
      out->append("\\u00");
      out->push_back(kHex[byte >> 4]);
      out->push_back(kHex[byte & 15]);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

void AppendJson(const JsonValue& value, std::string* out) {
  int64_t integer = 0;
  uint64_t large = 0;
  double number = 0;
  if (value.is_null()) {
    out->append("null");
  } else if (const bool* flag = value.AsBool()) {
    out->append(*flag ? "true" : "false");
  } else if (const std::string* text = value.AsString()) {
    AppendJsonString(*text, out);
  } else if (const JsonValue::Array* array = value.AsArray()) {
    out->push_back('[');
    for (size_t i = 0; i < array->size(); ++i) {
      if (i > 0) out->push_back(',');
      AppendJson((*array)[i], out);
    }
    out->push_back(']');
  } else if (const JsonValue::Object* object = value.AsObject()) {
    out->push_back('{');
    for (size_t i = 0; i < object->size(); ++i) {
      if (i > 0) out->push_back(',');
      AppendJsonString((*object)[i].first, out);
      out->push_back(':');
      AppendJson((*object)[i].second, out);
    }
    out->push_back('}');
  } else if (value.IsInteger() && value.GetInteger(&integer)) {
    out->append(fmt::format("{}", integer));
  } else if (value.GetUnsigned(&large)) {
    out->append(fmt::format("{}", large));
  } else if (value.GetNumber(&number)) {
    AppendNumber(number, out);
  }
}

}  // namespace baton
