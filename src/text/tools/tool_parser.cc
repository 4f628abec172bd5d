#include "src/text/tools/tool_parser.h"

#include "src/text/tools/bare_json_parser.h"
#include "src/text/tools/gemma_parser.h"
#include "src/text/tools/harmony_parser.h"
#include "src/text/tools/json_bytes.h"
#include "src/text/tools/mistral_parser.h"
#include "src/text/tools/tagged_parser.h"

namespace baton::text {
namespace {

// All text is content.
class PlainParser final : public ToolParser {
 public:
  explicit PlainParser(const ToolRules& rules) : ToolParser(rules) {}
  bool in_call() const override { return false; }

 private:
  void OnByte(char c) override { out_.Content({&c, 1}); }
  void OnEnd(bool /*is_cut*/) override {}
};

}  // namespace

const ToolShape* ToolRules::Find(std::string_view name) const {
  for (const ToolShape& function : functions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

void PartsWriter::Content(std::string_view text) {
  for (const char c : text) {
    if (IsJsonBlank(c)) {
      blanks_.push_back(c);
      continue;
    }
    // Text after a call at the beginning of an answer begins the content, without its first blanks.
    if (num_calls_ == 0 || has_content_) parts_.content.append(blanks_);
    blanks_.clear();
    parts_.content.push_back(c);
    has_content_ = true;
  }
}

void PartsWriter::BeginCall(std::string name) {
  blanks_.clear();
  const ToolShape* function = rules_.Find(name);
  const bool is_barred = function != nullptr && !function->is_allowed;
  drops_call_ = is_barred || num_calls_ >= rules_.max_calls;
  if (drops_call_) return;
  parts_.calls.push_back({.index = num_calls_++, .name = std::move(name), .arguments = {}});
}

void PartsWriter::Arguments(std::string_view text) {
  if (drops_call_ || text.empty()) return;
  const uint32_t index = num_calls_ - 1;
  const bool goes_on = !parts_.calls.empty() && parts_.calls.back().name.empty();
  if (!goes_on) parts_.calls.push_back({.index = index, .name = {}, .arguments = {}});
  parts_.calls.back().arguments.append(text);
}

void PartsWriter::Finish() {
  if (num_calls_ == 0) parts_.content.append(blanks_);
  blanks_.clear();
}

std::unique_ptr<ToolParser> ToolParser::Create(ToolStyle style, const ToolRules& rules) {
  switch (style) {
    case ToolStyle::kHermes:
    case ToolStyle::kQwen3Coder:
      return std::make_unique<TaggedParser>(style, rules);
    case ToolStyle::kLlama3:
    case ToolStyle::kGeneric:
      return std::make_unique<BareJsonParser>(style, rules);
    case ToolStyle::kGemma:
      return std::make_unique<GemmaParser>(rules);
    case ToolStyle::kMistral:
      return std::make_unique<MistralParser>(rules);
    case ToolStyle::kHarmony:
      return std::make_unique<HarmonyParser>(rules);
    case ToolStyle::kNone:
      break;
  }
  return std::make_unique<PlainParser>(rules);
}

ToolParts ToolParser::Push(std::string_view text) {
  for (const char c : text) OnByte(c);
  return out_.Take();
}

ToolParts ToolParser::Flush(bool is_cut) {
  OnEnd(is_cut);
  out_.Finish();
  return out_.Take();
}

}  // namespace baton::text
