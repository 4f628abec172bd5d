// A model's chat template: messages to the prompt text. Immutable after Create: Render may run on
// several threads at once, and is meant for request threads (it takes tens of microseconds; each
// call runs on a short-lived thread of its own, see TEMPLATES.md).
#ifndef BATON_TEXT_CHAT_TEMPLATE_H_
#define BATON_TEXT_CHAT_TEMPLATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/base/json_value.h"
#include "src/base/status.h"
#include "src/text/hf_library.h"

namespace baton::text {

class Tokenizer;

inline constexpr size_t kMaxChatMessages = 100'000;

// The form in which a template sees the content of a message that has text or none. A template
// that fails on kNull or kAbsent is rendered once more, with an empty text in their place.
enum class ContentForm : uint8_t {
  kText,    // ChatMessage::content
  kNull,    // null: an assistant message that only calls tools
  kAbsent,  // the message has no member `content`
};

// One turn of a conversation.
struct ChatMessage {
  // "system", "user", "assistant", "tool" or "developer", which a template that does not name it
  // sees as "system".
  std::string role;
  std::string content;  // UTF-8; several text parts are joined with a newline
  ContentForm form = ContentForm::kText;
  // The members in the order of the request, for templates that read more than role and content or
  // print a whole message. Empty: role and content. "role" and "content" mark places: the values
  // are the fields above, except an array in "content", which is the content as text parts.
  JsonValue::Object members = {};
};

// The values that a template is told besides the messages.
struct RenderOptions {
  bool add_generation_prompt = true;  // end where the assistant's answer begins
  // End inside the last message, so that the answer continues it; excludes the field above.
  bool continue_final_message = false;
  std::optional<int64_t> now_unix_s;  // for templates that print the date; undefined without it
  // Further variables: tools, documents and what the client adds. Each name stands once, and none
  // is one of those that IsReservedVariable names.
  JsonValue::Object variables = {};
};

// True for the names that a rendering sets itself: messages, add_generation_prompt, bos_token ...
bool IsReservedVariable(std::string_view name);

// A compiled template.
class ChatTemplate {
 public:
  // `source`: Jinja, at most 256 KiB. `bos_token`, `eos_token`: the texts that templates print
  // under these names. InvalidArgument, with the line, for a source that does not parse;
  // FailedPrecondition for one that cannot be compiled within a second.
  static StatusOr<ChatTemplate> Create(std::string source, std::string_view bos_token,
                                       std::string_view eos_token);
  // With the tokens of `tokenizer`. Errors as above.
  static StatusOr<ChatTemplate> CreateFor(std::string source, const Tokenizer& tokenizer);

  // The prompt. InvalidArgument when the template refuses the messages (its own words), or does not
  // print the message that is to be continued. InvalidArgument too when a role is none of the
  // above, when a string is not UTF-8, or when there are more than kMaxChatMessages.
  // FailedPrecondition when the template exceeds its instructions, 0.9 s of processor time, its
  // recursion, 64 MiB of memory plus 16 times the messages, or kMaxEncodeBytes of output. Costs two
  // renderings where ContentForm says so.
  StatusOr<std::string> Render(std::span<const ChatMessage> messages,
                               const RenderOptions& options = {}) const;

  const std::string& source() const { return source_; }
  // False for a variable that no expression of the template names: giving it changes nothing.
  bool Reads(std::string_view variable) const { return compiled_.Reads(variable); }

 private:
  explicit ChatTemplate(hf::JinjaTemplate compiled) : compiled_(std::move(compiled)) {}

  // Writes the JSON object of all variables. `fills_content`: kNull and kAbsent become "".
  Status AppendVariables(std::span<const ChatMessage> messages, const RenderOptions& options,
                         bool fills_content, std::string* json) const;
  StatusOr<std::string> RenderAll(std::span<const ChatMessage> messages,
                                  const RenderOptions& options) const;
  StatusOr<std::string> RenderOnce(std::span<const ChatMessage> messages,
                                   const RenderOptions& options, bool fills_content) const;

  std::string source_;
  bool knows_developer_ = false;  // the source names the role
  std::string fixed_variables_;   // the JSON members that are the same in every rendering
  hf::JinjaTemplate compiled_;
};

// "role ..." as InvalidArgument unless `role` is one of the closed list.
Status CheckChatRole(std::string_view role);

}  // namespace baton::text

#endif  // BATON_TEXT_CHAT_TEMPLATE_H_
