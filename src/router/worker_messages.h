// The messages of router and workers to each other, as plain values: worker.proto without protobuf.
// So all code but the codec can be tested and simulated without gRPC. Any thread.
#ifndef BATON_ROUTER_WORKER_MESSAGES_H_
#define BATON_ROUTER_WORKER_MESSAGES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/prefix_listener.h"
#include "scheduler/route_policy.h"
#include "src/base/block_state_names.h"
#include "src/base/failed_part.h"
#include "src/base/ids.h"
#include "src/base/span_ids.h"
#include "src/base/worker_role.h"
#include "src/router/generate_request.h"
#include "src/router/lease_id.h"
#include "src/router/submit.h"
#include "src/wire/guess_state.h"
#include "src/wire/prompt.h"
#include "src/wire/sampling_params.h"

namespace baton::router {

// One session of one registration; a lost session is opened again under the next epoch.
struct SessionRef {
  LeaseId lease;
  uint32_t epoch = 0;

  friend bool operator==(const SessionRef&, const SessionRef&) = default;
};

// One life of one worker process.
struct WorkerName {
  std::string worker_id;
  Incarnation incarnation;

  friend bool operator==(const WorkerName&, const WorkerName&) = default;
};

// A worker's hello. Checked by the codec: names, ranges and sizes are valid.
struct WorkerDescription {
  WorkerName name;
  WorkerRole role = WorkerRole::kDecode;
  scheduler::WorkerFingerprint fingerprint;  // hashes of the texts below
  std::string weights_text;                  // weights_id as sent
  std::string layout_text;                   // readable layout, for refusals
  std::string numerics_id_text;              // numerics_id as sent
  std::string numerics_text;                 // its readable parts
  std::string grpc_address;
  std::string admin_address;
  std::string kv_address;
  std::string kv_unix;
  std::string host_id;
  uint32_t pid = 0;
  uint32_t max_context = 0;         // tokens of a sequence, prompt and answer together
  uint32_t block_size = 16;         // tokens of a KV block
  uint64_t kv_bytes_per_token = 0;  // of all layers
  uint32_t num_blocks = 0;          // of its pool
  uint32_t state_blocks = 0;        // of each sequence, beside those of its tokens
  uint32_t window_blocks = 0;       // that its tokens take there at most; 0 = all
  uint32_t max_running = 0;         // sequences that decode in one step
  uint64_t core_budget = 0;         // of its host, that lends cores; 0 = it has its own cores
  uint32_t home_cores = 0;          // with core_budget: its part while all compute
  uint64_t chain_check = 0;         // of its prefix cache's key; 0 = it has no prefix cache
  uint32_t grammar_version = 0;     // of its grammar engine; 0 = it constrains no answers
  bool logs_prompts = false;        // it gives log-probabilities of prompts
  uint32_t embedding_size = 0;  // elements of the vector that it gives a text; 0 = it gives none
  std::vector<LinkKind> transports;
  // The model it serves; the tokenizer was parsed from the hello, or is the one of an earlier
  // worker with the same tokenizer_id.
  std::shared_ptr<const ModelInfo> model;

