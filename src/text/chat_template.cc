#include "src/text/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "src/base/limits.h"
#include "src/base/quoted_text.h"
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"

namespace baton::text {

using limits::kMaxEncodeBytes;

namespace {

// Published templates run 50 to 300 instructions a message, and those that write tools as a program
// text a few a byte of their schemas.
constexpr uint64_t kBaseFuel = 200'000;
constexpr uint64_t kFuelPerMessage = 4'000;
constexpr uint64_t kFuelPerByte = 4;
constexpr uint64_t kMaxFuel = 2'000'000;
constexpr uint64_t kBaseMemoryBytes = uint64_t{64} << 20;
// The messages exist as JSON, as values and as output, and templates that build their prompt by
// concatenation hold it twice.
constexpr uint64_t kMemoryPerInputByte = 16;
// A clear error within a second; a published template takes far below a millisecond. A sanitizer
// reuses freed memory late, so that each step of a long concatenation touches fresh pages.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kTimeoutMs = 900 * 10;
#else
constexpr uint64_t kTimeoutMs = 900;
#endif

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

// Marks where the message that is continued ends; noncharacters, so that no person's text has it.
// The blank tells whether the template keeps the blanks at the end of a message.
constexpr std::string_view kEndMark = "\xEF\xB7\xAF\xEF\xB7\x91\xEF\xB7\xAF ";

constexpr std::array<std::string_view, 8> kReserved = {"messages",
                                                       "add_generation_prompt",
                                                       "continue_final_message",
                                                       "bos_token",
                                                       "eos_token",
                                                       "chat_template",
                                                       "tokenize",
                                                       "return_dict"};

// Names under which a message's thoughts may come; the first is the one that templates read.
constexpr std::array<std::string_view, 3> kThoughts = {"reasoning_content", "thinking",
                                                       "reasoning"};

// Writes the members of a JSON object.
class MemberWriter {
 public:
  explicit MemberWriter(std::string* out) : out_(out) {}

  // Writes the name; the caller appends the value.
  std::string* Begin(std::string_view name) {
    if (!is_first_) out_->push_back(',');
    is_first_ = false;
    AppendJsonString(name, out_);
    out_->push_back(':');
    return out_;
  }

