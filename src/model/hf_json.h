// JsonObject: typed access to one object of a config.json. Private to the folder reader; any
// thread.
#ifndef BATON_MODEL_HF_JSON_H_
#define BATON_MODEL_HF_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"

#include "src/base/status.h"

namespace baton::model {

// Parses a config.json as Python does: NaN and infinities are numbers, written as literals or as
// {"__float__": "Infinity"}. kFileTooLarge above kMaxHfConfigBytes, kBadJson for what is no object.
// `name`: of the file, for messages.
absl::StatusOr<nlohmann::json> ParseHfConfigJson(std::string_view text,
                                                 std::string_view name = "config.json");

inline constexpr uint64_t kMaxHfConfigBytes = uint64_t{1} << 20;

// True for the values that programs write for "there is none of it": null, "", [], {}. `false` is
// not one of them: it turns off what a program may do by default, as in "use_rotary_embeddings".
bool IsNothing(const nlohmann::json& value);

// A view of an object and of where it lies, for messages. A key whose value is null is absent.
class JsonObject {
 public:
  JsonObject(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  const nlohmann::json* Find(std::string_view key) const;  // nullptr when absent
  const nlohmann::json& object() const { return object_; }
  const std::string& where() const { return where_; }
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  // kMissingKey when absent (the ...Or forms give `fallback` then), kBadValue for another type, an
  // integer beyond 32 bits or a number that is not finite.
  absl::StatusOr<uint32_t> Uint(std::string_view key) const;
  absl::StatusOr<uint32_t> UintOr(std::string_view key, uint32_t fallback) const;
  absl::StatusOr<double> Double(std::string_view key) const;
  absl::StatusOr<double> DoubleOr(std::string_view key, double fallback) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<std::string> StringOr(std::string_view key, std::string_view fallback) const;

  // kUnsupportedValue unless the key is absent, null or the text `only`.
  absl::Status CheckText(std::string_view key, std::string_view only) const;
  // kUnsupportedValue unless the key is absent, null or one of `values`, a JSON list.
  absl::Status CheckOneOf(std::string_view key, std::string_view values) const;

  absl::Status Missing(std::string_view key) const;
  absl::Status Bad(std::string_view key, std::string_view wanted) const;
  // kUnsupportedValue naming the key, its value and the values that are computed.
  absl::Status Unsupported(std::string_view key, std::string_view supported) const;

 private:
  const nlohmann::json& object_;
  const std::string where_;  // "config.json" or "config.json: rope_scaling"
};

}  // namespace baton::model

#endif  // BATON_MODEL_HF_JSON_H_
