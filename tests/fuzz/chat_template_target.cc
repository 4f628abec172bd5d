// Chat templates as a model file may bring them: source, then up to four turns "role:content".
#include <string>
#include <string_view>
#include <vector>

#include "src/base/limits.h"
#include "src/text/chat_encoder.h"
#include "src/text/chat_template.h"
#include "src/text/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"
#include "tests/router/test_model.h"

namespace baton::fuzz {

using limits::kMaxEncodeBytes;
using text::ChatMessage;

namespace {

std::vector<ChatMessage> TurnsOf(const std::vector<std::string_view>& parts) {
  std::vector<ChatMessage> turns;
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t colon = parts[i].find(':');
    if (parts[i].empty()) continue;
    const bool has_role = colon != std::string_view::npos;
    turns.push_back({std::string(has_role ? parts[i].substr(0, colon) : "user"),
                     std::string(has_role ? parts[i].substr(colon + 1) : parts[i])});
  }
  return turns;
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(chat_template) {
  using namespace baton;          // NOLINT: the whole target
  using namespace baton::router;  // NOLINT
  using namespace baton::text;    // NOLINT
  using namespace baton::fuzz;    // NOLINT
  const auto parts = CutFiles(input, 5);
  const auto chat_template = ChatTemplate::Create(std::string(parts[0]), "<bos>", "<eos>");
  if (!chat_template.ok()) {
    BATON_CHECK(!chat_template.status().message().empty(), "a refusal without a word");
    return;
  }
  const std::vector<ChatMessage> turns = TurnsOf(parts);
  const RenderOptions options{.now_unix_s = 1'700'000'000};
  const auto prompt = chat_template->Render(turns, options);
  if (!prompt.ok()) {
    BATON_CHECK(!prompt.status().message().empty(), "a refusal without a word");
  } else {
    BATON_CHECK(prompt->size() <= kMaxEncodeBytes, "{} bytes", prompt->size());
    BATON_CHECK(ValidUtf8Prefix(*prompt) == prompt->size(), "a prompt of broken UTF-8");
  }
  const auto encoded = EncodeChat(*TestModel()->tokenizer, *chat_template, turns, options);
  if (!encoded.ok()) {
    BATON_CHECK(!encoded.status().message().empty(), "a refusal without a word");
    return;
  }
  BATON_CHECK(ValidUtf8Prefix(encoded->text) == encoded->text.size(), "a text of broken UTF-8");
  for (const TokenId id : encoded->tokens) {
    BATON_CHECK(TestModel()->tokenizer->IsValid(id), "token {}", id);
  }
}