 private:
  std::string* const out_;
  bool is_first_ = true;
};

// The text parts of a message; null when its content came as one text.
const JsonValue::Array* PartsOf(const ChatMessage& message) {
  const JsonValue* content = FindMember(message.members, "content");
  return content == nullptr ? nullptr : content->AsArray();
}

// How a template is shown the content of messages.
struct TemplateView {
  hf::PartsUse parts = hf::PartsUse::kNone;
  bool fills_content = false;  // content that is null or absent is shown as an empty text
};

ContentForm FormOf(const ChatMessage& message, TemplateView view) {
  return view.fills_content ? ContentForm::kText : message.form;
}

// Parts go to a template that reads them; one that reads nothing else gets a text as one part.
void AppendContent(const ChatMessage& message, TemplateView view, std::string* out) {
  const JsonValue* content = FindMember(message.members, "content");
  const bool has_parts = PartsOf(message) != nullptr;
  if (FormOf(message, view) == ContentForm::kNull) {
    out->append("null");
  } else if (has_parts && view.parts != hf::PartsUse::kNone) {
    AppendJson(*content, out);
  } else if (view.parts == hf::PartsUse::kNeeds) {
    out->append("[{\"type\":\"text\",\"text\":");
    AppendJsonString(message.content, out);
    out->append("}]");
  } else {
    AppendJsonString(message.content, out);
  }
}

// A message as a template sees it. Thoughts stand under `reasoning_content` and, for templates of
// gpt-oss, under `thinking`, as in transformers.
void AppendMessage(const ChatMessage& message, std::string_view role, TemplateView view,
                   std::string* out) {
  out->push_back('{');
  MemberWriter writer(out);
  const JsonValue* thoughts = nullptr;
  for (const std::string_view name : kThoughts) {
    const JsonValue* value = FindMember(message.members, name);
    if (thoughts == nullptr && value != nullptr && !value->is_null()) thoughts = value;
  }
  const JsonValue* thinking = FindMember(message.members, "thinking");
  if (thoughts != nullptr) {
    AppendJson(thinking != nullptr ? *thinking : *thoughts, writer.Begin("thinking"));
  }
  const bool shows_content = FormOf(message, view) != ContentForm::kAbsent;
  const bool lacks_place = message.members.empty() || message.form == ContentForm::kAbsent;
  if (message.members.empty()) AppendJsonString(role, writer.Begin("role"));
  if (shows_content && lacks_place) AppendContent(message, view, writer.Begin("content"));
  for (const auto& [name, value] : message.members) {
    if (name == "role") {
      AppendJsonString(role, writer.Begin(name));
    } else if (name == "content") {
      if (shows_content && !lacks_place) AppendContent(message, view, writer.Begin(name));
    } else if (thoughts == nullptr || (name != "thinking" && name != "reasoning_content")) {
      AppendJson(value, writer.Begin(name));
    } else if (name == "reasoning_content") {
      AppendJson(*thoughts, writer.Begin(name));
    }
  }
  if (thoughts != nullptr && FindMember(message.members, "reasoning_content") == nullptr) {
    AppendJson(*thoughts, writer.Begin("reasoning_content"));
  }
  out->push_back('}');
}

// Puts the mark behind the text of `message`, and behind its last part.
Status MarkEnd(ChatMessage* message) {
  message->content += kEndMark;
  if (PartsOf(*message) == nullptr) return OkStatus();
  for (auto& [name, value] : message->members) {
    JsonValue::Array* parts = name == "content" ? value.AsArray() : nullptr;
    if (parts == nullptr) continue;
    JsonValue::Object* last = parts->empty() ? nullptr : parts->back().AsObject();
    if (last == nullptr || parts->back().Find("text") == nullptr) break;
    for (auto& [key, text] : *last) {
      if (key == "text" && text.AsString() != nullptr) {
        text = JsonValue(*text.AsString() + std::string(kEndMark));
      }
    }
    return OkStatus();
  }
  return InvalidArgument("continue_final_message needs a last message that ends with text");
}

bool IsBlank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
}

std::string_view WithoutLastBlanks(std::string_view text) {
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

// `rendered` up to the mark. A template that trims messages takes the blanks before the mark away
// too, as transformers does.
StatusOr<std::string> CutAtMark(std::string_view rendered, std::string_view content) {
  constexpr std::string_view kMark = kEndMark.substr(0, kEndMark.size() - 1);
  while (!content.empty() && IsBlank(content.front())) content.remove_prefix(1);
  const size_t at = rendered.rfind(kMark);
  if (at == std::string_view::npos ||
      rendered.find(WithoutLastBlanks(content)) == std::string_view::npos) {
    return InvalidArgument(
        "continue_final_message: the chat template does not print the last message as it is");
  }
  const bool keeps_blanks = rendered.substr(at).starts_with(kEndMark);
  const std::string_view text = rendered.substr(0, at);
  return std::string(keeps_blanks ? text : WithoutLastBlanks(text));
}

}  // namespace

bool IsReservedVariable(std::string_view name) {
  return std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end();
}

Status CheckChatRole(std::string_view role) {
  if (std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end()) return OkStatus();
  return InvalidArgument("role {} is not one of system, developer, user, assistant, tool",
                         QuotedForMessage(role));
}

StatusOr<ChatTemplate> ChatTemplate::Create(std::string source, std::string_view bos_token,
                                            std::string_view eos_token) {
  if (ValidUtf8Prefix(bos_token) != bos_token.size() ||
      ValidUtf8Prefix(eos_token) != eos_token.size()) {
    return InvalidArgument("chat template: the bos or eos token is not UTF-8");
  }
  BATON_ASSIGN_OR_RETURN(hf::JinjaTemplate compiled, hf::JinjaTemplate::Create(source));
  ChatTemplate chat_template(std::move(compiled));
  chat_template.knows_developer_ = source.find("developer") != std::string::npos;
  chat_template.source_ = std::move(source);
  std::string& fixed = chat_template.fixed_variables_;
  fixed = "{\"bos_token\":";
  AppendJsonString(bos_token, &fixed);
  fixed += ",\"eos_token\":";
  AppendJsonString(eos_token, &fixed);
  return chat_template;
}

StatusOr<ChatTemplate> ChatTemplate::CreateFor(std::string source, const Tokenizer& tokenizer) {
  const auto text_of = [&](std::optional<TokenId> id) {
    return id.has_value() ? tokenizer.TokenBytes(*id) : std::string_view();
  };
  return Create(std::move(source), text_of(tokenizer.bos_id()), text_of(tokenizer.eos_id()));
}

Status ChatTemplate::AppendVariables(std::span<const ChatMessage> messages,
                                     const RenderOptions& options, bool fills_content,
                                     std::string* json) const {
  *json = fixed_variables_;
  // Templates are written for Hugging Face's apply_chat_template, which always passes these.
  for (const char* name : {"tools", "documents"}) {
    if (FindMember(options.variables, name) == nullptr) *json += fmt::format(",\"{}\":null", name);
  }
  for (const auto& [name, value] : options.variables) {
    json->push_back(',');
    AppendJsonString(name, json);
    json->push_back(':');
    AppendJson(value, json);
  }
  *json += options.add_generation_prompt ? ",\"add_generation_prompt\":true"
                                         : ",\"add_generation_prompt\":false";
  *json += ",\"messages\":[";
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (const Status role = CheckChatRole(message.role); !role.ok()) {
      return WithPrefix(role, fmt::format("messages[{}]", i));
    }
    const size_t valid = ValidUtf8Prefix(message.content);
    if (valid != message.content.size()) {
      return InvalidArgument("messages[{}]: content is not UTF-8 at byte {}", i, valid);
    }
    if (i > 0) json->push_back(',');
    // OpenAI's newer name for the same place in the conversation, which few templates know.
    const bool is_renamed = message.role == "developer" && !knows_developer_;
    const TemplateView view = {.parts = compiled_.parts_use(), .fills_content = fills_content};
    AppendMessage(message, is_renamed ? "system" : message.role, view, json);
  }
  *json += "]}";
  return OkStatus();
}

