#include "src/model/hf_json.h"

#include <cmath>

#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"

namespace baton {

const nlohmann::json* JsonObject::Find(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

absl::Status JsonObject::Missing(std::string_view key) const {
  return FolderError(FolderErrorCode::kMissingKey, fmt::format("{}: no \"{}\"", where_, key));
}

absl::Status JsonObject::Bad(std::string_view key, std::string_view wanted) const {
  const nlohmann::json* value = Find(key);
  // Bytes of the file in a message: quoted, and at most 80 of them. Only scalars: writing a value
  // out follows its depth, which the file chooses.
  std::string text = "absent";
  if (value != nullptr && value->is_structured()) text = value->is_array() ? "a list" : "an object";
  if (value != nullptr && !value->is_structured()) {
    text = QuotedForMessage(value->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  }
  return FolderError(FolderErrorCode::kBadValue,
                     fmt::format("{}: \"{}\" is {}, wanted {}", where_, key, text, wanted));
}

absl::Status JsonObject::Unsupported(std::string_view key, std::string_view supported) const {
  return FolderError(FolderErrorCode::kUnsupportedValue,
                     fmt::format("{} (supported is only {})",
                                 std::string(Bad(key, "another value").message()), supported));
}

absl::StatusOr<uint32_t> JsonObject::Uint(std::string_view key) const {
  const nlohmann::json* value = Find(key);
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
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return Missing(key);
  if (!value->is_number() || !std::isfinite(value->get<double>())) return Bad(key, "a number");
  return value->get<double>();
}

absl::StatusOr<double> JsonObject::DoubleOr(std::string_view key, double fallback) const {
  return Has(key) ? Double(key) : fallback;
}

absl::StatusOr<bool> JsonObject::BoolOr(std::string_view key, bool fallback) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return Bad(key, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonObject::String(std::string_view key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return Missing(key);
  if (!value->is_string()) return Bad(key, "a text");
  return value->get<std::string>();
}

absl::StatusOr<std::string> JsonObject::StringOr(std::string_view key,
                                                 std::string_view fallback) const {
  return Has(key) ? String(key) : std::string(fallback);
}

}  // namespace baton
