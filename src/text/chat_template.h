// A model's chat template: messages to the prompt text. Immutable after Create: Render may run on
// several threads at once, and is meant for request threads (it takes tens of microseconds; each
// call runs on a short-lived thread of its own, see README.md).
#ifndef BATON_TEXT_CHAT_TEMPLATE_H_
#define BATON_TEXT_CHAT_TEMPLATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/text/hf_library.h"

namespace baton {

class Tokenizer;
struct TokenizerSpec;

inline constexpr size_t kMaxChatMessages = 100'000;

// One turn of a conversation.
struct ChatMessage {
  std::string role;     // "system", "developer", "user", "assistant" or "tool"
  std::string content;  // UTF-8
};

// What a template is told besides the messages.
struct RenderOptions {
  bool add_generation_prompt = true;  // end where the assistant's answer begins
  std::optional<int64_t> now_unix_s;  // for templates that print the date; undefined without it
};

// A compiled template.
class ChatTemplate {
 public:
  // `source`: Jinja, at most 256 KiB. `bos_token`, `eos_token`: the texts that templates print
  // under these names. InvalidArgument, with the line, for a source that does not parse;
  // FailedPrecondition for one that cannot be compiled within a second.
  static StatusOr<ChatTemplate> Create(std::string source, std::string_view bos_token,
                                       std::string_view eos_token);
  // The template of `spec`, which has one, with the tokens of its `tokenizer`. Errors as above.
  static StatusOr<ChatTemplate> CreateFor(const TokenizerSpec& spec, const Tokenizer& tokenizer);

  // The prompt. InvalidArgument when the template refuses the messages (its own words), when a role
  // is none of the above, when a string is not UTF-8, or when there are more than kMaxChatMessages.
  // FailedPrecondition when the template exceeds its instructions, 0.9 s of processor time, its
  // recursion, 64 MiB of memory plus 16 times the messages, or kMaxEncodeBytes of output.
  StatusOr<std::string> Render(std::span<const ChatMessage> messages,
                               const RenderOptions& options = {}) const;

  const std::string& source() const { return source_; }

 private:
  explicit ChatTemplate(hf::JinjaTemplate compiled) : compiled_(std::move(compiled)) {}

  std::string source_;
  std::string fixed_variables_;  // the JSON members that are the same in every rendering
  hf::JinjaTemplate compiled_;
};

// "chat template: ..." as InvalidArgument unless `role` is one of the closed list.
Status CheckChatRole(std::string_view role);

}  // namespace baton

#endif  // BATON_TEXT_CHAT_TEMPLATE_H_
