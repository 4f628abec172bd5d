#include "src/text/special_tokens.h"

#include <algorithm>
#include <utility>

#include "src/text/hf_library.h"
#include "src/text/utf8.h"

namespace baton::text {
namespace {

// White_Space of Unicode (PropList.txt), which \s of the crate tokenizers is.
bool IsBlank(std::string_view character) {
  const uint32_t c = CodePointOf(character);
  return c == ' ' || (c >= '\t' && c <= '\r') || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool IsWord(std::string_view character) { return hf::IsWordCharacter(CodePointOf(character)); }

bool IsWholeWord(std::string_view text, size_t begin, size_t end) {
  const bool goes_on = end < text.size() && IsWord(FirstCharacter(text.substr(end)));
  return !goes_on && (begin == 0 || !IsWord(LastCharacter(text.substr(0, begin))));
}

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

}  // namespace

Status SpecialTokens::Add(std::string_view text, TokenId id, bool user_defined, int32_t traits) {
  if (!user_defined && text.size() > kMaxControlTokenBytes) {
    return InvalidArgument("control token {} has {} bytes, more than {}", id, text.size(),
                           kMaxControlTokenBytes);
  }
  num_text_bytes_ += text.size();
  if (num_text_bytes_ > kMaxSpecialTextBytes) {
    return InvalidArgument("the control and user-defined tokens have more than {} bytes",
                           kMaxSpecialTextBytes);
  }
  texts_.push_back({std::string(text), user_defined});
  starts_any_[static_cast<uint8_t>(text.front())] = true;
  uint32_t node = 0;
  for (const char c : text) {
    if (!user_defined) nodes_[node].leads_to_control = true;
    const uint8_t byte = static_cast<uint8_t>(c);
    uint32_t child = Step(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({.next_sibling = nodes_[node].first_child, .byte = byte});
      nodes_[node].first_child = child;
    }
    node = child;
  }
  nodes_[node].id = id;
  nodes_[node].user_defined = user_defined;
  nodes_[node].traits = static_cast<uint8_t>(traits);
  if (!user_defined) max_control_size_ = std::max(max_control_size_, text.size());
  return OkStatus();
}

void SpecialTokens::Seal() {
  for (const Text& text : texts_) {
    const std::string_view bytes = text.bytes;
    for (size_t i = 1; !text.user_defined && i < bytes.size(); ++i) {
      control_tails_.push_back(bytes.substr(i));
    }
  }
  std::sort(control_tails_.begin(), control_tails_.end());
  control_tails_.erase(std::unique(control_tails_.begin(), control_tails_.end()),
                       control_tails_.end());
  control_tails_.shrink_to_fit();
}

uint32_t SpecialTokens::Step(uint32_t node, uint8_t byte) const {
  uint32_t child = nodes_[node].first_child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
  return child;
}

std::pair<size_t, uint32_t> SpecialTokens::LongestAt(std::string_view text, SpecialScope scope,
                                                     const Guarding& guarding) const {
  std::pair<size_t, uint32_t> longest = {0, 0};
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    node = Step(node, static_cast<uint8_t>(text[i]));
    if (node == 0) break;
    const Node& here = nodes_[node];
    if (here.id == kNoToken) continue;
    const size_t size = i + 1;
    const bool is_ordinary = size > guarding.max_control_size ||
                             (guarding.is_marked && size == FirstCharacter(text).size());
    const bool counts = here.user_defined || (scope == SpecialScope::kAll && !is_ordinary);
    if (counts) longest = {size, node};
  }
  return longest;
}

std::optional<SpecialMatch> SpecialTokens::FindNext(std::string_view text, size_t from,
                                                    SpecialScope scope,
                                                    std::span<const size_t> guards) const {
  auto guard = std::lower_bound(guards.begin(), guards.end(), from);
  for (size_t pos = from; pos < text.size(); ++pos) {
    if (!starts_any_[static_cast<uint8_t>(text[pos])]) continue;
    guard = std::lower_bound(guard, guards.end(), pos);
    const auto inner = std::upper_bound(guard, guards.end(), pos);
    Guarding guarding{.is_marked = inner - guard >= 2};
    if (inner != guards.end()) guarding.max_control_size = *inner - pos;
    const auto [size, node] = LongestAt(text.substr(pos), scope, guarding);
    if (size == 0) continue;
    const Node& found = nodes_[node];
    if ((found.traits & kIsWholeWord) != 0 && !IsWholeWord(text, pos, pos + size)) {
      pos += size - 1;
      continue;
    }
    return SpecialMatch{pos, pos + size, found.id, found.traits};
  }
  return std::nullopt;
}

bool SpecialTokens::ControlBeginsAt(std::string_view text) const {
  uint32_t node = 0;
  for (const char c : text) {
    node = Step(node, static_cast<uint8_t>(c));
    if (node == 0) return false;
    if (nodes_[node].id != kNoToken && !nodes_[node].user_defined) return true;
  }
  return nodes_[node].leads_to_control;
}

bool SpecialTokens::CanCompleteControl(std::string_view text) const {
  if (text.empty()) return false;
  const auto at = std::lower_bound(control_tails_.begin(), control_tails_.end(), text);
  if (at != control_tails_.end() && StartsWith(*at, text)) return true;
  for (size_t size = 1; size <= std::min(text.size(), max_control_size_); ++size) {
    if (std::binary_search(control_tails_.begin(), control_tails_.end(), text.substr(0, size))) {
      return true;
    }
  }
  return false;
}

std::string SpecialTokens::BreakLookAlikes(std::string_view text, std::string_view guard) const {
  std::string out;
  out.reserve(text.size() + guard.size());
  if (CanCompleteControl(text)) out.append(guard);
  size_t done = 0;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    if (!starts_any_[static_cast<uint8_t>(text[pos])]) continue;
    if (!ControlBeginsAt(text.substr(pos))) continue;
    out.append(text.substr(done, pos - done));
    const size_t size = std::min(text.size() - pos, CharacterSize(static_cast<uint8_t>(text[pos])));
    const std::string_view first = text.substr(pos, size);
    // Elsewhere two guards in a row have user text behind them too: one ends a message, and what
    // begins with the other goes on.
    const bool is_one = LongestAt(first, SpecialScope::kAll, Guarding{}).first == size;
    if (is_one) out.append(guard).append(guard);
    out.append(first).append(guard);
    done = pos + size;
  }
  return out.append(text.substr(done));
}

