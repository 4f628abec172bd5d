// The text endpoints of the JSON API: /tokenize and /detokenize in llama-server's form (`content`)
// and in vLLM's (`prompt`, `messages`), and /tokenizer_info. The answer has the form of the
// request. Pure; any thread. A text of megabytes takes long (README.md).
#ifndef BATON_API_TOKENIZE_JSON_H_
#define BATON_API_TOKENIZE_JSON_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/api/json_value.h"
#include "src/api/schema.h"
#include "src/api/stored_items.h"
#include "src/router/request_error.h"
#include "src/router/submit.h"

namespace baton::api {

// One call of a text endpoint.
struct TextCall {
  const router::ModelInfo& model;
  const JsonValue& body;     // an object
  int64_t wall_unix_ms = 0;  // the time that templates which print the date are told
  const StoredItems& items;  // of the tenant: what references of a Responses body name
};

// The answer to it.
struct TextAnswer {
  std::string json;
  std::vector<std::string> ignored;  // fields that nothing read
};

// The fields of their bodies; /tokenize has those that a template reads (TemplateFieldNames)
// besides.
std::span<const SurfaceField> TokenizeFields();
std::span<const SurfaceField> DetokenizeFields();

// Each returns false with `error` set, which names the field.
//
// Exactly one of: `content`, a text, with add_special, parse_special (false) and with_pieces
// (false: ids; true: objects of id and piece, a piece that is no UTF-8 as its bytes); `prompt`, a
// text that is tokenised as /v1/completions does, with add_special_tokens (true) and
// return_token_strs (false); `messages`, the prompt that /v1/chat/completions would make of them
// and of the other fields that a template reads, with return_token_strs.
bool AnswerTokenize(const TextCall& call, TextAnswer* answer, router::RequestError* error);

// `tokens`; the answer has their text under the names of both forms, `content` and `prompt`.
bool AnswerDetokenize(const TextCall& call, TextAnswer* answer, router::RequestError* error);

// Special tokens, sizes and the chat template, under the names of tokenizer_config.json.
std::string TokenizerInfoJson(const router::ModelInfo& model);

}  // namespace baton::api

#endif  // BATON_API_TOKENIZE_JSON_H_
