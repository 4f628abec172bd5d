// The tokenizer of a Hugging Face folder as a TokenizerSpec: what tokenizer.json,
// tokenizer_config.json and chat_template.jinja say, brought to the terms of tokenizer.ggml.*.
//
// Built in: byte-level BPE with the split rules of pre_tokenizer.h (with or without NFC), and
// SentencePiece-style BPE (gemma, llama 2; normalizer or Metaspace form). Every other model,
// normalizer, pre-tokenizer or option is refused by its name: Unimplemented.
#ifndef BATON_TEXT_FOLDER_TOKENIZER_H_
#define BATON_TEXT_FOLDER_TOKENIZER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/text/tokenizer_spec.h"

namespace baton::text {

// Twice the largest in use (gemma 3: 33 MB), and far above any other file of a tokenizer.
inline constexpr size_t kMaxTokenizerJsonBytes = size_t{64} << 20;
inline constexpr size_t kMaxConfigJsonBytes = size_t{16} << 20;
// Files of additional_chat_templates; together they have at most kMaxConfigJsonBytes.
inline constexpr size_t kMaxAdditionalTemplates = 64;

// The texts of a folder's files; empty = not there.
struct FolderTokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::string generation_config_json;  // more tokens that end a generation
  std::string config_json;             // bos and eos where tokenizer_config.json has none
  std::string chat_template_jinja;     // goes before the templates of tokenizer_config.json
  std::string chat_template_json;      // read where no other file has a template
  // additional_chat_templates/NAME.jinja. Any of them too goes before tokenizer_config.json.
  std::vector<NamedChatTemplate> additional_templates;
};

// Pure. `vocab_size`: rows of the model's embedding.
//
// InvalidArgument, naming both numbers, for a vocabulary of another size. Two differences are usual
// and accepted. Rows without a token, at most 1/32 of all, become unused tokens: those at the end
// that round the count up (to a multiple of 8), and ids among the added tokens that none has.
// Special tokens beyond the last row are left out. InvalidArgument too for files that contradict
// themselves: a token or an id that is there twice, a hole among ordinary tokens. Broken
// merges are refused here when they are not two tokens. Tokenizer::Create refuses them when their
// parts or result are not in the vocabulary.
StatusOr<TokenizerSpec> TokenizerSpecFromFolder(const FolderTokenizerFiles& files,
                                                size_t vocab_size);

// Reads the files of the folder `path` and calls TokenizerSpecFromFolder (gemma 3: about a second).
// NotFound without a tokenizer.json; InvalidArgument for a file that is empty, above its limit or
// no regular file.
StatusOr<TokenizerSpec> LoadFolderTokenizer(const std::string& path, size_t vocab_size);

}  // namespace baton::text

#endif  // BATON_TEXT_FOLDER_TOKENIZER_H_
