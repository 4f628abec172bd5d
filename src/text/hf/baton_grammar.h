// C ABI of the Rust library baton_text: grammars that an answer must follow, over the crate
// llguidance. Only src/text/grammar.cc and the tests include it; everything else uses grammar.h.
//
// The rules of baton_text.h hold, and its version covers this file. Besides:
//
// 1. Vocabularies and grammars are immutable and may be used by several threads at once. Each
//    object keeps what it was made from alive, so they may be freed in any order.
// 2. A state belongs to one thread at a time. It is a pure function of its grammar and of the
//    tokens it took: a new state that takes the same tokens gives the same masks.
// 3. Work is bounded: a step that would go past the limits of grammar/vocabulary.rs is
//    BATON_TEXT_LIMIT, and the state stays as it was.
#ifndef BATON_TEXT_HF_BATON_GRAMMAR_H_
#define BATON_TEXT_HF_BATON_GRAMMAR_H_

#include "src/text/hf/baton_text.h"

#ifdef __cplusplus
extern "C" {
#endif

// The kinds of text that can be compiled.
enum baton_grammar_kind {
  BATON_GRAMMAR_JSON_OBJECT = 0,    // any JSON object; the text is empty
  BATON_GRAMMAR_SCHEMA_STRICT = 1,  // a JSON Schema; what cannot be enforced is refused
  BATON_GRAMMAR_SCHEMA_LOOSE = 2,   // a JSON Schema; what cannot be enforced is dropped, listed
  BATON_GRAMMAR_REGEX = 3,          // a regular expression that the whole answer matches
  BATON_GRAMMAR_CHOICE = 4,         // a JSON array of texts, one of which is the answer
  BATON_GRAMMAR_LARK = 5,           // llguidance's form of Lark, or GBNF ("::=" in its first rule)
  // {"structures": [...], "triggers": [...]} as vLLM has it, or xgrammar's {"format": {...}}; its
  // schemas are loose.
  BATON_GRAMMAR_STRUCTURAL_TAG = 6,
};

// The tokens of a model. Token i has the bytes [token_ends[i-1], token_ends[i]) (0 for the first);
// a control or unknown token has none, and no answer holds it.
typedef struct {
  baton_text_slice token_bytes;
  const uint32_t* token_ends;  // [num_tokens], ascending
  size_t num_tokens;
  const uint32_t* end_ids;  // [num_end_ids], one at least: tokens that end a generation
  size_t num_end_ids;
} baton_grammar_vocabulary_spec;

// Limits of one compilation; beyond one the call gives BATON_TEXT_LIMIT.
typedef struct {
  uint64_t max_text_bytes;
  uint64_t max_values;        // JSON values of a schema or a choice
  uint64_t max_enum_values;   // values of all enums, texts of a choice
  uint64_t max_refs;          // different targets of $ref
  uint64_t max_depth;         // nesting of schemas
  uint64_t max_memory_bytes;  // held at once
  uint64_t timeout_ms;        // processor time
} baton_grammar_limits;

// Bytes that all grammars of a vocabulary have now, those included that only states hold.
typedef struct {
  uint64_t mask_bytes;   // of masks that lexers keep; 256 MiB at most
  uint64_t lexer_bytes;  // of states that lexers have made
} baton_grammar_memory;

typedef struct baton_grammar_vocabulary baton_grammar_vocabulary;
typedef struct baton_grammar baton_grammar;
typedef struct baton_grammar_state baton_grammar_state;

int32_t baton_grammar_vocabulary_create(const baton_grammar_vocabulary_spec* spec,
                                        baton_grammar_vocabulary** out, baton_text_buffer* error);
// Never waits for a compilation or a step. 0 of both for null.
baton_grammar_memory baton_grammar_vocabulary_memory(const baton_grammar_vocabulary* vocabulary);
void baton_grammar_vocabulary_free(baton_grammar_vocabulary* vocabulary);

// Compiles `text`; the error begins with the place of a schema's fault, as "#/properties/a/type".
int32_t baton_grammar_compile(const baton_grammar_vocabulary* vocabulary, uint32_t kind,
                              baton_text_slice text, const baton_grammar_limits* limits,
                              baton_grammar** out, baton_text_buffer* error);
// The places of a loose schema's keywords that are not enforced, one a line; often empty.
int32_t baton_grammar_ignored(const baton_grammar* grammar, baton_text_buffer* out,
                              baton_text_buffer* error);
void baton_grammar_free(baton_grammar* grammar);

int32_t baton_grammar_state_create(const baton_grammar* grammar, baton_grammar_state** out,
                                   baton_text_buffer* error);
// Takes tokens from the front of `ids` while the grammar allows them; `out` is how many. A token
// that ends a generation is allowed where the text is whole, and stops the state.
int32_t baton_grammar_state_accept(baton_grammar_state* state, const uint32_t* ids, size_t num_ids,
                                   size_t* out, baton_text_buffer* error);
// Writes bit i % 32 of words[i / 32] for each token i: 1 = may come next. Words past the vocabulary
// become 0. A stopped state allows the tokens that end a generation only. BATON_TEXT_LIMIT also
// when no token of the vocabulary can follow.
int32_t baton_grammar_state_mask(baton_grammar_state* state, uint32_t* words, size_t num_words,
                                 baton_text_buffer* error);
void baton_grammar_state_free(baton_grammar_state* state);

#ifdef __cplusplus
}
#endif

#endif  // BATON_TEXT_HF_BATON_GRAMMAR_H_
