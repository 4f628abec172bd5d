// Fields of a JSON object that another process sent, which may have any type. Any thread.
#ifndef BATON_CLI_JSON_FIELDS_H_
#define BATON_CLI_JSON_FIELDS_H_

#include <cstdint>
#include <string>

#include "nlohmann/json.hpp"

namespace baton::cli {

// The field, or "" / 0 / false / [] when it is missing or of another type.
inline std::string TextOf(const nlohmann::json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_string() ? found->get<std::string>() : std::string();
}
inline uint64_t NumberOf(const nlohmann::json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}
inline int64_t SignedOf(const nlohmann::json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}
inline nlohmann::json ArrayOf(const nlohmann::json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_array() ? *found : nlohmann::json::array();
}
inline bool FlagOf(const nlohmann::json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_boolean() && found->get<bool>();
}

// For a terminal: no byte of `text` steers it.
inline std::string Printable(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return text;
}

}  // namespace baton::cli

#endif  // BATON_CLI_JSON_FIELDS_H_
