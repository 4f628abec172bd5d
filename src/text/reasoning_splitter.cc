#include "src/text/reasoning_splitter.h"

#include <utility>

namespace baton::text {
namespace {

constexpr std::string_view kOpenTag = kThoughtsBegin;
constexpr std::string_view kCloseTag = kThoughtsEnd;
constexpr std::string_view kBlanks = " \t\r\n";

bool IsBlank(char c) { return kBlanks.find(c) != std::string_view::npos; }

// `text` may still become `tag`.
bool Begins(std::string_view tag, std::string_view text) {
  return tag.substr(0, text.size()) == text;
}

}  // namespace

bool TemplateThinks(std::string_view template_source) {
  return template_source.find(kOpenTag) != std::string_view::npos ||
         template_source.find(kCloseTag) != std::string_view::npos;
}

bool PromptOpensReasoning(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(kBlanks);
  if (last == std::string_view::npos) return false;
  return prompt.substr(0, last + 1).ends_with(kOpenTag);
}

AnswerParts ReasoningSplitter::Push(std::string_view text) {
  AnswerParts out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (place_ == Place::kContent) {
      out.content.append(text.substr(i));
      break;
    }
    PushByte(text[i], &out);
  }
  return out;
}

AnswerParts ReasoningSplitter::Flush() {
  AnswerParts out;
  // Blanks at the end of the thoughts are dropped; a tag that was not finished is text.
  const bool has_tag_part = held_.size() > num_blanks_;
  if (place_ == Place::kBefore) out.content = held_;
  if (in_reasoning() && has_tag_part) out.reasoning = held_;
  Drop();
  return out;
}

void ReasoningSplitter::PushByte(char c, AnswerParts* out) {
  switch (place_) {
    case Place::kBefore:
      OnBefore(c, out);
      return;
    case Place::kOpened:
      OnOpened(c, out);
      return;
    case Place::kThoughts:
      OnThoughts(c, out);
      return;
    case Place::kClosed:
      if (IsBlank(c)) return;
      place_ = Place::kContent;
      out->content.push_back(c);
      return;
    case Place::kContent:
      out->content.push_back(c);
      return;
  }
}

void ReasoningSplitter::Hold(char c) {
  if (held_.size() == num_blanks_ && IsBlank(c)) ++num_blanks_;
  held_.push_back(c);
}

std::string ReasoningSplitter::Release() {
  num_blanks_ = 0;
  return std::exchange(held_, {});
}

void ReasoningSplitter::OnBefore(char c, AnswerParts* out) {
  Hold(c);
  if (tag_part() == kOpenTag) {
    place_ = Place::kOpened;
    opened_ = true;
    Drop();
  } else if (!Begins(kOpenTag, tag_part())) {
    place_ = Place::kContent;
    out->content += Release();
  }
}

void ReasoningSplitter::OnOpened(char c, AnswerParts* out) {
  if (held_.empty() && IsBlank(c)) return;
  held_.push_back(c);
  if (held_ == kOpenTag) {
    Drop();
  } else if (held_ == kCloseTag) {
    place_ = Place::kClosed;
    Drop();
  } else if (!Begins(kOpenTag, held_) && !Begins(kCloseTag, held_)) {
    place_ = Place::kThoughts;
    // The last byte may begin a tag of its own, or be a blank before one.
    held_.pop_back();
    out->reasoning += Release();
    OnThoughts(c, out);
  }
}

void ReasoningSplitter::OnThoughts(char c, AnswerParts* out) {
  const std::string_view part = tag_part();
  if (!part.empty() && kCloseTag[part.size()] == c) {
    held_.push_back(c);
    if (tag_part() != kCloseTag) return;
    place_ = Place::kClosed;
    Drop();
    return;
  }
  // The tag has one '<', its first byte, so no other can have begun inside it.
  if (!part.empty()) out->reasoning += Release();
  if (c == '<' || IsBlank(c)) {
    Hold(c);
    return;
  }
  out->reasoning += Release();
  out->reasoning.push_back(c);
}

}  // namespace baton::text
