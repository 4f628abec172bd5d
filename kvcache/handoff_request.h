// HandoffRequest: the router's side of hand-offs. It follows one request from its receipt to its
// one terminal event, over all its placements. Pure and copyable. The router's thread.
//
// States (kvcache/HANDOFF.md, "Router states"):
//   received      not validated yet
//   queued        waits for a placement, in order of arrival
//   placing       a placement's workers were told; nothing is heard of them yet
//   reserved      blocks are reserved      }
//   prefilling    the prompt is computed   } overlap: the furthest shows
//   transferring  KV crosses               }
//   decoding      all KV of the prompt is at the decode worker; the prefill worker is not needed
//   recover       the placement is lost; waits for the next one before all that are queued
//   done, failed, cancelled   the client was told
// The table in handoff_request.cc (printed by RequestTableText) is the whole behaviour; an event
// that it does not list in a state changes nothing and gives no orders.
//
// When a placement is lost, the tokens that are known are *replayed output*. They are part of the
// next placement's input, never of what the client sees again.
//
// Invariants
//  1. tell_client is ordered exactly once, by the event that leads to done, failed or cancelled.
//  2. The attempt rises by one at every placement, and by one more for each number that was skipped
//     before it. Events of another attempt, or while nothing is placed, are void and counted.
//  3. When a placement ends for any reason release_workers is ordered in the same call.
//  4. Three faults, or two deaths of workers, with no new token between end the request (the
//     latter as poison). Moves, preemptions, refusals for load and faults of links do not count.
//     Deaths that the router does not blame on the request do not count either (the death of a
//     worker that had not begun with it). After two faults of links in a row the next placement
//     needs no link (needs_no_link).
//  5. The loss of the prefill worker after the decode worker has all KV is no fault.
#ifndef BATON_KVCACHE_HANDOFF_REQUEST_H_
#define BATON_KVCACHE_HANDOFF_REQUEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace baton::kv {

enum class HandoffRequestState : uint8_t {
  kReceived = 0,
  kQueued = 1,
  kPlacing = 2,
  kReserved = 3,
  kPrefilling = 4,
  kTransferring = 5,
  kDecoding = 6,
  kRecover = 7,
  kDone = 8,
  kFailed = 9,
  kCancelled = 10,
};
inline constexpr size_t kNumHandoffRequestStates = 11;
std::string_view HandoffRequestStateName(HandoffRequestState state);

// How far a placement is, as its workers tell.
enum class PlacementProgress : uint8_t { kReserved, kPrefilling, kTransferring, kAllKvAtDecode };

// Why a placement is lost.
enum class PlacementFault : uint8_t {
  kPrefillDied,     // the worker's process is gone: end of its session or lease, no heartbeat
  kDecodeDied,      // the decode worker's
  kPrefillStalled,  // the prefill worker shows no progress within its limit
  kDecodeStalled,
  kPrefillFailed,    // the worker ended it: its hand-off failed, or it does not say what did
  kDecodeFailed,     // the decode worker did
  kPrefillBroken,    // the worker ended the request: its computation failed, as on a healthy link
  kDecodeBroken,     // the decode worker did
  kTransferStopped,  // prefill kept its blocks, decode is lost (HandoffActionKind::kStranded)
  kTokensMissing,    // both streams are over and a token is not here
  kLinkSlow,         // the KV would come later than by another way
  kMoved,            // the decode worker drains: planned
  kPrefillLeft,      // the prefill worker drains and did not wait for the prompt's end: planned
  // Their process ended before it had begun with the request, which cannot be the reason.
  kPrefillGone,
  kDecodeGone,
};
// A worker's process ended; two of them make a request poison.
constexpr bool IsDeath(PlacementFault fault) { return fault <= PlacementFault::kDecodeDied; }
// The KV did not get from the prefill worker to the decode worker. This holds only while the decode
// worker has not all of it: later the same words tell of a worker.
constexpr bool IsOfLink(PlacementFault fault) {
  return fault == PlacementFault::kPrefillFailed || fault == PlacementFault::kDecodeFailed ||
         fault == PlacementFault::kTransferStopped || fault == PlacementFault::kLinkSlow;
}
// Not counted: planned, or somebody else's; only a reason to place the request again.
constexpr bool IsPlanned(PlacementFault fault) { return fault >= PlacementFault::kMoved; }
// The prefill worker has lost what it computed.
constexpr bool LosesPrefill(PlacementFault fault) {
  return fault == PlacementFault::kPrefillDied || fault == PlacementFault::kPrefillStalled ||
         fault == PlacementFault::kPrefillFailed || fault == PlacementFault::kPrefillBroken ||
         fault == PlacementFault::kPrefillLeft || fault == PlacementFault::kPrefillGone;
}

// How often a request is placed again without progress; kvcache/HANDOFF.md, "Recovery".
struct RequestLimits {
  uint32_t max_faults = 3;  // this one ends it
  uint32_t max_deaths = 2;
  uint32_t max_link_faults = 2;  // after this one the decode worker computes the prompt itself

