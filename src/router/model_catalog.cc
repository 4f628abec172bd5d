#include "src/router/model_catalog.h"

#include <utility>

#include "src/base/log.h"
#include "src/text/chat_template.h"
#include "src/text/tokenizer.h"

namespace baton {

StatusOr<ModelCatalog::TextParts> ModelCatalog::Build(const ModelClaim& claim) {
  BATON_ASSIGN_OR_RETURN(TokenizerSpec spec, TokenizerSpec::Parse(claim.tokenizer));
  if (const uint64_t id = TokenizerSpecId(spec); id != claim.tokenizer_id) {
    return InvalidArgument("tokenizer_id is {:016x}, but the tokenizer sent has {:016x}",
                           claim.tokenizer_id, id);
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Create(spec));
  TextParts parts;
  if (!spec.chat_template.empty()) {
    StatusOr<ChatTemplate> chat_template = ChatTemplate::CreateFor(spec, *tokenizer);
    if (chat_template.ok()) {
      parts.chat_template = std::make_shared<const ChatTemplate>(*std::move(chat_template));
    } else {
      // The model can still complete texts; each chat request will be told.
      parts.has_broken_template = true;
      BATON_LOG_ERROR("model {}: no chat, its chat template is broken: {}", claim.id,
                      std::string(chat_template.status().message()));
    }
  }
  parts.tokenizer = std::move(tokenizer);
  return parts;
}

StatusOr<std::shared_ptr<const ModelInfo>> ModelCatalog::Resolve(const ModelClaim& claim) {
  std::shared_ptr<const TextParts> parts;
  {
    std::lock_guard lock(mutex_);
    const auto it = parts_.find(claim.tokenizer_id);
    if (it != parts_.end()) parts = it->second.lock();
  }
  if (parts == nullptr) {
    BATON_ASSIGN_OR_RETURN(TextParts built, Build(claim));
    parts = std::make_shared<const TextParts>(std::move(built));
    std::lock_guard lock(mutex_);
    parts_[claim.tokenizer_id] = parts;
  }
  if (parts->tokenizer->vocab_size() != claim.vocab_size) {
    return InvalidArgument("vocab_size is {}, but the tokenizer has {} tokens", claim.vocab_size,
                           parts->tokenizer->vocab_size());
  }
  auto info = std::make_shared<ModelInfo>();
  info->id = claim.id;
  info->created_unix_s = claim.loaded_unix_s;
  info->max_context = claim.max_context;
  info->vocab_size = claim.vocab_size;
  // Aliases of `parts`: whoever holds one of the two keeps the entry of parts_ alive.
  info->tokenizer = std::shared_ptr<const Tokenizer>(parts, parts->tokenizer.get());
  if (parts->chat_template != nullptr) {
    info->chat_template = std::shared_ptr<const ChatTemplate>(parts, parts->chat_template.get());
  }
  info->has_broken_template = parts->has_broken_template;
  return std::shared_ptr<const ModelInfo>(std::move(info));
}

}  // namespace baton
