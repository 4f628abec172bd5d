#include "src/text/special_tokens.h"

#include <algorithm>
#include <utility>

#include "src/text/utf8.h"

namespace baton::text {
namespace {

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

}  // namespace

Status SpecialTokens::Add(std::string_view text, TokenId id, bool user_defined) {
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

std::pair<size_t, TokenId> SpecialTokens::LongestAt(std::string_view text,
                                                    SpecialScope scope) const {
  std::pair<size_t, TokenId> longest = {0, 0};
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    node = Step(node, static_cast<uint8_t>(text[i]));
    if (node == 0) break;
    const Node& here = nodes_[node];
    if (here.id != kNoToken && (here.user_defined || scope == SpecialScope::kAll)) {
      longest = {i + 1, here.id};
    }
  }
  return longest;
}

std::optional<SpecialMatch> SpecialTokens::FindNext(std::string_view text, size_t from,
                                                    SpecialScope scope) const {
  for (size_t pos = from; pos < text.size(); ++pos) {
    if (!starts_any_[static_cast<uint8_t>(text[pos])]) continue;
    const auto [size, id] = LongestAt(text.substr(pos), scope);
    if (size > 0) return SpecialMatch{pos, pos + size, id};
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
    if (LongestAt(first, SpecialScope::kAll).first == size) out.append(guard).append(guard);
    out.append(first).append(guard);
    done = pos + size;
  }
  return out.append(text.substr(done));
}

std::optional<SpecialMatch> SpecialTokens::FindNextGuarded(std::string_view text, size_t from,
                                                           std::string_view guard) const {
  const size_t mark_size = 2 * guard.size();
  std::optional<SpecialMatch> match = FindNext(text, from, SpecialScope::kAll);
  for (; match; match = FindNext(text, match->end, SpecialScope::kAll)) {
    const size_t size = match->end - match->begin;
    const bool is_one_character = size == CharacterSize(static_cast<uint8_t>(text[match->begin]));
    const bool is_marked = match->begin >= mark_size &&
                           text.substr(match->begin - mark_size, guard.size()) == guard &&
                           text.substr(match->begin - guard.size(), guard.size()) == guard;
    if (!is_one_character || !is_marked) break;
  }
  return match;
}

bool SpecialTokens::IsFreeOf(std::string_view guard) const {
  return std::all_of(texts_.begin(), texts_.end(), [guard](const Text& text) {
    return text.bytes.find(guard) == std::string::npos;
  });
}

}  // namespace baton::text
