#include "src/text/grammar.h"

#include "src/text/hf/baton_grammar.h"
#include "src/text/hf_bytes.h"

namespace baton::text {
namespace {

static_assert(sizeof(TokenId) == sizeof(uint32_t));

const uint32_t* IdsOf(std::span<const TokenId> tokens) {
  return reinterpret_cast<const uint32_t*>(tokens.data());
}

std::vector<std::string> LinesOf(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

}  // namespace

StatusOr<GrammarVocabulary> GrammarVocabulary::Create(const Tokenizer& tokenizer) {
  hf::CheckVersion();
  std::string bytes;
  std::vector<uint32_t> ends;
  ends.reserve(tokenizer.vocab_size());
  for (size_t i = 0; i < tokenizer.vocab_size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (!tokenizer.IsSpecial(id)) bytes += tokenizer.TokenBytes(id);
    ends.push_back(static_cast<uint32_t>(bytes.size()));
  }
  baton_grammar_vocabulary_spec spec = {};
  spec.token_bytes = hf::SliceOf(bytes);
  spec.token_ends = ends.data();
  spec.num_tokens = ends.size();
  spec.end_ids = IdsOf(tokenizer.eog_ids());
  spec.num_end_ids = tokenizer.eog_ids().size();

  baton_grammar_vocabulary* handle = nullptr;
  hf::OwnedBytes error;
  const int32_t code = baton_grammar_vocabulary_create(&spec, &handle, error.out());
  BATON_RETURN_IF_ERROR(hf::StatusOf(code, error));
  GrammarVocabulary vocabulary;
  vocabulary.handle_.reset(handle, baton_grammar_vocabulary_free);
  vocabulary.vocab_size_ = tokenizer.vocab_size();
  return vocabulary;
}

GrammarMemory GrammarVocabulary::memory() const {
  const baton_grammar_memory now = baton_grammar_vocabulary_memory(handle_.get());
  return {now.mask_bytes, now.lexer_bytes};
}

StatusOr<Grammar> Grammar::Compile(const GrammarVocabulary& vocabulary, wire::GrammarKind kind,
                                   std::string_view text, const GrammarLimits& limits) {
  baton_grammar_limits c_limits = {};
  c_limits.max_text_bytes = limits.max_text_bytes;
  c_limits.max_values = limits.max_values;
  c_limits.max_enum_values = limits.max_enum_values;
  c_limits.max_refs = limits.max_refs;
  c_limits.max_depth = limits.max_depth;
  c_limits.max_memory_bytes = limits.max_memory_bytes;
  c_limits.timeout_ms = limits.timeout_ms;

  baton_grammar* handle = nullptr;
  hf::OwnedBytes error;
  const int32_t code = baton_grammar_compile(vocabulary.handle_.get(), static_cast<uint32_t>(kind),
                                             hf::SliceOf(text), &c_limits, &handle, error.out());
  BATON_RETURN_IF_ERROR(hf::StatusOf(code, error));
  Grammar grammar;
  grammar.handle_.reset(handle, baton_grammar_free);
  hf::OwnedBytes ignored;
  const int32_t listed = baton_grammar_ignored(handle, ignored.out(), error.out());
  BATON_RETURN_IF_ERROR(hf::StatusOf(listed, error));
  grammar.ignored_ = LinesOf(ignored.view());
  return grammar;
}

void GrammarState::Free::operator()(baton_grammar_state* state) const {
  baton_grammar_state_free(state);
}

StatusOr<GrammarState> GrammarState::Create(const Grammar& grammar) {
  baton_grammar_state* handle = nullptr;
  hf::OwnedBytes error;
  const int32_t code = baton_grammar_state_create(grammar.handle_.get(), &handle, error.out());
  BATON_RETURN_IF_ERROR(hf::StatusOf(code, error));
  GrammarState state;
  state.grammar_ = grammar.handle_;
  state.handle_.reset(handle);
  return state;
}

StatusOr<size_t> GrammarState::Accept(std::span<const TokenId> tokens) {
  size_t taken = 0;
  hf::OwnedBytes error;
  const int32_t code =
      baton_grammar_state_accept(handle_.get(), IdsOf(tokens), tokens.size(), &taken, error.out());
  BATON_RETURN_IF_ERROR(hf::StatusOf(code, error));
  return taken;
}

Status GrammarState::FillMask(std::span<uint32_t> words) {
  hf::OwnedBytes error;
  const int32_t code =
      baton_grammar_state_mask(handle_.get(), words.data(), words.size(), error.out());
  return hf::StatusOf(code, error);
}

}  // namespace baton::text
