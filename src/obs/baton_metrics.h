// BatonMetrics: the metrics of a Baton process by name (the outside contract) as typed handles.
// Every process registers all of them, so that a scrape finds each name with 0 from the start. The
// comment beside a field says which process counts it. Times in seconds, sizes in bytes.
#ifndef BATON_OBS_BATON_METRICS_H_
#define BATON_OBS_BATON_METRICS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "src/base/block_state_names.h"
#include "src/obs/metrics.h"
#include "src/obs/request_lifetime.h"

namespace baton::obs {

// The labels of baton_kv_transfer_*{transport}.
inline constexpr std::array<std::string_view, 5> kTransportNames = {"local", "shm", "tcp", "nccl",
                                                                    "cuda_ipc"};

// The work of a step: the label of baton_step_seconds{phase}.
inline constexpr std::array<std::string_view, 3> kStepPhaseNames = {"prefill", "decode", "mixed"};

// How a choice ended well: the label of baton_choices_finished_total{reason}.
inline constexpr std::array<std::string_view, 2> kFinishReasonNames = {"stop", "length"};

// HTTP statuses that requests_total tells apart (gRPC answers are counted by the equal status);
// any other is counted as 500.
inline constexpr std::array<int, 18> kRequestCodes = {200, 400, 401, 403, 404, 405, 408, 413, 415,
                                                      417, 429, 431, 499, 500, 501, 503, 504, 505};

// The end of a request that had given its client a token: the label `finish` of the first-token and
// end-to-end histograms. kCancelled: the client left or did not read. kError: the server failed.
enum class RequestFinish : uint8_t { kStop = 0, kLength, kCancelled, kDeadline, kError };
inline constexpr std::array<std::string_view, 5> kRequestFinishNames = {
    "stop", "length", "cancelled", "deadline", "error"};

// Why a running request had to be placed again, and where its KV came from.
enum class ResumeReason : uint8_t { kPrefillLost = 0, kDecodeLost, kTransfer, kTimeout, kMoved };
enum class ResumeSource : uint8_t { kRetarget = 0, kPrefix, kRecompute };
inline constexpr std::array<std::string_view, 5> kResumeReasonNames = {
    "prefill_lost", "decode_lost", "transfer", "timeout", "moved"};
inline constexpr std::array<std::string_view, 3> kResumeSourceNames = {"retarget", "prefix",
                                                                       "recompute"};

// Requests with an idempotency key: what became of each, the state of each generation that is
// remembered, and why one was given up before its time.
enum class KeyedResult : uint8_t { kNew = 0, kJoined, kConflict };
enum class KeyedState : uint8_t { kLive = 0, kOrphaned, kFinished };
enum class KeyedLoss : uint8_t { kAbandoned = 0, kEvicted, kTooLarge };
inline constexpr std::array<std::string_view, 3> kKeyedResultNames = {"new", "joined", "conflict"};
inline constexpr std::array<std::string_view, 3> kKeyedStateNames = {"live", "orphaned",
                                                                     "finished"};
inline constexpr std::array<std::string_view, 3> kKeyedLossNames = {"abandoned", "evicted",
                                                                    "too_large"};

// Outcome of a request that was run again to be compared.
enum class ShadowResult : uint8_t { kEqual = 0, kMismatch, kDropped, kFailed };
inline constexpr std::array<std::string_view, 4> kShadowResultNames = {"equal", "mismatch",
                                                                       "dropped", "failed"};

// Why a request was refused before it had waited: the label of baton_early_refusals_total{reason}.
// Its predicted wait exceeds the queue wait, or what its deadline leaves; its answer takes longer
// than its deadline leaves; or its first token would come after the objective.
enum class EarlyRefusal : uint8_t { kQueueWait = 0, kQueueDeadline, kDeadline, kFirstToken };
inline constexpr std::array<std::string_view, 4> kEarlyRefusalNames = {
    "queue_wait", "queue_deadline", "deadline", "slo_ttft"};

// Why a placement took the path that it took: the label of baton_routes_total{reason}, by the names
// of scheduler::RouteReason.
inline constexpr std::array<std::string_view, 12> kRouteReasonLabels = {"pair",
                                                                        "aggregated_mode",
                                                                        "short_prompt",
                                                                        "no_prefill_worker",
                                                                        "no_compatible_pair",
                                                                        "no_link",
                                                                        "bad_link",
                                                                        "prompt_exceeds_prefill",
                                                                        "prefill_queue",
                                                                        "slow_link",
                                                                        "decode_hit",
                                                                        "faster_decode"};

// The objectives of --slo, and how requests fared by them: the labels of
// baton_slo_requests_total{objective,result} and baton_slo_seconds{objective}.
enum class Objective : uint8_t { kTtft = 0, kItl };
enum class ObjectiveResult : uint8_t { kMet = 0, kMissed };
inline constexpr std::array<std::string_view, 2> kObjectiveNames = {"ttft", "itl"};
inline constexpr std::array<std::string_view, 2> kObjectiveResultNames = {"met", "missed"};

// Where the KV of prompt tokens came from: the label of baton_prefix_tokens_total{source}. Tokens
// of kPool were found in the prefix cache of the worker that computed the rest. Nothing counts
// kPeer, kRam, kFile and kStore yet.
enum class PrefixSource : uint8_t { kPool = 0, kPeer, kRam, kFile, kStore, kComputed };
inline constexpr std::array<std::string_view, 6> kPrefixSourceNames = {"pool", "peer",  "ram",
                                                                       "file", "store", "computed"};

// Why a router did not take a worker: the label of baton_registrations_refused_total{reason}.
enum class RefusalReason : uint8_t {
  kWireVersion = 0,
  kLayout,
  kWeights,
  kTokenizer,
  kFull,
  kMalformed,
  kCertificate,
  kWorkerId
};
inline constexpr std::array<std::string_view, 8> kRefusalReasonNames = {
    "wire_version", "layout",    "weights",     "tokenizer",
    "full",         "malformed", "certificate", "worker_id"};

// The handles; all set by RegisterBatonMetrics. R = counted by the router, W = by workers, P or D =
// by the prefill or the decode side of a hand-off only.
struct BatonMetrics {
  std::array<Counter*, kRequestCodes.size()> requests_total;               // R; use CountRequest
  std::array<Counter*, kFinishReasonNames.size()> choices_finished_total;  // R
  Gauge* requests_running;                                                 // R, W
  Gauge* requests_waiting;                                                 // R, W
  Gauge* predicted_wait_seconds;  // R: of a new request, by the queue's rate; 0 = none waits
  Gauge* batch_limit;  // W: streams beyond which more add little; R: of all decode workers
  std::array<Counter*, kEarlyRefusalNames.size()> early_refusals_total;  // R: use CountEarlyRefusal
  std::array<Counter*, kRouteReasonLabels.size()> routes_total;          // R: use CountRoute
  std::array<Gauge*, kObjectiveNames.size()> slo_seconds;  // R, W; 0 = no such objective
  // R: [objective][result]; use CountObjective
  std::array<std::array<Counter*, kObjectiveResultNames.size()>, kObjectiveNames.size()>
      slo_requests_total;
  Gauge* requests_waiting_numerics;  // R: of them, for a worker of the numerics of their output
  Counter* prompt_tokens_total;      // R: of requests that have a token
  // R: of the same requests, by PrefixSource; their sum is prompt_tokens_total. Use CountPrompt
  std::array<Counter*, kPrefixSourceNames.size()> prefix_tokens_total;
  Counter* generation_tokens_total;  // R
  // R; by RequestFinish; use ObserveLifetime
  std::array<Histogram*, kRequestFinishNames.size()> time_to_first_token_seconds;
  std::array<Histogram*, kRequestFinishNames.size()> e2e_request_latency_seconds;
  Histogram* inter_token_latency_seconds;                   // R
  std::array<Histogram*, kNumRequestStages> stage_seconds;  // R; use ObserveLifetime
  std::array<Gauge*, kBlockStateNames.size()> kv_blocks;    // W: sum = the pool's size
  Gauge* kv_pool_blocks;   // W: its pool's size; R: of all decode workers
  Gauge* kv_block_tokens;  // W: tokens of a block; R: of the decode workers, 0 = there is none
  std::array<Counter*, kTransportNames.size()> kv_transfer_bytes_total;  // D
  std::array<Histogram*, kTransportNames.size()> kv_transfer_seconds;    // D
  Counter* kv_checksum_fail_total;                                       // D
  Counter* kv_chain_mismatch_total;                                      // R, D
  Counter* prefix_cache_queries_total;                                   // W, in tokens
  Counter* prefix_cache_hits_total;                                      // W, in tokens
  Gauge* prefix_index_links;                                             // R: of all workers
  Gauge* prefix_index_bytes;                                             // R
  Counter* prefix_index_not_kept_total;                                  // R: no room for them
  Counter* prefix_index_resyncs_total;                                   // R: asked for
  Counter* prefix_placements_total;                                      // R
  Counter* preemptions_total;                                            // W
  Counter* steps_ahead_total;                                            // W
  Counter* wasted_rows_total;                                            // W
  std::array<std::array<Counter*, kResumeSourceNames.size()>, kResumeReasonNames.size()>
      resumes_total;               // R: [reason][source]
  Gauge* exposed_transfer_ratio;   // P: time of transfers after the prompt / all, 0..1
  Gauge* prefill_backlog_seconds;  // W: predicted time to prefill what waits
  Gauge* decode_kv_pressure;  // W: blocks in use / total, 0..1; R: of all decode workers together
  std::array<Histogram*, kStepPhaseNames.size()> step_seconds;  // W
  Gauge* mbu_ratio;  // W: bytes a step had to read / time / measured bandwidth
  Gauge* mfu_ratio;  // W: arithmetic of a step / time / measured arithmetic
  std::array<Counter*, kRefusalReasonNames.size()> registrations_refused_total;  // R
  Counter* inexact_answers_total;   // R: whole answers with exact=false
  Counter* prompts_put_back_total;  // R: tries of prompts of several that found no room
  Counter* stale_events_total;      // R: messages of an older attempt or incarnation, dropped
  std::array<Counter*, kKeyedResultNames.size()> idempotency_requests_total;  // R: by KeyedResult
  std::array<Gauge*, kKeyedStateNames.size()> idempotency_answers;            // R: by KeyedState
  Gauge* idempotency_bytes;                                                   // R
  std::array<Counter*, kKeyedLossNames.size()> idempotency_dropped_total;     // R: by KeyedLoss
  std::array<Counter*, kShadowResultNames.size()> shadow_total;               // R: by ShadowResult

