#include "src/text/chat_encoder.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "src/text/special_tokens.h"

namespace baton {
namespace {

// U+FDD0..U+FDEF, noncharacters "for internal use", as UTF-8: EF B7 90..AF.
constexpr int kNumGuards = 32;

std::string GuardCharacter(int i) { return {'\xEF', '\xB7', static_cast<char>(0x90 + i)}; }

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

StatusOr<std::string> ChooseGuard(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                  std::span<const ChatMessage> messages) {
  for (int i = 0; i < kNumGuards; ++i) {
    std::string guard = GuardCharacter(i);
    const bool in_messages = std::any_of(
        messages.begin(), messages.end(),
        [&guard](const ChatMessage& message) { return Contains(message.content, guard); });
    if (in_messages || Contains(chat_template.source(), guard) ||
        !tokenizer.special_tokens().IsFreeOf(guard)) {
      continue;
    }
    return guard;
  }
  return InvalidArgument("messages: the contents hold all of the noncharacters U+FDD0..U+FDEF");
}

std::string Without(std::string_view text, std::string_view guard) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  while (true) {
    const size_t at = text.find(guard, done);
    out.append(text.substr(done, at - done));
    if (at == std::string_view::npos) return out;
    done = at + guard.size();
  }
}

}  // namespace

StatusOr<ChatPrompt> EncodeChat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                std::span<const ChatMessage> messages,
                                const RenderOptions& options) {
  BATON_ASSIGN_OR_RETURN(const std::string guard, ChooseGuard(tokenizer, chat_template, messages));
  const SpecialTokens& specials = tokenizer.special_tokens();
  std::vector<ChatMessage> guarded;
  guarded.reserve(messages.size());
  for (const ChatMessage& message : messages) {
    guarded.push_back({message.role, specials.BreakLookAlikes(message.content, guard)});
  }
  BATON_ASSIGN_OR_RETURN(const std::string rendered, chat_template.Render(guarded, options));

  ChatPrompt prompt;
  const std::string_view text = rendered;
  size_t done = 0;
  while (done < text.size()) {
    const std::optional<SpecialMatch> match = specials.FindNextGuarded(text, done, guard);
    const size_t piece_end = match ? match->begin : text.size();
    const std::string piece = Without(text.substr(done, piece_end - done), guard);
    const EncodeOptions as_text = {.after_special = done > 0};
    BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer.Encode(piece, as_text));
    prompt.tokens.insert(prompt.tokens.end(), ids.begin(), ids.end());
    if (match) prompt.tokens.push_back(match->id);
    done = match ? match->end : text.size();
  }
  const bool needs_bos = tokenizer.add_bos() &&
                         (prompt.tokens.empty() || prompt.tokens.front() != *tokenizer.bos_id());
  if (needs_bos) prompt.tokens.insert(prompt.tokens.begin(), *tokenizer.bos_id());
  prompt.text = Without(rendered, guard);
  return prompt;
}

}  // namespace baton
