#include "src/text/grammar_cache.h"

#include <algorithm>
#include <iterator>
#include <memory>
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
  if (!vocabulary_.has_value()) {
    vocabulary_.emplace(Build(source_));
    if (vocabulary_->ok()) built_.store(&**vocabulary_);
  }
  if (!vocabulary_->ok()) {
    return FailedPrecondition("answers of this model cannot be constrained: {}",
                              std::string(vocabulary_->status().message()));
  }
  return &**vocabulary_;
}

StatusOr<Grammar> GrammarCache::Compile(GrammarKind kind, std::string_view text) {
  MutexLock lock(mutex_);
  if (std::optional<Grammar> found = Find(kind, text)) {
    lock.Unlock();
    Trim();
    return *std::move(found);
  }
  const auto same = std::find_if(flights_.begin(), flights_.end(), [&](const auto& flight) {
    return flight->kind == kind && flight->text == text;
  });
  if (same != flights_.end()) {
    const std::shared_ptr<Flight> other = *same;
    while (!other->result.has_value()) landed_.Wait(mutex_);
    return *other->result;
  }
  const auto mine = std::make_shared<Flight>(Flight{.kind = kind, .text = std::string(text)});
  flights_.push_back(mine);
  ++num_compilations_;
  lock.Unlock();
  StatusOr<Grammar> grammar = CompileAlone(kind, text);
  // Kept before the flight is gone: no third thread finds neither.
  if (grammar.ok()) Keep(kind, text, *grammar);
  lock.Lock();
  mine->result = grammar;
  flights_.remove(mine);
  lock.Unlock();
  landed_.NotifyAll();
  return grammar;
}

StatusOr<Grammar> GrammarCache::CompileAlone(GrammarKind kind, std::string_view text) {
  BATON_ASSIGN_OR_RETURN(const Vocabulary* const vocabulary, GetVocabulary());
  return Grammar::Compile(vocabulary->tokens, kind, text);
}

GrammarMemory GrammarCache::memory() const {
  const Vocabulary* const built = built_.load();
  return built == nullptr ? GrammarMemory{} : built->tokens.memory();
}

size_t GrammarCache::num_grammars() {
  MutexLock lock(mutex_);
  return kept_.size();
}

uint64_t GrammarCache::num_compilations() {
  MutexLock lock(mutex_);
  return num_compilations_;
}

std::optional<Grammar> GrammarCache::Find(GrammarKind kind, std::string_view text) {
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
  kept_.push_front({kind, std::string(text), grammar});
  text_bytes_ += text.size();
  while (kept_.size() > 1 && (kept_.size() > kMaxGrammars || text_bytes_ > kMaxTextBytes)) {
    dropped.splice(dropped.begin(), Take(std::prev(kept_.end())));
  }
  lock.Unlock();
  Trim();
}

std::list<GrammarCache::Entry> GrammarCache::Take(std::list<Entry>::iterator entry) {
  std::list<Entry> taken;
  text_bytes_ -= entry->text.size();
  taken.splice(taken.begin(), kept_, entry);
  return taken;
}

std::list<GrammarCache::Entry> GrammarCache::TakeOldestUnused() {
  if (kept_.empty()) return {};
  for (auto entry = std::prev(kept_.end()); entry != kept_.begin(); --entry) {
    if (!entry->grammar.is_shared()) return Take(entry);
  }
  return {};
}

void GrammarCache::Trim() {
  while (memory().total() > max_bytes_) {
    std::list<Entry> oldest;  // freed without the lock
    MutexLock lock(mutex_);
    oldest = TakeOldestUnused();
    lock.Unlock();
    if (oldest.empty()) return;
  }
}

}  // namespace baton::text
