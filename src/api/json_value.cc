#include "src/api/json_value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/base/limits.h"
#include "src/text/utf8.h"

namespace baton::api {

using limits::kMaxJsonDepth;
using limits::kMaxJsonValues;
using router::ErrorCode;
using router::RequestError;
using text::ValidUtf8Prefix;

namespace {

// The part of the library's message that tells of its own grammar: "unexpected end of input;
// expected '}'", "invalid string: missing closing quote". Never its quotes from the text.
std::string_view ReasonOf(const nlohmann::detail::exception& error) {
  constexpr int kSyntax = 101;
  std::string_view text = error.what();
  // "[json...] parse error at line 1, column 2: syntax error while parsing value - REASON" and,
  // when the text is not even a token, "; last read: 'TEXT'" and what would have been right there.
  constexpr std::string_view kDash = " - ";
  const size_t dash = text.find(kDash);
  // From 3.11.3 on the library says so of an empty text, in other words than of blanks.
  constexpr std::string_view kEmpty = "attempting to parse an empty input";
  if (text.find(kEmpty) != text.npos)
    return "unexpected end of input; expected '[', '{', or a literal";
  if (error.id != kSyntax || dash == std::string_view::npos) return "a syntax error";
  text.remove_prefix(dash + kDash.size());
  return text.substr(0, text.find("; last read: '"));
}

size_t SkipDigits(std::string_view text, size_t at) {
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
  return at;
}

// -?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?
bool IsJsonNumber(std::string_view text) {
  size_t at = text.substr(0, 1) == "-" ? 1 : 0;
  size_t end = SkipDigits(text, at);
  if (end == at || (text[at] == '0' && end > at + 1)) return false;
  if (end < text.size() && text[end] == '.') {
    at = end + 1;
    end = SkipDigits(text, at);
    if (end == at) return false;
  }
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    at = end + 1;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    end = SkipDigits(text, at);
    if (end == at) return false;
  }
  return end == text.size();
}

// One number of a document that no double holds.
struct HugeNumber {
  size_t ordinal = 0;  // of all its numbers, from 0
  double value = 0;    // infinity of its sign
};

// Writes a 0 of equal length over each such number of `text`, which is JSON up to its first error.
std::vector<HugeNumber> TakeOutHuge(std::string* text) {
  std::vector<HugeNumber> huge;
  size_t num_numbers = 0;
  bool in_string = false;
  for (size_t i = 0; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c == '"') in_string = !in_string;
    if (in_string && c == '\\') ++i;
    if (in_string || (c != '-' && (c < '0' || c > '9'))) continue;
    const size_t end = std::min(text->find_first_not_of("+-.0123456789eE", i), text->size());
    const std::string number = text->substr(i, end - i);
    const double value = std::strtod(number.c_str(), nullptr);
    if (std::isinf(value) && IsJsonNumber(number)) {
      huge.push_back({num_numbers, value});
      text->replace(i, number.size(), std::string(number.size(), ' ').replace(0, 1, "0"));
    }
    ++num_numbers;
    i = end - 1;
  }
  return huge;
}

