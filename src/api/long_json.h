// LongJson: a collected answer as JSON in pieces (answer_writer.h), for a writer that has few long
// texts among short values. One thread.
//
//   auto whole = std::make_unique<LongJson>();
//   whole->json().BeginObject().Key("text");
//   whole->LongString(choice.text);  // as json().String, but in pieces
//   whole->json().EndObject();
#ifndef BATON_API_LONG_JSON_H_
#define BATON_API_LONG_JSON_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/answer_writer.h"
#include "src/api/json_writer.h"

namespace baton::api {

// The part of `text` from `at` that one step writes: at most 4 KiB, which are 24 KiB as JSON at
// worst. It is cut before a byte that begins a character, or before the fourth stray byte, which is
// no character's.
std::string_view TextStep(std::string_view text, size_t at);

// See the file comment.
class LongJson final : public WholeAnswer {
 public:
  // Takes the values around the long texts, in order with them.
  JsonWriter& json() { return json_; }
  // `text` outlives this.
  void LongString(std::string_view text);

  std::string Next(size_t num_bytes) override;

 private:
  // JSON, and the inside of a string that follows it.
  struct Part {
    std::string json;
    std::string_view text;
  };

  JsonWriter json_;
  std::vector<Part> parts_;  // what json_ has follows them
  size_t next_ = 0;          // the part that is being given
  size_t text_at_ = 0;       // byte of its text
  bool json_given_ = false;  // of that part
};

}  // namespace baton::api

#endif  // BATON_API_LONG_JSON_H_
