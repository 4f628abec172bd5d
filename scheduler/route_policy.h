// Route policy: which prefill worker and which decode worker serve a request, from a snapshot of
// their loads. Pure: the tie-break is a random number given by the caller. Any thread.
//
// The prefill worker is chosen among ready workers that are compatible with the decode worker and
// connected to it. The predicted end of the prompt decides: the work that waits there, plus the
// longer of two times. One is to compute what the prefill worker's prefix cache lacks of the
// prompt. The other is to send what the decode worker's cache lacks over the link.
//
// The decode worker is chosen among ready workers. Workers with the numerics of a stream's output
// come before all others, whether they have room or not. Then free KV after this request decides,
// then running sequences. A worker may hold more of the prompt, or its KV may reach it sooner. Such
// a worker comes first only while it is about as loaded (kMax.. below, by the share of the prompt
// that this saves). A prefix that everybody uses then does not pull every request to one worker,
// and a short one pulls hardly any. KV that a pair's decode worker holds need not cross. Where
// sequences have states it may hold more than it can go on from by itself.
//
// The decode worker computes the prompt itself when few of its tokens are to be computed there, or
// when no prefill worker can serve it. Where both paths are compared, it also does so when that is
// predicted to cost clients less (path_choice.h). The answer says why.
#ifndef BATON_SCHEDULER_ROUTE_POLICY_H_
#define BATON_SCHEDULER_ROUTE_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace baton::scheduler {

// The properties that decide whether two workers may exchange KV; ids are compared, never
// interpreted.
struct WorkerFingerprint {
  uint32_t wire_min = 1;
  uint32_t wire_max = 1;
  uint64_t layout_id = 0;
  uint64_t weights_id = 0;  // a hash of the text id
  uint64_t tokenizer_id = 0;
  uint64_t numerics_id = 0;  // a hash of the text id
  bool allow_inexact = false;
  bool varies_with_batch = false;  // its bits depend on how a prompt is cut into steps

  friend bool operator==(const WorkerFingerprint&, const WorkerFingerprint&) = default;
};

// Whether, and how, a pair may work together.
enum class Pairing : uint8_t {
  kExact = 0,        // same bits as one process
  kInexact = 1,      // other numerics; both sides allow it
  kOtherWire = 2,    // no common version of the wire
  kOtherLayout = 3,  // blocks have other bytes
  kOtherWeights = 4,
  kOtherTokenizer = 5,
  kOtherNumerics = 6,  // and at least one side insists on exact answers
};
// The first difference in the order of the values from kOtherWire on. Where numerics alone differ:
// kInexact when both sides allow it, else kOtherNumerics.
Pairing PairingOf(const WorkerFingerprint& prefill, const WorkerFingerprint& decode);
inline bool IsPaired(Pairing pairing) {
  return pairing == Pairing::kExact || pairing == Pairing::kInexact;
}

// Cores of a host that its workers lend each other. A worker without a step to compute leaves its
// own to the others. While all compute, each has its own part.
struct SharedCores {
  uint64_t id = 0;        // equal = the same cores; 0 = the worker's cores are its own
  uint32_t num_home = 0;  // of this worker, > 0 with an id
};

// One prefill worker as last reported.
struct PrefillLoad {
  bool ready = false;  // connected and not draining
  WorkerFingerprint fingerprint;
  double backlog_s = 0;          // predicted seconds to compute what it has accepted
  uint32_t num_waiting = 0;      // requests, the one in work included
  uint32_t num_free_blocks = 0;  // free and cached
  uint32_t num_blocks = 0;
  uint32_t block_size = 16;
  uint32_t state_blocks = 0;          // of each sequence, beside those of its tokens
  double tokens_per_s = 500;          // prefill speed, > 0
  uint32_t cached_tokens = 0;         // of this prompt's beginning, in its prefix cache
  uint32_t shared_blocks = 0;         // of those, in use by other requests: they cost no free block
  uint32_t num_slots = UINT32_MAX;    // more requests that may be sent there
  uint32_t max_context = UINT32_MAX;  // tokens of a sequence
  SharedCores cores;
};

// One decode worker as last reported. Members without a comment are as in PrefillLoad.
struct DecodeLoad {
  bool ready = false;
  WorkerFingerprint fingerprint;
  double backlog_s = 0;      // predicted seconds for the prompts that it computes itself
  uint32_t num_running = 0;  // sequences, those that were sent and have not begun included
  uint32_t num_waiting = 0;
  uint32_t num_free_blocks = 0;
  uint32_t num_blocks = 0;
  uint32_t block_size = 16;
  uint32_t state_blocks = 0;
  uint32_t window_blocks = 0;  // that a sequence's tokens take at most; 0 = all of its blocks
  double tokens_per_s = 500;
  uint32_t cached_tokens = 0;  // of this prompt's beginning, that it can go on from
  uint32_t held_tokens = 0;    // whose KV need not cross to it; no less than cached_tokens counts
  uint32_t shared_blocks = 0;  // of cached_tokens, in use by other requests
  uint32_t held_shared_blocks = 0;    // of held_tokens, in use by others: a pair need not take them
  uint32_t num_slots = UINT32_MAX;    // more sequences that may be sent there
  uint32_t max_context = UINT32_MAX;  // tokens of a sequence, which ends there
  // More streams that may begin there: beyond, they add no throughput (batch_limit.h). A request of
  // more than `most_new` choices needs no more than that: it need not wait until nothing else runs.
  uint32_t num_new = UINT32_MAX;
  uint32_t most_new = UINT32_MAX;
  uint32_t num_streams = 0;  // that get tokens there now; num_running counts those to come as well
  double step_s = 0;         // of a step with their rows alone; 0 = not measured
  SharedCores cores;
};