// Builds a JsonValue from the parser's events and stops at the first thing that is refused.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  // A refusal cuts longer names of fields.
  static constexpr size_t kMaxNameBytes = 64;
  static constexpr size_t kMaxFieldBytes = 256;

  // `huge`: numbers that stand as 0 in the text.
  explicit Builder(JsonValue* root, std::vector<HugeNumber> huge = {})
      : root_(root), huge_(std::move(huge)) {}

  std::optional<ErrorCode> refusal() const { return refusal_; }
  // A number that no double holds stopped the parser.
  bool met_huge() const { return met_huge_; }
  // Where and why the text is no JSON, in words of the library's grammar; "" = unknown.
  const std::string& reason() const { return reason_; }
  // The field in which or right after which the parser stopped, as "messages[0].content"; "" =
  // within none.
  const std::string& field() const { return field_; }

  bool null() override { return Add(JsonValue()); }
  bool boolean(bool value) override { return Add(JsonValue(value)); }
  bool number_integer(number_integer_t value) override {
    return AddNumber(JsonValue(int64_t{value}));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) return AddNumber(JsonValue(uint64_t{value}));
    return AddNumber(JsonValue(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    if (!std::isfinite(value)) return Refuse(ErrorCode::kInvalidJson);
    return AddNumber(JsonValue(double{value}));
  }
  bool string(string_t& value) override { return Add(JsonValue(std::move(value))); }
  bool binary(binary_t& /*value*/) override { return Refuse(ErrorCode::kInvalidJson); }

  bool start_object(size_t /*size*/) override { return Open(JsonValue(JsonValue::Object())); }
  bool key(string_t& name) override {
    open_.back()->AsObject()->emplace_back(std::move(name), JsonValue());
    return true;
  }
  bool end_object() override {
    const std::optional<std::string_view> twice = FindDuplicate(*open_.back()->AsObject());
    if (!twice) return Close();
    return Refuse(ErrorCode::kDuplicateKey, *twice);
  }
  bool start_array(size_t /*size*/) override { return Open(JsonValue(JsonValue::Array())); }
  bool end_array() override { return Close(); }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    constexpr int kOverflow = 406;
    met_huge_ = error.id == kOverflow;
    reason_ = fmt::format("byte {}: {}", position, ReasonOf(error));
    return Refuse(ErrorCode::kInvalidJson);
  }

 private:
  // `member`: that of the innermost object which is at fault; "" = the last one.
  bool Refuse(ErrorCode code, std::string_view member = {}) {
    if (refusal_) return false;
    refusal_ = code;
    for (const JsonValue* container : open_) {
      const bool is_innermost = container == open_.back();
      if (const JsonValue::Array* array = container->AsArray()) {
        if (!is_innermost) field_ += fmt::format("[{}]", array->size() - 1);
      } else if (!container->AsObject()->empty()) {
        const std::string_view last = container->AsObject()->back().first;
        AppendName(is_innermost && !member.empty() ? member : last, &field_);
      }
    }
    return false;
  }

  static void AppendName(std::string_view name, std::string* field) {
    name = name.substr(0, kMaxNameBytes);
    if (field->size() >= kMaxFieldBytes) return;
    if (!field->empty()) *field += '.';
    *field += name.substr(0, ValidUtf8Prefix(name));
  }

  std::optional<std::string_view> FindDuplicate(const JsonValue::Object& object) {
    names_.clear();
    for (const JsonValue::Member& member : object) names_.push_back(member.first);
    std::sort(names_.begin(), names_.end());
    const auto twice = std::adjacent_find(names_.begin(), names_.end());
    if (twice == names_.end()) return std::nullopt;
    return *twice;
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

  bool AddNumber(JsonValue value) {
    const bool is_huge = num_huge_ < huge_.size() && huge_[num_huge_].ordinal == num_numbers_;
    ++num_numbers_;
    return Add(is_huge ? JsonValue(huge_[num_huge_++].value) : std::move(value));
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
  const std::vector<HugeNumber> huge_;
  size_t num_numbers_ = 0;
  size_t num_huge_ = 0;  // of huge_, those met
  bool met_huge_ = false;
  std::optional<ErrorCode> refusal_;
  std::string reason_;
  std::string field_;
};

bool Fail(const Builder& builder, RequestError* error) {
  error->code = builder.refusal().value_or(ErrorCode::kInvalidJson);
  error->param = builder.field();
  if (error->code == ErrorCode::kInvalidJson) error->expected = builder.reason();
  return false;
}

}  // namespace

bool ParseJson(std::string_view text, JsonValue* out, RequestError* error) {
  *error = RequestError{};
  // The parser would call it a syntax error; the client deserves to hear which of the two it was.
  if (const size_t valid = ValidUtf8Prefix(text); valid != text.size()) {
    Builder before(out);
    nlohmann::json::sax_parse(text.begin(), text.begin() + valid, &before);
    Fail(before, error);
    error->expected.clear();
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
  if (!builder.met_huge()) return Fail(builder, error);
  // The reader of the field will say what it must be.
  std::string tamed(text);
  std::vector<HugeNumber> huge = TakeOutHuge(&tamed);
  Builder again(out, std::move(huge));
  return nlohmann::json::sax_parse(tamed, &again) || Fail(again, error);
}

bool HasHugeNumber(const JsonValue& value) {
  if (const JsonValue::Array* array = value.AsArray()) {
    return std::any_of(array->begin(), array->end(), HasHugeNumber);
  }
  if (const JsonValue::Object* object = value.AsObject()) {
    return std::any_of(object->begin(), object->end(), [](const JsonValue::Member& member) {
      return HasHugeNumber(member.second);
    });
  }
  double number = 0;
  return value.GetNumber(&number) && std::isinf(number);
}

}  // namespace baton::api