StatusOr<std::string> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                           const RenderOptions& options) const {
  if (messages.size() > kMaxChatMessages) {
    return InvalidArgument("messages has {} entries, more than {}", messages.size(),
                           kMaxChatMessages);
  }
  if (!options.continue_final_message) return RenderAll(messages, options);
  if (options.add_generation_prompt) {
    return InvalidArgument("continue_final_message excludes add_generation_prompt");
  }
  if (messages.empty() || messages.back().form != ContentForm::kText) {
    return InvalidArgument("continue_final_message needs a last message that has content");
  }
  std::vector<ChatMessage> marked(messages.begin(), messages.end());
  BATON_RETURN_IF_ERROR(MarkEnd(&marked.back()));
  BATON_ASSIGN_OR_RETURN(const std::string rendered, RenderAll(marked, options));
  return CutAtMark(rendered, messages.back().content);
}

// Many templates add the content of each message to a text, and clients send null beside calls.
// Such a template is told an empty text instead.
StatusOr<std::string> ChatTemplate::RenderAll(std::span<const ChatMessage> messages,
                                              const RenderOptions& options) const {
  StatusOr<std::string> as_sent = RenderOnce(messages, options, /*fills_content=*/false);
  if (as_sent.ok() || !absl::IsInvalidArgument(as_sent.status())) return as_sent;
  const bool lacks_content =
      std::any_of(messages.begin(), messages.end(),
                  [](const ChatMessage& message) { return message.form != ContentForm::kText; });
  if (!lacks_content) return as_sent;
  StatusOr<std::string> filled = RenderOnce(messages, options, /*fills_content=*/true);
  return filled.ok() ? filled : as_sent;
}

StatusOr<std::string> ChatTemplate::RenderOnce(std::span<const ChatMessage> messages,
                                               const RenderOptions& options,
                                               bool fills_content) const {
  std::string json;
  BATON_RETURN_IF_ERROR(AppendVariables(messages, options, fills_content, &json));

  hf::RenderRequest request;
  request.variables_json = json;
  request.fuel = std::min(
      kMaxFuel, kBaseFuel + kFuelPerMessage * messages.size() + kFuelPerByte * json.size());
  request.max_output_bytes = kMaxEncodeBytes;
  request.max_memory_bytes = kBaseMemoryBytes + kMemoryPerInputByte * json.size();
  request.timeout_ms = kTimeoutMs;
  request.now_unix_s = options.now_unix_s;
  return compiled_.Render(request);
}

}  // namespace baton::text