  // Counts one finished request by its HTTP status.
  void CountRequest(int http_status) const;
  // Counts the prompt of a request that has a token; `num_cached` <= `num_tokens` of it were in a
  // prefix cache.
  void CountPrompt(uint64_t num_tokens, uint64_t num_cached) const {
    prompt_tokens_total->Add(num_tokens);
    prefix_tokens_total[static_cast<size_t>(PrefixSource::kPool)]->Add(num_cached);
    prefix_tokens_total[static_cast<size_t>(PrefixSource::kComputed)]->Add(num_tokens - num_cached);
  }
  // Counts a request that was placed again, when it is known what its KV comes from.
  void CountResume(ResumeReason reason, ResumeSource source) const {
    resumes_total[static_cast<size_t>(reason)][static_cast<size_t>(source)]->Add();
  }
  void CountEarlyRefusal(EarlyRefusal reason) const {
    early_refusals_total[static_cast<size_t>(reason)]->Add();
  }
  // Counts a placement by one of kRouteReasonLabels; another name counts nothing.
  void CountRoute(std::string_view reason) const;
  // A request met an objective, or missed it.
  void CountObjective(Objective objective, bool is_met) const {
    const ObjectiveResult result = is_met ? ObjectiveResult::kMet : ObjectiveResult::kMissed;
    slo_requests_total[static_cast<size_t>(objective)][static_cast<size_t>(result)]->Add();
  }
  // Shows the objectives of this process; microseconds, 0 = none.
  void ShowObjective(Objective objective, int64_t limit_us) const {
    slo_seconds[static_cast<size_t>(objective)]->Set(static_cast<double>(limit_us) / 1e6);
  }
  void CountKeyed(KeyedResult result) const {
    idempotency_requests_total[static_cast<size_t>(result)]->Add();
  }
  void CountKeyedLoss(KeyedLoss why) const {
    idempotency_dropped_total[static_cast<size_t>(why)]->Add();
  }
  void CountShadow(ShadowResult result) const { shadow_total[static_cast<size_t>(result)]->Add(); }
  // Observes end-to-end time, time to first token and all stages of a request that gave its client
  // a token and ended by `finish`. `end_us` is when a request ended that was cut short (cancelled,
  // deadline, error); none = with its last token.
  void ObserveLifetime(const RequestLifetime& lifetime, RequestFinish finish,
                       std::optional<int64_t> end_us = std::nullopt) const;
};

// Registers every metric in `registry`, which must outlive the handles; once per registry.
BatonMetrics RegisterBatonMetrics(MetricsRegistry* registry);

}  // namespace baton::obs

#endif  // BATON_OBS_BATON_METRICS_H_