  friend bool operator==(const RequestLimits&, const RequestLimits&) = default;
};

// The router's orders after an event.
struct RequestOrders {
  bool release_workers = false;  // cancel at each worker what it may still hold of the placement
  bool enqueue = false;          // wait for the next placement
  bool in_front = false;         // before all requests that wait
  bool tell_client = false;      // the terminal event

  friend bool operator==(const RequestOrders&, const RequestOrders&) = default;
};

// The decision about a request whose placement is lost.
struct RecoverDecision {
  enum class Kind : uint8_t {
    kIgnored,   // stale, or the prefill worker when nobody needs it any more: the placement goes on
    kRecover,   // place it again
    kFailed,    // too many faults in a row
    kPoisoned,  // it may be what kills workers: log its uid
  };
  Kind kind = Kind::kIgnored;
  RequestOrders orders;
  // The prefill worker may still hold the prompt's sealed blocks. So cancel the decode worker only,
  // and try to place the request at the same prefill worker, which sends them to another decode
  // worker (Retarget). Cancel the prefill worker when another place is chosen.
  bool retarget = false;
  uint32_t num_replayed = 0;  // known tokens, over all choices: input of the next placement

  friend bool operator==(const RecoverDecision&, const RecoverDecision&) = default;
};

// See the file comment.
class HandoffRequest {
 public:
  HandoffRequest() = default;
  explicit HandoffRequest(const RequestLimits& limits) : limits_(limits) {}

  RequestOrders OnValidated();
  // The next attempt's workers are chosen; its number, 0 when the request does not wait for one.
  // `local`: the decode worker computes the prompt itself.
  uint32_t OnPlaced(bool local);
  RequestOrders OnProgress(uint32_t attempt, PlacementProgress progress);
  // A worker had no room, before any token was shown: no fault.
  RecoverDecision OnRefused(uint32_t attempt, bool by_decode);
  // `num_known_tokens`: of all choices, so far.
  RecoverDecision OnFault(uint32_t attempt, PlacementFault fault, uint32_t num_known_tokens);
  // The ends, of which the first counts. The last token of every choice is known:
  RequestOrders OnDone();
  // An error that no placement mends (invalid, too large, deadline).
  RequestOrders OnFailed();
  // The client left or cancelled.
  RequestOrders OnCancelled();

  HandoffRequestState state() const { return state_; }
  uint32_t attempt() const { return attempt_; }  // of the last placement, 0 = none yet
  // The number that the next placement will have.
  uint32_t next_attempt() const { return attempt_ + 1 + num_skipped_; }
  // A worker was told next_attempt() for a placement that does not come about: no other has it.
  void SkipAttempt() { ++num_skipped_; }
  bool placed() const;
  bool finished() const { return state_ >= HandoffRequestState::kDone; }
  // True of the placement that runs: only its tokens and statuses are visible (others: counted).
  bool Admits(uint32_t attempt);
  uint32_t num_stale() const { return num_stale_; }
  // Faults in a row without a new token.
  uint32_t num_faults() const { return num_faults_; }
  // Faults of links in a row without a new token, at most as many as their limit.
  uint32_t num_link_faults() const { return num_link_faults_; }
  // The next placement is one in which the decode worker computes the prompt itself.
  bool needs_no_link() const { return num_link_faults_ >= limits_.max_link_faults; }

  friend bool operator==(const HandoffRequest&, const HandoffRequest&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const HandoffRequest& r) {
    return H::combine(std::move(state), r.state_, r.attempt_, r.num_skipped_, r.is_local_,
                      r.num_faults_, r.num_deaths_, r.num_link_faults_, r.num_known_);
  }

 private:
  enum class Event : uint8_t;
  enum class Op : uint8_t;
  struct Table;
  friend std::string RequestTableText();
  friend std::string RequestDiagramText();

  // Looks the event up in the table, takes the transition and gives its orders.
  RequestOrders Dispatch(Event event);
  // Counts a fault and says which event it is.
  Event JudgeFault(PlacementFault fault, uint32_t num_known_tokens);
  // The prefill worker may be computing, or hold the sealed blocks of, this placement's prompt.
  bool NeedsPrefill() const { return !is_local_ && state_ != HandoffRequestState::kDecoding; }

  RequestLimits limits_;
  HandoffRequestState state_ = HandoffRequestState::kReceived;
  uint32_t attempt_ = 0;
  uint32_t num_skipped_ = 0;  // since attempt_
  bool is_local_ = false;
  uint32_t num_faults_ = 0;
  uint32_t num_deaths_ = 0;  // of num_faults_
  uint32_t num_link_faults_ = 0;
  uint32_t num_known_ = 0;  // tokens at the last fault
  uint32_t num_stale_ = 0;
};

// The transition table as text: one line "state | event | next | operations", as in HANDOFF.md.
std::string RequestTableText();
// Its moves as a Mermaid diagram, as in HANDOFF.md.
std::string RequestDiagramText();

}  // namespace baton::kv

#endif  // BATON_KVCACHE_HANDOFF_REQUEST_H_
