#include "src/api/json_value.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/text/utf8.h"

namespace baton {
namespace {

// What the library's message says of its own grammar: "unexpected end of input; expected '}'",
// "invalid string: missing closing quote". Never what it quotes from the text.
std::string_view ReasonOf(const nlohmann::detail::exception& error) {
  constexpr int kSyntax = 101;
  constexpr int kOverflow = 406;
  if (error.id == kOverflow) return "the number is too large";
  std::string_view text = error.what();
  // "[json...] parse error at line 1, column 2: syntax error while parsing value - REASON" and,
  // when the text is not even a token, "; last read: 'TEXT'" and what would have been right there.
  constexpr std::string_view kDash = " - ";
  const size_t dash = text.find(kDash);
  if (error.id != kSyntax || dash == std::string_view::npos) return "a syntax error";
  text.remove_prefix(dash + kDash.size());
  return text.substr(0, text.find("; last read: '"));
}

// Builds a JsonValue from the parser's events and stops at the first thing that is refused.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(JsonValue* root) : root_(root) {}

  std::optional<ErrorCode> refusal() const { return refusal_; }
  // Where and why the text is no JSON, in words of the library's grammar; "" = unknown.
  const std::string& reason() const { return reason_; }

  bool null() override { return Add(JsonValue()); }
  bool boolean(bool value) override { return Add(JsonValue(value)); }
  bool number_integer(number_integer_t value) override { return Add(JsonValue(int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override {
    // Only numbers above 2^63 - 1 come here with another meaning; they are no valid integer of
    // ours.
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return Add(JsonValue(static_cast<double>(value)));
    }
    return Add(JsonValue(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    if (!std::isfinite(value)) return Refuse(ErrorCode::kInvalidJson);
    return Add(JsonValue(double{value}));
  }
  bool string(string_t& value) override { return Add(JsonValue(std::move(value))); }
  bool binary(binary_t& /*value*/) override { return Refuse(ErrorCode::kInvalidJson); }

  bool start_object(size_t /*size*/) override { return Open(JsonValue(JsonValue::Object())); }
  bool key(string_t& name) override {
    open_.back()->AsObject()->emplace_back(std::move(name), JsonValue());
    return true;
  }
  bool end_object() override {
    return HasDuplicates(*open_.back()->AsObject()) ? Refuse(ErrorCode::kDuplicateKey) : Close();
  }
  bool start_array(size_t /*size*/) override { return Open(JsonValue(JsonValue::Array())); }
  bool end_array() override { return Close(); }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    reason_ = fmt::format("byte {}: {}", position, ReasonOf(error));
    return Refuse(ErrorCode::kInvalidJson);
  }

 private:
  bool Refuse(ErrorCode code) {
    if (!refusal_) refusal_ = code;
    return false;
  }

  bool HasDuplicates(const JsonValue::Object& object) {
    names_.clear();
    for (const JsonValue::Member& member : object) names_.push_back(member.first);
    std::sort(names_.begin(), names_.end());
    return std::adjacent_find(names_.begin(), names_.end()) != names_.end();
  }

  // Puts a value where the text has it and returns its place; null = too many values.
  JsonValue* Place(JsonValue value) {
    if (++num_values_ > kMaxJsonValues) return nullptr;
    if (open_.empty()) {
      *root_ = std::move(value);
      return root_;
    }
    if (JsonValue::Array* array = open_.back()->AsArray()) {
      array->push_back(std::move(value));
      return &array->back();
    }
    JsonValue& slot = open_.back()->AsObject()->back().second;
    slot = std::move(value);
    return &slot;
  }

  bool Add(JsonValue value) {
    return Place(std::move(value)) != nullptr || Refuse(ErrorCode::kTooDeep);
  }

  // The place stays valid while it is open: its parent gets no other member before it closes.
  bool Open(JsonValue value) {
    if (open_.size() >= kMaxJsonDepth) return Refuse(ErrorCode::kTooDeep);
    JsonValue* place = Place(std::move(value));
    if (place == nullptr) return Refuse(ErrorCode::kTooDeep);
    open_.push_back(place);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  JsonValue* const root_;
  std::vector<JsonValue*> open_;         // containers around the current position, outermost first
  std::vector<std::string_view> names_;  // of the object that closes
  size_t num_values_ = 0;
  std::optional<ErrorCode> refusal_;
  std::string reason_;
};

}  // namespace

bool ParseJson(std::string_view text, JsonValue* out, RequestError* error) {
  *error = RequestError{};
  // The parser would call it a syntax error; the client deserves to hear which of the two it was.
  if (ValidUtf8Prefix(text) != text.size()) {
    error->code = ErrorCode::kInvalidUtf8;
    return false;
  }
  // The parser would take it for the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    error->code = ErrorCode::kInvalidJson;
    error->expected = fmt::format("byte {}: a NUL", nul + 1);
    return false;
  }
  Builder builder(out);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return true;
  error->code = builder.refusal().value_or(ErrorCode::kInvalidJson);
  if (error->code == ErrorCode::kInvalidJson) error->expected = builder.reason();
  return false;
}

}  // namespace baton