// The most by which a decode worker that holds a whole prompt may be more loaded than the least
// loaded one. A worker that saves a share of the prompt, or of the time until its KV is there, may
// have that share of these limits. With equal pools one decode worker then never runs more than 2 +
// 1.5 times the sequences of another.
inline constexpr double kMaxExtraPressure = 2;          // sixteenths of its pool
inline constexpr uint32_t kMaxExtraSequences = 2;       // sequences, a fixed part
inline constexpr uint32_t kMaxExtraSequencesShare = 2;  // and 1 / 2 of those of the other

// A data connection that is up, by places in the snapshot; pairs without one are not used.
struct LinkUp {
  uint32_t prefill_idx = 0;
  uint32_t decode_idx = 0;
  double seconds_per_token = 0;  // that KV takes to cross; 0 = not measured, or never the limit
  double queued_s = 0;           // that KV of hand-offs under way takes; 0 as seconds_per_token
  bool rests = false;            // hand-offs over it failed or were slow: it is not used now
};

// The snapshot.
struct ClusterLoad {
  std::span<const PrefillLoad> prefill;
  std::span<const DecodeLoad> decode;
  std::span<const LinkUp> links;
};

// The request to place, and the rules.
struct RouteQuery {
  uint32_t num_tokens = 1;  // prompt and replayed output
  uint32_t num_choices = 1;
  uint32_t max_total_tokens = 1;  // of one choice, prompt included
  // The decode worker computes prompts with at most so many uncached tokens. With compares_paths an
  // exact prefill worker that shares cores with it computes them while either has work.
  uint32_t local_max_tokens = 0;
  // It also computes longer ones, where a pair is predicted to cost clients more (path_choice.h).
  bool compares_paths = false;
  int64_t itl_objective_us = 0;  // with compares_paths: of the gaps of running streams; 0 = none
  bool disaggregate = true;      // false = aggregated mode
  bool needs_no_link = false;    // links failed it: the decode worker computes the prompt itself
  // It runs, or ran before a fault: it waits for blocks and slots, but not for DecodeLoad::num_new.
  bool has_begun = false;
  // A worker with so much to compute is full, once one prompt waits there after another.
  double max_backlog_s = std::numeric_limits<double>::infinity();
  uint64_t random = 0;  // tie-break
  // The numerics of the decode worker that the output so far came from. A decode worker with other
  // numerics could go on with other tokens. One with these numerics comes first, also where the
  // stream has to wait for room.
  std::optional<uint64_t> numerics_id = std::nullopt;
};

// Why this route.
enum class RouteReason : uint8_t {
  kPair = 0,                  // disagg: the best pair
  kAggregatedMode = 1,        // local: asked for
  kShortPrompt = 2,           // local: so few tokens to compute are not worth a hand-off
  kNoPrefillWorker = 3,       // local: none is ready
  kNoCompatiblePair = 4,      // local: fingerprints differ
  kNoLink = 5,                // local: compatible, but no data connection is up
  kPromptExceedsPrefill = 6,  // local: no prefill worker has that many blocks
  kNoDecodeWorker = 7,        // none: retry later
  kExceedsEveryPool = 8,      // none: no decode worker is large enough, do not retry
  kBadLink = 9,               // local: the links rest, or failed this request before
  // With compares_paths; local: sooner there by the margin, streams counted, above all since ..
  kPrefillQueue = 10,  // prompts wait at the prefill worker
  kSlowLink = 11,      // the KV takes longer to cross than to be computed
  kDecodeHit = 12,     // the decode worker's cache holds more of the prompt
  kFasterDecode = 13,  // the decode worker computes faster, or alone on cores that both lend
};
inline constexpr size_t kNumRouteReasons = 14;
std::string_view RouteReasonName(RouteReason reason);

// The answer.
struct Route {
  enum class Path : uint8_t { kNone = 0, kLocal = 1, kDisagg = 2 };
  Path path = Path::kNone;
  RouteReason reason = RouteReason::kNoDecodeWorker;
  uint32_t prefill_idx = 0;  // with kDisagg
  uint32_t decode_idx = 0;   // with kDisagg and kLocal
  bool exact = true;         // false: an inexact pair
  bool has_room = true;      // false: a worker lacks a slot, free blocks or time in the snapshot
  bool prefill_has_room = true;  // with kDisagg; false: the prefill worker is one that lacks it
  bool for_prefix = false;       // a less loaded decode worker holds less of the prompt
  double predicted_s = 0;        // seconds until the decode worker has the prompt's KV
};

// O(decode x (prefill + links)); allocates nothing.
Route PickRoute(const ClusterLoad& load, const RouteQuery& query);

// A decode worker as one that computes prompts.
PrefillLoad AsPrefillLoad(const DecodeLoad& load);
// The worker that computes a prompt from which nobody decodes: one with room first, then the one
// with the earliest predicted end. The route is local, and decode_idx is its place in `workers`. It
// is none where none is ready (kNoPrefillWorker), or where no worker's pool holds the prompt and a
// block more (kExceedsEveryPool). O(workers); allocates nothing.
Route PickAlone(std::span<const PrefillLoad> workers, const RouteQuery& query);

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_ROUTE_POLICY_H_
