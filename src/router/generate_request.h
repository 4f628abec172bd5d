// GenerateRequest: a client's request after validation, the one form in which both APIs hand it to
// the router. Plain values; any thread.
#ifndef BATON_ROUTER_GENERATE_REQUEST_H_
#define BATON_ROUTER_GENERATE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/hash_chain.h"
#include "src/base/ids.h"
#include "src/base/span_ids.h"
#include "src/base/xxh3.h"
#include "src/router/asked_path.h"
#include "src/router/lease_id.h"
#include "src/text/stop_matcher.h"
#include "src/wire/prompt.h"
#include "src/wire/sampling_params.h"

namespace baton::router {

struct ModelInfo;
class TenantKv;

// The client's names for what a request may have too much of; static texts, for errors.
struct RequestFields {
  std::string_view prompt = "prompt";                    // "messages" for a chat
  std::string_view max_tokens = "max_tokens";            // or "max_completion_tokens"
  std::string_view choices = "n";                        // or "best_of"
  std::string_view timeout = "timeout_ms";               // or "grpc-timeout"
  std::string_view grammar = "response_format";          // of sampling.grammar
  std::string_view prompt_logprobs = "prompt_logprobs";  // or "echo"
};

// The names under which an answer goes to its client.
struct AnswerName {
  std::string id;          // "chatcmpl-..." or "cmpl-..."
  std::string request_id;  // as in GenerateRequest
  int64_t created_unix_s = 0;
};

// A client's word that all its requests under one key are one request (keyed_answers.h).
struct IdempotencyKey {
  std::string scope;       // tenant, endpoint and the client's key
  Hash128 fingerprint;     // of all that the client asked for: unequal = another request
  std::string_view field;  // the client's name for the key, for errors; static
  AnswerName name;         // of the answer, should this be the first request under the key
  // The time that the generation has then, 0 = no deadline. A deadline of the client's transport is
  // not in it: when that passes, the client retries, and is to find what was computed.
  int64_t timeout_us = 0;
};

// The workers whose link a probe tries.
struct ProbedLink {
  LeaseId prefill;
  LeaseId decode;
};

// One validated request; see the file comment.
struct GenerateRequest {
  std::string request_id;  // the client's name for it, or one made for it; logs and headers only
  std::string answer_id;   // "chatcmpl-...", as the client is told; "" for none, as of a shadow
  std::shared_ptr<const ModelInfo> model;
  wire::Prompt prompt;  // 1..max_context - 1 tokens
  // The tenant whose prefixes the request shares. It finds in a cache what requests of this tenant
  // computed, and nothing else (TenantOfSalt).
  std::string tenant{kv::kDefaultTenant};
  // Counts what the API key's tenant holds of KV, and has its share; null: there is no such tenant.
  std::shared_ptr<TenantKv> kv;
  wire::SamplingParams sampling;
  uint32_t num_choices = 1;  // 1..128
  AskedPath path = AskedPath::kAuto;
  int32_t priority =
      0;  // among requests that wait, kMinPriority..kMaxPriority (src/base/priority.h)
  RequestFields fields;
  // max_tokens is what the client asked for, not what the context leaves.
  bool names_length = false;
  bool names_seed = false;        // sampling.seed is the client's own
  bool embeds = false;            // the answer is the vector of the prompt: one event, no token
  bool echoes_alone = false;      // the answer is the prompt, without the token that is computed
  bool is_streamed = false;       // the answer goes out token by token
  bool skips_forecast = false;    // waits for room, however long that is predicted to take
  bool reports_progress = false;  // the sink is told how far the prompt is
  text::StopMatcher stop;         // the stop strings, nothing pushed yet
  // Control tokens whose text is a part of the answer, since they mark tool calls; a few.
  std::vector<TokenId> shown_tokens;
  int64_t received_us = 0;  // steady clock, when the first byte of the request was handled
  int64_t timeout_us = 0;   // from received_us, whatever has come by then; 0 = no deadline
  // Set: a shadow (shadow_runs.h), which runs alone on an idle worker of these numerics, makes room
  // for every client and is counted as none.
  std::optional<uint64_t> shadow_numerics_id;
  // Set: a probe (router_core_links.cc), which tries the link of this pair.
  std::optional<ProbedLink> probe;
  SpanIds trace;  // of the client's span that this is a part of; not valid = there is none
  std::shared_ptr<const IdempotencyKey> key;  // null: a request like most, which stands for itself

  // The fewest tokens of each choice that are of use to its client: one of a stream; else all of
  // max_tokens where nothing else ends the answer.
  uint32_t LeastTokens() const;
  // The answer has tokens, which are counted and timed.
  bool has_tokens() const { return !embeds && !echoes_alone; }
  bool is_shadow() const { return shadow_numerics_id.has_value(); }
  bool is_probe() const { return probe.has_value(); }
  // The router's own: it never waits, and counts in nothing that clients notice.
  bool is_own() const { return is_shadow() || is_probe(); }
};

// The tenant of requests with this `cache_salt`: "default" for "", else one that no request without
// this salt has. Workers of every release salt their chains with the tenant that they are told.
std::string TenantOfSalt(std::string_view salt);
// The tenant of requests with an API key: requests of each key's tenant are apart, salted or not.
// `name` "" stands for requests without a key. A name has no blanks.
std::string TenantOfKey(std::string_view name, std::string_view salt);

}  // namespace baton::router

#endif  // BATON_ROUTER_GENERATE_REQUEST_H_
