// The values that an engine takes and gives, as plain data without grpc and proto: src/worker
// converts them. Pure values; any thread.
#ifndef BATON_ENGINE_ENGINE_TYPES_H_
#define BATON_ENGINE_ENGINE_TYPES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/handoff_messages.h"
#include "kvcache/transport/transport_types.h"
#include "scheduler/sequence.h"
#include "src/base/failed_part.h"
#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/wire/guess_state.h"
#include "src/wire/sampling_params.h"

namespace baton::engine {

// One stream of one router. The end of the stream cancels all its requests.
using SessionId = StrongInt<struct SessionIdTag, uint64_t>;

// A placement of a request; (uid, attempt) fences older placements.
struct RequestKey {
  RequestUid uid;
  uint32_t attempt = 0;  // >= 1

  friend auto operator<=>(const RequestKey&, const RequestKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const RequestKey& key) {
    return H::combine(std::move(state), key.uid, key.attempt);
  }
};

// The work of a worker for a request.
enum class RequestKind : uint8_t {
  kLocal = 0,   // computes the prompt and decodes
  kSource = 1,  // computes the prompt and hands it to a decode worker
  kDest = 2,    // receives the prompt's KV and decodes
  kEmbed = 3,   // computes the prompt and gives its vector; workers of both roles take it
};

// Everything an engine needs to know of a request. The engine refuses values outside the ranges of
// src/base/limits.h.
struct RequestSpec {
  RequestKey key;
  SessionId session;
  RequestKind kind = RequestKind::kLocal;
  Incarnation peer;                // the other worker of the hand-off; 0 when kLocal
  std::vector<TokenId> tokens;     // prompt, then replayed output (only with one choice)
  uint32_t num_prompt_tokens = 0;  // the first ones of `tokens`, >= 1
  uint32_t num_choices = 1;        // 1..kMaxChoices
  wire::SamplingParams sampling;
  int64_t deadline_us = 0;        // from acceptance, (0, kMaxDeadlineUs]
  std::string tenant;             // salts the hash chain
  bool is_cacheable = true;       // the prefix cache may keep its KV
  int32_t priority = 0;           // among waiting prompts; range: src/base/priority.h
  bool reports_progress = false;  // the client wants to see how far the prompt is
};

// How far a prompt is.
struct PrefillProgress {
  uint32_t num_tokens = 0;  // with KV, replayed output included; 0 = not reported
  uint32_t num_cached = 0;  // of them, found in the prefix cache
  int64_t elapsed_us = 0;   // since its first chunk was planned
};

// One sampled token of one choice.
struct TokenEvent {
  SessionId session;
  RequestKey key;
  uint32_t choice = 0;
  uint32_t index = 0;  // output index, from 0
  TokenId token = 0;
  scheduler::FinishReason finish =
      scheduler::FinishReason::kNone;  // set on the choice's last token
  bool has_logprob = false;
  float logprob = 0;
  // Guesses of the step that gave it; 0 = none, or an earlier token has them.
  uint32_t step_us = 0;
  uint32_t num_proposed = 0;  // guesses that the step verified, with its first token of the choice
  uint32_t step_row = 0;      // above 0: the token follows a right guess of the same step
  wire::GuessState guess_state = wire::GuessState::kOff;  // of the step that gave it
  uint32_t prompt_pos = 0;                     // not 0: the prompt's token there, not a sampled one
  uint32_t rank = 0;                           // with prompt_pos: 1 + the tokens that were likelier
  PrefillProgress progress;                    // num_tokens not 0: this, not a sampled token
  std::span<const TokenLogprob> top_logprobs;  // valid during the listener's call only
  // With kEmbed: no token was sampled; the prompt's vector, valid as above.
  std::span<const float> embedding;
};

// Where a request stands at this worker. A request goes through some of these in this order and
// ends with exactly one terminal state.
enum class RequestState : uint8_t {
  kAccepted = 0,        // never reported
  kReserved = 1,        // decode worker: blocks are reserved
  kPrefillStarted = 2,  // the first chunk is planned
  kPrefillDone = 3,     // token 0 is sampled
  kGranted = 4,         // prefill worker: the decode worker's grant has arrived
  kVerified = 5,        // decode worker: all KV arrived and is verified
  kDecodeStarted = 6,   // the first decode step starts
  kFirstStepDone = 7,   // the first decode step ended
  // Prefill worker: the decode worker is lost; a higher attempt may send the blocks to another one.
  kStranded = 8,
  kHandedOff = 9,   // terminal, prefill worker: the decode worker applied the transfer
  kFinished = 10,   // terminal: all choices are finished
  kRejected = 11,   // terminal: refused before any work
  kFailed = 12,     // terminal
  kCancelled = 13,  // terminal: by the router, or its session's end
};
inline constexpr bool IsTerminal(RequestState state) { return state >= RequestState::kHandedOff; }
std::string_view RequestStateName(RequestState state);

// A change of state of one request.
struct RequestStatus {
  SessionId session;
  RequestKey key;
  RequestState state = RequestState::kAccepted;
  Status status;                                  // why, for stranded, rejected and failed
  FailedPart failed_part = FailedPart::kNotTold;  // with failed and stranded
  // With prefill started and with verified: tokens of the prompt that were not computed again.
  uint32_t cached_tokens = 0;
  bool retargeted = false;      // with prefill started: blocks of an older attempt are sent again
  uint64_t kv_bytes = 0;        // with verified: bytes that crossed
  uint64_t kv_total_bytes = 0;  // with reserved: bytes that are to cross
  kv::TransportKind transport = kv::TransportKind::kAuto;  // with verified
  int64_t transfer_us = 0;      // with verified: from the first slice to the last
  uint32_t retry_after_ms = 0;  // with rejected for load
};

// Receives the tokens and states of an engine. The engine thread calls it and waits, so an
// implementation copies and returns. Token events of a step come before the states that they cause.
class EngineListener {
 public:
  virtual ~EngineListener() = default;
  // The tokens of one step, of all sessions.
  virtual void OnStepEvents(std::span<const TokenEvent> events) = 0;
  virtual void OnRequestStatus(const RequestStatus& status) = 0;
};

// Turns hand-off messages into bytes and back, so that the engine needs no wire format. Any thread.
class HandoffWire {
 public:
  virtual ~HandoffWire() = default;
  virtual std::string Encode(const kv::HandoffMessage& message) const = 0;
  // InvalidArgument naming the field for anything outside the contract; peers are not trusted.
  virtual StatusOr<kv::HandoffMessage> Decode(std::string_view bytes) const = 0;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_TYPES_H_
