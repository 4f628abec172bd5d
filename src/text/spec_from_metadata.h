// From the model reader's view of a tokenizer to a TokenizerSpec. Templates over the reader's
// types, because this folder knows no model files and src/model does not know this folder; their
// callers know both. Any thread.
#ifndef BATON_TEXT_SPEC_FROM_METADATA_H_
#define BATON_TEXT_SPEC_FROM_METADATA_H_

#include <cstdint>
#include <string>

#include "src/base/status.h"
#include "src/text/folder_tokenizer.h"
#include "src/text/tokenizer_spec.h"

namespace baton::text {

// A copy of what `metadata` (src/model's TokenizerMetadata) points to.
template <class Metadata>
TokenizerSpec TokenizerSpecFrom(const Metadata& metadata) {
  TokenizerSpec spec;
  spec.model = std::string(metadata.model);
  spec.pre = std::string(metadata.pre);
  spec.tokens.assign(metadata.tokens.begin(), metadata.tokens.end());
  spec.scores = metadata.scores;
  spec.token_types.reserve(metadata.token_types.size());
  for (const auto type : metadata.token_types) {
    spec.token_types.push_back(static_cast<int32_t>(type));
  }
  spec.merges.assign(metadata.merges.begin(), metadata.merges.end());
  spec.bos_id = metadata.bos_id;
  spec.eos_id = metadata.eos_id;
  spec.eot_id = metadata.eot_id;
  spec.eom_id = metadata.eom_id;
  spec.unk_id = metadata.unknown_id;
  spec.pad_id = metadata.padding_id;
  spec.add_bos = metadata.add_bos;
  spec.add_eos = metadata.add_eos;
  spec.add_space_prefix = metadata.add_space_prefix;
  spec.space_prefix_at_start_only = metadata.space_prefix_at_start_only;
  spec.space_prefix_unless_there = metadata.space_prefix_unless_there;
  spec.user_defined_as_written = metadata.user_defined_as_written;
  spec.marks_spaces_first = metadata.marks_spaces_first;
  spec.adds_prefix_first = metadata.adds_prefix_first;
  spec.token_traits = metadata.token_traits;
  spec.ignore_merges = metadata.ignore_merges;
  spec.nfc = metadata.nfc;
  spec.chat_template = std::string(metadata.chat_template);
  for (const auto& named : metadata.named_templates) {
    spec.named_templates.push_back({std::string(named.name), std::string(named.text)});
  }
  // GGUF has no key for what a special token does to the blanks beside it.
  const bool is_phi3 = metadata.architecture == "phi3" && spec.model == "llama";
  const bool is_said = metadata.no_token_traits || !spec.token_traits.empty();
  if (is_phi3 && !is_said) SetPhi3Traits(spec);
  return spec;
}

// The tokenizer of the model that `file` (src/model's GgufFile) was opened from `path` as: a GGUF
// file's keys, or the files of a folder. Errors as ReadTokenizerMetadata and LoadFolderTokenizer.
// The caller includes tokenizer_metadata.h and model_config.h.
template <class File>
StatusOr<TokenizerSpec> ReadModelTokenizer(const File& file, const std::string& path) {
  if (!file.is_folder()) {
    BATON_ASSIGN_OR_RETURN(const auto metadata, ReadTokenizerMetadata(file));
    return TokenizerSpecFrom(metadata);
  }
  BATON_ASSIGN_OR_RETURN(const auto config, ReadModelConfig(file));
  return LoadFolderTokenizer(path, config.vocab_size);
}

}  // namespace baton::text

#endif  // BATON_TEXT_SPEC_FROM_METADATA_H_
