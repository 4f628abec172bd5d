#include "src/cli/tokenizer_keys.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"

#include "src/model/tokenizer_metadata.h"

namespace baton::cli {

using model::GgufWriter;
using model::kTokenizerOwnPrefix;
using text::NamedChatTemplate;
using text::TokenizerSpec;

namespace {

void AddIds(const TokenizerSpec& spec, GgufWriter& writer) {
  const std::pair<const char*, std::optional<uint32_t>> ids[] = {
      {"bos", spec.bos_id}, {"eos", spec.eos_id},     {"eot", spec.eot_id},
      {"eom", spec.eom_id}, {"unknown", spec.unk_id}, {"padding", spec.pad_id}};
  for (const auto& [name, id] : ids) {
    if (id) writer.AddU32(fmt::format("tokenizer.ggml.{}_token_id", name), *id);
  }
}

void AddFlags(const TokenizerSpec& spec, GgufWriter& writer) {
  const std::pair<const char*, std::optional<bool>> flags[] = {
      {"add_bos_token", spec.add_bos},
      {"add_eos_token", spec.add_eos},
      {"add_space_prefix", spec.add_space_prefix}};
  for (const auto& [name, flag] : flags) {
    if (flag) writer.AddBool(fmt::format("tokenizer.ggml.{}", name), *flag);
  }
  const std::pair<const char*, bool> own[] = {
      {"space_prefix_at_start_only", spec.space_prefix_at_start_only},
      {"space_prefix_unless_there", spec.space_prefix_unless_there},
      {"user_defined_as_written", spec.user_defined_as_written},
      {"marks_spaces_first", spec.marks_spaces_first},
      {"adds_prefix_first", spec.adds_prefix_first},
      // A file without either key is of another converter, which could not say it.
      {"no_token_traits", spec.model == "llama" && spec.token_traits.empty()},
      {"nfc", spec.nfc}};
  for (const auto& [name, flag] : own) {
    if (flag) writer.AddBool(fmt::format("{}{}", kTokenizerOwnPrefix, name), true);
  }
  if (!spec.token_traits.empty()) {
    writer.AddInts(fmt::format("{}token_traits", kTokenizerOwnPrefix), spec.token_traits);
  }
  if (spec.ignore_merges) {
    writer.AddBool(fmt::format("{}ignore_merges", kTokenizerOwnPrefix), *spec.ignore_merges);
  }
}

void AddTemplates(const TokenizerSpec& spec, GgufWriter& writer) {
  if (!spec.chat_template.empty()) writer.AddString("tokenizer.chat_template", spec.chat_template);
  if (spec.named_templates.empty()) return;
  std::vector<std::string> names;
  for (const NamedChatTemplate& named : spec.named_templates) {
    writer.AddString("tokenizer.chat_template." + named.name, named.source);
    names.push_back(named.name);
  }
  writer.AddStrings("tokenizer.chat_templates", names);
}

}  // namespace

void AddTokenizerKeys(const TokenizerSpec& spec, GgufWriter& writer) {
  writer.AddString("tokenizer.ggml.model", spec.model);
  writer.AddString("tokenizer.ggml.pre", spec.pre);
  writer.AddStrings("tokenizer.ggml.tokens", spec.tokens);
  if (!spec.scores.empty()) writer.AddFloats("tokenizer.ggml.scores", spec.scores);
  if (!spec.token_types.empty()) writer.AddInts("tokenizer.ggml.token_type", spec.token_types);
  const bool is_bpe = spec.model == "gpt2";  // its readers need the list, empty or not
  if (is_bpe || !spec.merges.empty()) writer.AddStrings("tokenizer.ggml.merges", spec.merges);
  AddIds(spec, writer);
  AddFlags(spec, writer);
  AddTemplates(spec, writer);
}

}  // namespace baton::cli
