#include "src/text/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/base/quoted_text.h"
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"

namespace baton {
namespace {

// Published templates run 50 to 200 instructions a message.
constexpr uint64_t kBaseFuel = 200'000;
constexpr uint64_t kFuelPerMessage = 4'000;
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

void AppendJsonString(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  for (const char c : text) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (byte < 0x20) {
      out->append("\\u00");
      out->push_back(kHex[byte >> 4]);
      out->push_back(kHex[byte & 15]);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

}  // namespace

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
  chat_template.source_ = std::move(source);
  std::string& fixed = chat_template.fixed_variables_;
  fixed = "{\"bos_token\":";
  AppendJsonString(bos_token, &fixed);
  fixed += ",\"eos_token\":";
  AppendJsonString(eos_token, &fixed);
  // Templates are written for Hugging Face's apply_chat_template, which always passes these.
  fixed += ",\"tools\":null,\"documents\":null";
  return chat_template;
}

StatusOr<ChatTemplate> ChatTemplate::CreateFor(const TokenizerSpec& spec,
                                               const Tokenizer& tokenizer) {
  const auto text_of = [&](std::optional<TokenId> id) {
    return id.has_value() ? tokenizer.TokenBytes(*id) : std::string_view();
  };
  return Create(spec.chat_template, text_of(tokenizer.bos_id()), text_of(tokenizer.eos_id()));
}

StatusOr<std::string> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                           const RenderOptions& options) const {
  if (messages.size() > kMaxChatMessages) {
    return InvalidArgument("messages has {} entries, more than {}", messages.size(),
                           kMaxChatMessages);
  }
  std::string json = fixed_variables_;
  json += options.add_generation_prompt ? ",\"add_generation_prompt\":true"
                                        : ",\"add_generation_prompt\":false";
  json += ",\"messages\":[";
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (const Status role = CheckChatRole(message.role); !role.ok()) {
      return WithPrefix(role, fmt::format("messages[{}]", i));
    }
    const size_t valid = ValidUtf8Prefix(message.content);
    if (valid != message.content.size()) {
      return InvalidArgument("messages[{}]: content is not UTF-8 at byte {}", i, valid);
    }
    json += i == 0 ? "{\"role\":" : ",{\"role\":";
    AppendJsonString(message.role, &json);
    json += ",\"content\":";
    AppendJsonString(message.content, &json);
    json += '}';
  }
  json += "]}";

  hf::RenderRequest request;
  request.variables_json = json;
  request.fuel = std::min(kMaxFuel, kBaseFuel + kFuelPerMessage * messages.size());
  request.max_output_bytes = kMaxEncodeBytes;
  request.max_memory_bytes = kBaseMemoryBytes + kMemoryPerInputByte * json.size();
  request.timeout_ms = kTimeoutMs;
  request.now_unix_s = options.now_unix_s;
  return compiled_.Render(request);
}

}  // namespace baton
