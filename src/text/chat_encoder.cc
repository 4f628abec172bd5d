#include "src/text/chat_encoder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "src/text/special_tokens.h"

namespace baton::text {
namespace {

// U+FDD0..U+FDEF, noncharacters "for internal use", as UTF-8: EF B7 90..AF.
constexpr int kNumGuards = 32;

std::string GuardCharacter(int i) { return {'\xEF', '\xB7', static_cast<char>(0x90 + i)}; }

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool Contains(const JsonValue& value, std::string_view part) {
  if (const std::string* text = value.AsString()) return Contains(*text, part);
  if (const JsonValue::Array* array = value.AsArray()) {
    return std::any_of(array->begin(), array->end(),
                       [part](const JsonValue& item) { return Contains(item, part); });
  }
  const JsonValue::Object* object = value.AsObject();
  return object != nullptr &&
         std::any_of(object->begin(), object->end(), [part](const JsonValue::Member& member) {
           return Contains(member.first, part) || Contains(member.second, part);
         });
}

bool Contains(const JsonValue::Object& object, std::string_view part) {
  return std::any_of(object.begin(), object.end(), [part](const JsonValue::Member& member) {
    return Contains(member.first, part) || Contains(member.second, part);
  });
}

// A name without blanks and signs: templates compare roles, types and keys with their own texts.
bool IsPlainName(std::string_view text) {
  return text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_';
         });
}

// Breaks what looks like a control token in texts that come from a client.
class Guarding {
 public:
  Guarding(const SpecialTokens& specials, std::string_view guard)
      : specials_(specials), guard_(guard) {}

  ChatMessage Message(const ChatMessage& message) const {
    return {.role = message.role,
            .content = Broken(message.content),
            .form = message.form,
            .members = Object(message.members)};
  }

  JsonValue::Object Object(const JsonValue::Object& object) const {
    JsonValue::Object guarded;
    guarded.reserve(object.size());
    for (const auto& [name, value] : object) {
      const std::string* part = name == "text" ? value.AsString() : nullptr;
      guarded.emplace_back(Text(name), part == nullptr ? Value(value) : JsonValue(Broken(*part)));
    }
    return guarded;
  }

 private:
  std::string Text(const std::string& text) const {
    // A plain name is left as it is where only the template could make a token of it.
    const bool holds_none = !specials_.FindNext(text, 0, SpecialScope::kAll).has_value();
    return IsPlainName(text) && holds_none ? text : Broken(text);
  }
  std::string Broken(const std::string& text) const {
    return specials_.BreakLookAlikes(text, guard_);
  }

  JsonValue Value(const JsonValue& value) const {
    if (const std::string* text = value.AsString()) return JsonValue(Text(*text));
    if (const JsonValue::Object* object = value.AsObject()) return JsonValue(Object(*object));
    const JsonValue::Array* array = value.AsArray();
    if (array == nullptr) return value;
    JsonValue::Array guarded;
    guarded.reserve(array->size());
    for (const JsonValue& item : *array) guarded.push_back(Value(item));
    return JsonValue(std::move(guarded));
  }

  const SpecialTokens& specials_;
  const std::string_view guard_;
};

StatusOr<std::string> ChooseGuard(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                  std::span<const ChatMessage> messages,
                                  const RenderOptions& options) {
  for (int i = 0; i < kNumGuards; ++i) {
    std::string guard = GuardCharacter(i);
    const bool in_messages =
        std::any_of(messages.begin(), messages.end(), [&guard](const ChatMessage& message) {
          return Contains(message.content, guard) || Contains(message.members, guard);
        });
    if (in_messages || Contains(options.variables, guard) ||
        Contains(chat_template.source(), guard) || !tokenizer.special_tokens().IsFreeOf(guard)) {
      continue;
    }
    return guard;
  }
  return InvalidArgument("messages: the contents hold all of the noncharacters U+FDD0..U+FDEF");
}

}  // namespace

StatusOr<ChatPrompt> EncodeChat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                std::span<const ChatMessage> messages,
                                const RenderOptions& options) {
  BATON_ASSIGN_OR_RETURN(const std::string guard,
                         ChooseGuard(tokenizer, chat_template, messages, options));
  const Guarding guarding(tokenizer.special_tokens(), guard);
  std::vector<ChatMessage> guarded;
  guarded.reserve(messages.size());
  for (const ChatMessage& message : messages) guarded.push_back(guarding.Message(message));
  RenderOptions guarded_options = options;
  guarded_options.variables = guarding.Object(options.variables);
  BATON_ASSIGN_OR_RETURN(const std::string rendered,
                         chat_template.Render(guarded, guarded_options));

  ChatPrompt prompt;
  BATON_ASSIGN_OR_RETURN(prompt.tokens,
                         tokenizer.Encode(rendered, {.parse_special = true, .guard = guard}));
  const bool needs_bos = tokenizer.add_bos() &&
                         (prompt.tokens.empty() || prompt.tokens.front() != *tokenizer.bos_id());
  if (needs_bos) prompt.tokens.insert(prompt.tokens.begin(), *tokenizer.bos_id());
  std::vector<size_t> places;
  prompt.text = TakeOut(rendered, guard, &places);
  return prompt;
}

}  // namespace baton::text
