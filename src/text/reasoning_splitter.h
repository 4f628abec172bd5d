// Separates what a model thinks from what it answers: "<think>...</think>", the convention of
// DeepSeek-R1 and Qwen3 and their kin. One thread at a time; the state is a pure function of the
// text pushed, so a resumed request rebuilds it by pushing the same text.
#ifndef BATON_TEXT_REASONING_SPLITTER_H_
#define BATON_TEXT_REASONING_SPLITTER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton::text {

// The tags around thoughts.
inline constexpr std::string_view kThoughtsBegin = "<think>";
inline constexpr std::string_view kThoughtsEnd = "</think>";

// The model's chat template mentions the tags, so its answers may hold them.
bool TemplateThinks(std::string_view template_source);

// The rendered prompt ends inside an open "<think>" (blanks may follow): the answer begins with
// thoughts and has the closing tag only.
bool PromptOpensReasoning(std::string_view prompt);

// The text of an answer that may go to the client now.
struct AnswerParts {
  std::string reasoning;  // `reasoning_content`
  std::string content;
};

// Splits the text of one answer.
// 1. The returned parts, joined, do not depend on how the text was cut. Whole characters in, whole
//    characters out.
// 2. Thoughts are what stands between the first "<think>", which only blanks may precede, and the
//    first "</think>" after it; without the latter, everything. Later tags are content.
// 3. The tags are dropped, and so are the blanks after "<think>", before and after "</think>".
//    Nothing else is.
// 4. Held back is only what may still be a tag or a dropped blank. O(1) a byte.
class ReasoningSplitter {
 public:
  // `starts_inside`: PromptOpensReasoning of the prompt. A "<think>" that the model then repeats is
  // dropped too.
  explicit ReasoningSplitter(bool starts_inside)
      : place_(starts_inside ? Place::kOpened : Place::kBefore), opened_(starts_inside) {}

  AnswerParts Push(std::string_view text);
  // Returns the text that was held back, when no text follows.
  AnswerParts Flush();

  // Thoughts have begun, and perhaps ended; there may be none between the tags.
  bool opened() const { return opened_; }
  // The text so far ends in thoughts: a generation that stops here has no content yet.
  bool in_reasoning() const { return place_ == Place::kOpened || place_ == Place::kThoughts; }

 private:
  enum class Place : uint8_t {
    kBefore,    // blanks and perhaps a part of "<think>" so far
    kOpened,    // thoughts begin here; blanks and perhaps a part of a tag so far
    kThoughts,  // inside
    kClosed,    // after "</think>", blanks only so far
    kContent,
  };

  void PushByte(char c, AnswerParts* out);
  void OnBefore(char c, AnswerParts* out);
  void OnOpened(char c, AnswerParts* out);
  void OnThoughts(char c, AnswerParts* out);

  // Appends `c` to what is held back.
  void Hold(char c);
  // Takes what is held back.
  std::string Release();
  void Drop() { Release(); }
  std::string_view tag_part() const { return std::string_view(held_).substr(num_blanks_); }

  Place place_;
  bool opened_;
  std::string held_;       // blanks, then a part of a tag
  size_t num_blanks_ = 0;  // at the beginning of held_
};

}  // namespace baton::text

#endif  // BATON_TEXT_REASONING_SPLITTER_H_
