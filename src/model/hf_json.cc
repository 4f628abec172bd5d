#include "src/model/hf_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "src/base/python_json.h"
#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"

namespace baton::model {
namespace {

using Json = nlohmann::json;

// Elements and bytes of a list or object that a message shows.
constexpr size_t kMaxShownElements = 16;
constexpr size_t kMaxShownBytes = 80;

// The number that {"__float__": "..."} stands for; nullopt for any other value.
std::optional<double> PythonFloatOf(const Json& value) {
  if (!value.is_object() || value.size() != 1) return std::nullopt;
  const auto it = value.find(kPythonFloatKey);
  if (it == value.end()) return std::nullopt;
  if (*it == "NaN") return std::nan("");
  if (*it == "Infinity") return std::numeric_limits<double>::infinity();
  if (*it == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

// Puts numbers in the places of the objects that stand for them. A loop, since the file chooses how
// deep its values are.
void RestorePythonFloats(Json& root) {
  std::vector<Json*> open = {&root};
  while (!open.empty()) {
    Json& value = *open.back();
    open.pop_back();
    if (const std::optional<double> number = PythonFloatOf(value)) {
      value = *number;
      continue;
    }
    if (!value.is_structured()) continue;
    for (Json& element : value) open.push_back(&element);
  }
}

std::string ScalarText(const Json& value) {
  if (value.is_string()) return QuotedForMessage(value.get_ref<const std::string&>());
  if (!value.is_number_float() || std::isfinite(value.get<double>())) return value.dump();
  if (std::isnan(value.get<double>())) return "NaN";
  return value.get<double>() > 0 ? "Infinity" : "-Infinity";
}

// A value as a message may show it: bytes of the file are quoted, and short lists and objects of
// scalars are written out. Nothing follows the depth of a value, which the file chooses.
std::string ValueText(const Json& value) {
  if (!value.is_structured()) return ScalarText(value);
  const std::string kind =
      value.is_array() ? fmt::format("a list of {} elements", value.size()) : "an object";
  if (value.size() > kMaxShownElements) return kind;
  std::string out;
  for (const auto& [key, element] : value.items()) {
    if (element.is_structured()) return kind;
    if (!out.empty()) out += ", ";
    if (value.is_object()) out += QuotedForMessage(key) + ": ";
    out += ScalarText(element);
    if (out.size() > kMaxShownBytes) return kind;
  }
  return value.is_array() ? fmt::format("[{}]", out) : fmt::format("{{{}}}", out);
}

}  // namespace

absl::StatusOr<Json> ParseHfConfigJson(std::string_view text, std::string_view name) {
  if (text.size() > kMaxHfConfigBytes) {
    return FolderError(
        FolderErrorCode::kFileTooLarge,
        fmt::format("{} has {} bytes, the limit is {}", name, text.size(), kMaxHfConfigBytes));
  }
  if (text.empty()) return FolderError(FolderErrorCode::kBadJson, fmt::format("{} is empty", name));
  Json json = Json::parse(PlainJsonOfPython(text), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return FolderError(FolderErrorCode::kBadJson, fmt::format("{} is no JSON object", name));
  }
  RestorePythonFloats(json);
  return json;
}

bool IsNothing(const Json& value) {
  const bool is_empty_text = value.is_string() && value.get_ref<const std::string&>().empty();
  const bool is_empty = value.is_structured() && value.empty();
  return value.is_null() || is_empty_text || is_empty;
}

const Json* JsonObject::Find(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

absl::Status JsonObject::Missing(std::string_view key) const {
  return FolderError(FolderErrorCode::kMissingKey, fmt::format("{}: no \"{}\"", where_, key));
}

absl::Status JsonObject::Bad(std::string_view key, std::string_view wanted) const {
  const Json* value = Find(key);
  return FolderError(FolderErrorCode::kBadValue,
                     fmt::format("{}: \"{}\" is {}, wanted {}", where_, key,
                                 value == nullptr ? "absent" : ValueText(*value), wanted));
}

absl::Status JsonObject::Unsupported(std::string_view key, std::string_view supported) const {
  const Json* value = Find(key);
  return FolderError(FolderErrorCode::kUnsupportedValue,
                     fmt::format("{}: {} is {}, which is not computed (supported is only {})",
                                 where_, QuotedForMessage(key),
                                 value == nullptr ? "absent" : ValueText(*value), supported));
}

absl::Status JsonObject::CheckText(std::string_view key, std::string_view only) const {
  BATON_ASSIGN_OR_RETURN(const std::string value, StringOr(key, only));
  return value == only ? OkStatus() : Unsupported(key, only);
}

absl::Status JsonObject::CheckOneOf(std::string_view key, std::string_view values) const {
  const Json* value = Find(key);
  const Json list = Json::parse(values);
  if (value == nullptr || std::find(list.begin(), list.end(), *value) != list.end()) {
    return OkStatus();
  }
  return Unsupported(key, list.empty() ? "null" : list.front().dump());
}

absl::StatusOr<uint32_t> JsonObject::Uint(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return Missing(key);
  if (!value->is_number_unsigned() || value->get<uint64_t>() > UINT32_MAX) {
    return Bad(key, "an integer in [0, 2^32)");
  }
  return value->get<uint32_t>();
}

absl::StatusOr<uint32_t> JsonObject::UintOr(std::string_view key, uint32_t fallback) const {
  return Has(key) ? Uint(key) : fallback;
}

absl::StatusOr<double> JsonObject::Double(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return Missing(key);
  if (!value->is_number() || !std::isfinite(value->get<double>())) return Bad(key, "a number");
  return value->get<double>();
}

absl::StatusOr<double> JsonObject::DoubleOr(std::string_view key, double fallback) const {
  return Has(key) ? Double(key) : fallback;
}

absl::StatusOr<bool> JsonObject::BoolOr(std::string_view key, bool fallback) const {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return Bad(key, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonObject::String(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return Missing(key);
  if (!value->is_string()) return Bad(key, "a text");
  return value->get<std::string>();
}

absl::StatusOr<std::string> JsonObject::StringOr(std::string_view key,
                                                 std::string_view fallback) const {
  return Has(key) ? String(key) : std::string(fallback);
}

}  // namespace baton::model
