#include "src/text/grammar_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace baton::text {

using wire::GrammarKind;

namespace {

StatusOr<GrammarCache::Vocabulary> Build(const GrammarCache::TokenizerSource& source) {
  GrammarCache::Vocabulary built;
  BATON_ASSIGN_OR_RETURN(built.tokenizer, source());
  BATON_ASSIGN_OR_RETURN(built.tokens, GrammarVocabulary::Create(*built.tokenizer));
  return built;
}

}  // namespace

StatusOr<const GrammarCache::Vocabulary*> GrammarCache::GetVocabulary() {
  MutexLock lock(build_mutex_);
  if (!vocabulary_.has_value()) vocabulary_.emplace(Build(source_));
  if (!vocabulary_->ok()) {
    return FailedPrecondition("answers of this model cannot be constrained: {}",
                              std::string(vocabulary_->status().message()));
  }
  return &**vocabulary_;
}

StatusOr<Grammar> GrammarCache::Compile(GrammarKind kind, std::string_view text) {
  if (std::optional<Grammar> found = Find(kind, text)) return *std::move(found);
  BATON_ASSIGN_OR_RETURN(const Vocabulary* const vocabulary, GetVocabulary());
  BATON_ASSIGN_OR_RETURN(Grammar grammar, Grammar::Compile(vocabulary->tokens, kind, text));
  Keep(kind, text, grammar);
  return grammar;
}

size_t GrammarCache::num_grammars() {
  MutexLock lock(mutex_);
  return kept_.size();
}

std::optional<Grammar> GrammarCache::Find(GrammarKind kind, std::string_view text) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Entry& entry) {
    return entry.kind == kind && entry.text == text;
  });
  if (found == kept_.end()) return std::nullopt;
  kept_.splice(kept_.begin(), kept_, found);
  return found->grammar;
}

void GrammarCache::Keep(GrammarKind kind, std::string_view text, const Grammar& grammar) {
  std::list<Entry> dropped;  // freed without the lock
  MutexLock lock(mutex_);
  const bool is_kept = std::any_of(kept_.begin(), kept_.end(), [&](const Entry& entry) {
    return entry.kind == kind && entry.text == text;
  });
  if (is_kept) return;  // another thread compiled it meanwhile
  kept_.push_front({kind, std::string(text), grammar});
  text_bytes_ += text.size();
  while (kept_.size() > 1 && (kept_.size() > kMaxGrammars || text_bytes_ > kMaxTextBytes)) {
    text_bytes_ -= kept_.back().text.size();
    dropped.splice(dropped.begin(), kept_, std::prev(kept_.end()));
  }
  lock.Unlock();
}

}  // namespace baton::text
