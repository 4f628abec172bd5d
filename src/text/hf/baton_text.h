// C ABI of the Rust library baton_text: byte-level BPE (crate tokenizers) and chat templates;
// baton_grammar.h has its grammars. Only src/text/hf_bytes.h, hf_library.cc and the tests include
// it; everything else uses the C++ types of src/text.
//
// 1. No function unwinds: a Rust panic comes back as BATON_TEXT_INTERNAL.
// 2. Every pointer and length is checked; a null where data is required is
//    BATON_TEXT_INVALID_ARGUMENT. A slice may be null when its size is 0. Text must be UTF-8.
// 3. Out-buffers are written whole on every path: results only on BATON_TEXT_OK, `error` only on
//    the others (a message without a trailing newline). The caller frees them with the matching
//    _free function, which accepts empty ones, and never writes into them.
// 4. Handles may be used by several threads at once; a handle is freed once, by one thread, when no
//    call on it is running.
#ifndef BATON_TEXT_HF_BATON_TEXT_H_
#define BATON_TEXT_HF_BATON_TEXT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Raised with every change of this file or of baton_grammar.h; the C++ side compares it before the
// first call.
#define BATON_TEXT_ABI_VERSION 8u

// The result code of a call.
enum baton_text_code {
  BATON_TEXT_OK = 0,
  BATON_TEXT_INVALID_ARGUMENT = 1,  // the input is wrong; the message says where
  BATON_TEXT_LIMIT = 2,             // a limit on time, memory, recursion or output was reached
  BATON_TEXT_RAISED = 3,            // the template called raise_exception: the message is its own
  BATON_TEXT_INTERNAL = 4,          // a panic was caught
  BATON_TEXT_BUSY = 5,              // earlier work holds all threads of this kind; try later
};

// Borrowed bytes; valid for the duration of the call.
typedef struct {
  const uint8_t* data;
  size_t size;
} baton_text_slice;

// Bytes owned by the library until baton_text_buffer_free.
typedef struct {
  uint8_t* data;
  size_t size;
  size_t capacity;
} baton_text_buffer;

// Token ids owned by the library until baton_text_ids_free.
typedef struct {
  uint32_t* data;
  size_t size;
  size_t capacity;
} baton_text_ids;

// A byte-level BPE vocabulary. Token i is token_text[token_ends[i-1], token_ends[i]) (0 for the
// first), written in the byte-level alphabet, and has the id token_ids[i]. A merge is two ids; its
// rank is its position.
typedef struct {
  baton_text_slice token_text;
  const uint32_t* token_ends;  // [num_tokens], ascending
  const uint32_t* token_ids;   // [num_tokens], distinct
  size_t num_tokens;
  const uint32_t* merges;  // [num_merges][2]: left id, right id
  size_t num_merges;
  const baton_text_slice* patterns;  // [num_patterns] Oniguruma split rules, applied in order
  size_t num_patterns;
  uint8_t ignore_merges;  // 1: a piece that is a token as a whole is not merged
} baton_text_bpe_spec;

// One rendering: the template's variables and what it may spend.
typedef struct {
  baton_text_slice variables_json;  // a JSON object
  uint64_t fuel;                    // template instructions, [1, 2000000]
  uint64_t max_output_bytes;        // size of the rendered text
  uint64_t max_memory_bytes;        // held at once while rendering
  uint64_t timeout_ms;              // processor time; the wall clock may run 60 times as long
  int64_t now_unix_s;               // what strftime_now sees, when has_now is 1 (UTC)
  uint8_t has_now;                  // 0: strftime_now is undefined
} baton_text_render_request;

typedef struct baton_text_bpe baton_text_bpe;
typedef struct baton_text_template baton_text_template;

uint32_t baton_text_abi_version(void);

// Builds the encoder; costs about a second per million merges.
int32_t baton_text_bpe_create(const baton_text_bpe_spec* spec, baton_text_bpe** out,
                              baton_text_buffer* error);
// Ids of `text`, which is split by the patterns first; no special tokens. A byte whose letter is
// not in the vocabulary yields nothing.
int32_t baton_text_bpe_encode(const baton_text_bpe* bpe, baton_text_slice text, baton_text_ids* out,
                              baton_text_buffer* error);
void baton_text_bpe_free(baton_text_bpe* bpe);

// `text` in Unicode normalisation form C.
int32_t baton_text_compose(baton_text_slice text, baton_text_buffer* out, baton_text_buffer* error);
// 1 if `character` (a code point) is part of a word (\w of the crate regex), else 0.
uint8_t baton_text_is_word(uint32_t character);

// Compiles a Jinja template of at most 256 KiB.
int32_t baton_text_template_create(baton_text_slice source, baton_text_template** out,
                                   baton_text_buffer* error);
int32_t baton_text_template_render(const baton_text_template* chat_template,
                                   const baton_text_render_request* request, baton_text_buffer* out,
                                   baton_text_buffer* error);
// How the template takes the content of a message: 0 = as a text, 1 = as a text or as a list of
// parts, 2 = as a list of parts only. Found by reading the source, not by rendering.
uint8_t baton_text_template_parts_use(const baton_text_template* chat_template);
// 1 if an expression of the template reads a variable of that name, else 0. Found by reading.
uint8_t baton_text_template_reads(const baton_text_template* chat_template,
                                  baton_text_slice variable);
void baton_text_template_free(baton_text_template* chat_template);

void baton_text_buffer_free(baton_text_buffer* buffer);
void baton_text_ids_free(baton_text_ids* ids);

#ifdef __cplusplus
}
#endif

#endif  // BATON_TEXT_HF_BATON_TEXT_H_