bool SpecialTokens::IsFreeOf(std::string_view guard) const {
  return std::all_of(texts_.begin(), texts_.end(), [guard](const Text& text) {
    return text.bytes.find(guard) == std::string::npos;
  });
}

std::string TakeOut(std::string_view text, std::string_view guard, std::vector<size_t>* places) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  while (true) {
    const size_t at = text.find(guard, done);
    out.append(text.substr(done, at - done));
    if (at == std::string_view::npos) return out;
    places->push_back(out.size());
    done = at + guard.size();
  }
}

bool SpecialCuts::Next() {
  while (const auto match = tokens_.FindNext(text_, searched_, scope_, guards_)) {
    searched_ = match->end;
    const bool takes_after = (match->traits & kTakesBlanksAfter) != 0;
    const bool takes_before = (match->traits & kTakesBlanksBefore) != 0;
    const size_t end = takes_after ? BlanksEnd(match->end) : match->end;
    // Another token took the blanks that this one is made of, and those around it.
    if (takes_before && end <= done_) continue;
    const size_t begin = takes_before ? BlanksBegin(match->begin) : match->begin;
    piece_ = begin > done_ ? text_.substr(done_, begin - done_) : std::string_view();
    id_ = match->id;
    done_ = end;
    return true;
  }
  piece_ = text_.substr(done_);
  searched_ = done_ = text_.size();
  return false;
}

size_t SpecialCuts::BlanksBegin(size_t end) const {
  while (end > done_) {
    const std::string_view last = LastCharacter(text_.substr(done_, end - done_));
    if (!IsBlank(last)) break;
    end -= last.size();
  }
  return end;
}

size_t SpecialCuts::BlanksEnd(size_t begin) {
  for (blanks_end_ = std::max(blanks_end_, begin); blanks_end_ < text_.size();) {
    const std::string_view first = FirstCharacter(text_.substr(blanks_end_));
    if (!IsBlank(first)) break;
    blanks_end_ += first.size();
  }
  return blanks_end_;
}

}  // namespace baton::text
