#include "src/worker/model_text.h"

#include <utility>

#include "src/model/model_config.h"        // IWYU pragma: keep
#include "src/model/tokenizer_metadata.h"  // IWYU pragma: keep
#include "src/text/spec_from_metadata.h"
#include "src/text/tokenizer_spec.h"

namespace baton::worker {

using text::EogTokensOf;
using text::ReadModelTokenizer;
using text::Tokenizer;
using text::TokenizerSpec;
using text::TokenizerSpecId;

StatusOr<ModelText> ModelText::Read(const model::GgufFile& file, const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const TokenizerSpec spec, ReadModelTokenizer(file, path));
  ModelText text;
  BATON_ASSIGN_OR_RETURN(text.eog_tokens, EogTokensOf(spec));
  BATON_ASSIGN_OR_RETURN(text.tokenizer, spec.SerializeUpToLimit());
  text.tokenizer_id = TokenizerSpecId(text.tokenizer);
  return text;
}

StatusOr<std::shared_ptr<const Tokenizer>> ModelText::Build() const {
  BATON_ASSIGN_OR_RETURN(const TokenizerSpec spec, TokenizerSpec::Parse(tokenizer));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> built, Tokenizer::Create(spec));
  return std::shared_ptr<const Tokenizer>(std::move(built));
}

}  // namespace baton::worker
