// JsonWriter: builds JSON text front to back, commas and escapes included. It is one line in every
// reader's sense, where texts given to Raw have no line feed: Unicode's line breaks are escaped.
// One thread.
//
//   JsonWriter json;
//   json.BeginObject().Key("id").String(id).Key("n").Int(3).EndObject();
//   json.text();  // {"id":"...","n":3}
#ifndef BATON_API_JSON_WRITER_H_
#define BATON_API_JSON_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace baton::api {

// Appends values to one text; the caller keeps Begin and End in pairs and gives a Key before each
// value of an object.
class JsonWriter {
 public:
  // Has memory for `num_bytes` of text at once.
  explicit JsonWriter(size_t num_bytes = 0) { text_.reserve(num_bytes); }

  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(std::string_view name);

  // `value` is valid UTF-8; a byte that is not becomes U+FFFD, so that the text stays JSON.
  JsonWriter& String(std::string_view value);
  // As String, for a text in parts that are cut between characters: Begin, Append*, End.
  JsonWriter& BeginString();
  JsonWriter& AppendString(std::string_view part);
  JsonWriter& EndString();
  JsonWriter& Int(int64_t value);
  JsonWriter& Uint(uint64_t value);
  // The shortest decimal that reads back as the same float or double; null when not finite.
  JsonWriter& Float(float value);
  JsonWriter& Double(double value);
  // At most three digits after the point: for milliseconds.
  JsonWriter& Milli(double value);
  JsonWriter& Bool(bool value);
  JsonWriter& Null();
  // `value` is the text of one JSON value.
  JsonWriter& Raw(std::string_view value);

  const std::string& text() const { return text_; }
  // The text since the last call; what is written next follows it.
  std::string Take() { return std::exchange(text_, {}); }

 private:
  void Comma();
  JsonWriter& Word(std::string_view value);
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);

  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace baton::api

#endif  // BATON_API_JSON_WRITER_H_
