#include "src/worker/model_text.h"

#include "src/model/tokenizer_metadata.h"

namespace baton {

StatusOr<TokenizerSpec> TokenizerSpecOf(const GgufFile& file) {
  BATON_ASSIGN_OR_RETURN(const TokenizerMetadata metadata, ReadTokenizerMetadata(file));
  TokenizerSpec spec;
  spec.model = metadata.model;
  spec.pre = metadata.pre;
  spec.tokens.assign(metadata.tokens.begin(), metadata.tokens.end());
  spec.scores = metadata.scores;
  spec.token_types.reserve(metadata.token_types.size());
  for (const GgufTokenType type : metadata.token_types) {
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
  spec.chat_template = metadata.chat_template;
  for (const NamedTemplate& named : metadata.named_templates) {
    spec.named_templates.push_back(
        {.name = std::string(named.name), .source = std::string(named.text)});
  }
  return spec;
}

}  // namespace baton