  // A sequence's state takes as much memory, and as long to cross, as KV of so many tokens.
  uint64_t state_tokens() const { return uint64_t{state_blocks} * block_size; }
  // Blocks that a sequence holds there at most, where its tokens fill so many.
  uint32_t HeldBlocks(uint32_t num) const {
    return window_blocks > 0 ? std::min(num, window_blocks) : num;
  }
};

// A worker's heartbeat.
struct WorkerLoadReport {
  bool ready = false;           // a request would be served now
  bool draining = false;        // no new requests
  uint32_t running = 0;         // sequences that decode, or are ready to
  uint32_t waiting = 0;         // prompts that wait or are computed
  uint64_t backlog_tokens = 0;  // prompt tokens accepted and not yet computed
  uint32_t num_blocks = 0;      // of the pool
  std::array<uint32_t, kBlockStateNames.size()> blocks = {};
  float prefill_tokens_per_s = 0;  // measured; 0 = unknown
  uint32_t step_us = 0;            // average of a decode step; 0 = unknown
  uint32_t batch_limit = 0;        // streams beyond which more add no throughput; 0 = not told
  std::vector<LinkView> links;     // data connections that this worker dialled
  uint64_t sequence_number = 0;    // of this report within the lease stream, from 1
};

// PrefixEvents of worker.proto: changes in order, the first of them numbered first_sequence.
struct PrefixBatch {
  uint64_t first_sequence = 0;
  bool reset = false;  // forget what was known before
  std::vector<kv::PrefixChange> changes;
};

// The tenant of shadows and probes: what they compute and what clients had computed never meet in a
// prefix cache.
inline constexpr std::string_view kShadowTenant = "shadow";

// A request as both workers get it.
struct PlacementSpec {
  RequestUid uid;
  uint32_t attempt = 1;
  uint32_t num_choices = 1;
  uint32_t deadline_ms = 0;                        // left
  const wire::Prompt* prompt = nullptr;            // owned by the request; valid during the call
  std::span<const TokenId> replayed;               // output known so far; only with one choice
  const wire::SamplingParams* sampling = nullptr;  // owned and valid like `prompt`
  std::string_view tenant = kv::kDefaultTenant;    // salts the hash chain
  bool is_cacheable = true;                        // the KV is for the decode worker's prefix cache
  int32_t priority = 0;                            // of the request, among those that wait
  bool reports_progress = false;                   // the worker tells how far the prompt is
  SpanIds trace;                                   // the request's span; not valid = no spans of it
};

// How far a worker is with a prompt.
struct WorkerProgress {
  uint32_t num_tokens = 0;  // with KV, replayed output included; 0 = not told
  uint32_t num_cached = 0;  // of them, found in the prefix cache
  int64_t elapsed_us = 0;   // since it began with the prompt
};

// A token from a worker.
struct WorkerToken {
  RequestUid uid;
  uint32_t attempt = 0;
  uint32_t choice = 0;
  uint32_t index = 0;
  TokenId token = 0;
  bool has_logprob = false;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top_logprobs;
  scheduler::FinishReason finish = scheduler::FinishReason::kNone;
  uint32_t step_us = 0;       // of the step that gave it; 0 = not told
  uint32_t prompt_pos = 0;    // not 0: the prompt's token there, not a sampled one
  uint32_t rank = 0;          // with prompt_pos: 1 + the tokens that were likelier
  WorkerProgress progress;    // num_tokens not 0: this, not a sampled token
  uint32_t num_proposed = 0;  // guesses that its step verified, on the step's first token
  uint32_t step_row = 0;      // above 0: a guess was right that came before it in its step
  wire::GuessState guess_state = wire::GuessState::kOff;  // of the step that gave it
  std::vector<float> embedding;  // not empty: the prompt's vector, not a sampled token
};

// RequestState of worker.proto; the numbers are its numbers.
enum class WorkerRequestState : uint8_t {
  kUnspecified = 0,
  kPrefillStarted = 1,
  kPrefillDone = 2,
  kGranted = 3,
  kHandedOff = 4,
  kReserved = 5,
  kVerified = 6,
  kDecodeStarted = 7,
  kFirstStepDone = 8,
  kFinished = 9,
  kRejected = 10,
  kFailed = 11,
  kCancelled = 12,
  kStranded = 13,
};
inline bool IsTerminal(WorkerRequestState state) {
  return state == WorkerRequestState::kHandedOff ||
         (state >= WorkerRequestState::kFinished && state <= WorkerRequestState::kCancelled);
}

// A change of state of one request at one worker.
struct WorkerRequestStatus {
  RequestUid uid;
  uint32_t attempt = 0;
  WorkerRequestState state = WorkerRequestState::kUnspecified;
  StatusCode code = StatusCode::kOk;  // with kRejected and kFailed
  std::string message;                // for the log; where a grammar ended it, for the client too
  FailedPart failed_part = FailedPart::kNotTold;  // with kFailed, kStranded
  uint64_t kv_bytes = 0;        // with kVerified; with kReserved: that arrived so far
  uint64_t kv_total_bytes = 0;  // with kReserved: that are to come in all; 0 = not told
  LinkKind transport = LinkKind::kUnspecified;
  float transfer_seconds = 0;
  uint32_t retry_after_ms = 0;  // with kRejected for load
  uint32_t cached_tokens = 0;   // with kPrefillStarted and kVerified
  bool retargeted = false;      // with kPrefillStarted
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_MESSAGES_H_
