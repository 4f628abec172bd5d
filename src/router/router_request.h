// RouterRequest: everything the router knows of one live request. Owned by RequestTable.
#ifndef BATON_ROUTER_ROUTER_REQUEST_H_
#define BATON_ROUTER_ROUTER_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kvcache/handoff_request.h"
#include "src/obs/baton_metrics.h"
#include "src/obs/request_lifetime.h"
#include "src/router/choice_text.h"
#include "src/router/client_pause.h"
#include "src/router/generate_request.h"
#include "src/router/kv_share.h"
#include "src/router/placement_parts.h"
#include "src/router/request_traces.h"
#include "src/router/retry_estimate.h"
#include "src/router/router_prefix_index.h"
#include "src/router/service_objective.h"
#include "src/router/submit.h"
#include "src/router/token_merge.h"
#include "src/router/worker_registry.h"
#include "src/wire/guess_state.h"

namespace baton::router {

// "QUEUED", "PLACING", ...: as /debug/requests shows a request.
std::string RouterStateName(kv::HandoffRequestState state);

// The place of a request among those whose KV is on its way: by prefill worker, decode worker, then
// the time since when its KV is waited for.
using LinkTurn = std::tuple<LeaseId, LeaseId, int64_t, RequestUid>;

// The part of a prompt that `lease` holds.
RouterPrefixIndex::Hit HitOf(std::span<const RouterPrefixIndex::Hit> hits, LeaseId lease);

// The wait of a request in the queue; while it is placed, the wait before that.
struct QueueWait {
  int64_t begin_us = 0;
  int64_t not_before_us = 0;  // no placement earlier (a fault settles)
  bool is_aside = false;      // it holds up nobody (Placing::kWaitAside)
  bool is_apart = false;      // aside, or for a larger context than others need
  bool for_share = false;     // its tenant holds its whole kv_share
};

// How often the placements of a request ended before its answer did.
struct ResumeCount {
  uint32_t num = 0;               // by a fault or a planned move
  uint32_t num_deaths = 0;        // of them by a worker that died
  uint32_t num_early_deaths = 0;  // of these, before it had begun
  // Why it was placed again, until it is known where its KV comes from.
  std::optional<obs::ResumeReason> reason;
};

// How far the prompt is, as the sink was told.
struct ToldProgress {
  uint32_t num_tokens = 0;  // of the prompt with KV, the most that was told
  int64_t began_us = 0;     // when the first worker that told had begun (steady clock)
};

// Guesses of the steps whose tokens were delivered.
struct DeliveredGuesses {
  uint64_t num_proposed = 0;  // as RequestTimings::speculated
  uint64_t num_accepted = 0;
  wire::GuessState state = wire::GuessState::kOff;  // of the last delivered token's step
};

// One request; see the file comment.
struct RouterRequest {
  RouterRequest(RequestUid uid_in, GenerateRequest spec_in, std::shared_ptr<ResponseSink> sink_in);

  // ---- From its arrival to its end.
  const RequestUid uid;
  GenerateRequest spec;
  std::shared_ptr<ResponseSink> sink;
  const obs::BatonMetrics* metrics = nullptr;  // of its model; set before it enters the queue
  SpanIds span;                                // of this request; not valid = no spans are recorded
  kv::HandoffRequest life;                     // states and attempts: the specification's table
  obs::RequestLifetime lifetime;
  TraceNotes notes;
  ClientPause pause;
  // The prompt's full blocks, empty before a cache was known; and how many of them each worker
  // holds, as of the last try to place it.
  std::vector<kv::ChainLink> links;
  std::vector<RouterPrefixIndex::Hit> hits;

  // ---- While it waits.
  QueueWait wait;
  KeptSource kept;

  // ---- The current placement: set by Placer::Start, changed by its workers' reports.
  PlacementHalf prefill;
  PlacementHalf decode;
  KvHold kv_hold;                 // until it is queued again
  bool is_local = false;          // the decode worker computes the prompt itself
  bool moves_kv = false;          // from one decode worker to another: no prompt is computed
  std::string prefill_worker_id;  // "" when local
  std::string decode_worker_id;
  // The decode worker has reserved blocks: from now on tokens go to the client. Before, a refusal
  // can still be answered by another placement, because nothing has been seen.
  bool accepted = false;
  bool verified = false;     // all KV is at the decode worker: the prefill worker is not needed
  uint64_t kv_received = 0;  // so far; prefill.link_bytes in all
  LinkKind transport = LinkKind::kLocal;
  int64_t placed_us = 0;
  int64_t moved_us = 0;        // last event of this placement
  bool is_counted = false;     // this placement counts in the rate of its queue
  int64_t due_us = 0;          // its KV should be at the decode worker by then, with time to spare
  bool prompt_done = false;    // token 0 of this placement was sampled,
  int64_t prompt_done_us = 0;  // then
  AskedMove move;
  // Output tokens that this placement (while queued: the next one) starts from.
  uint32_t num_replayed = 0;

  // ---- All placements together.
  bool exact = true;           // of the output so far, the current placement's included
  uint64_t numerics_id = 0;    // of the decode worker that the first token came from
  uint32_t begun_context = 0;  // --max-context of the worker of the client's first token
  bool varies = false;         // another computation of the same may give other tokens there
  bool is_told_taken = false;  // ResponseSink::OnTaken was called
  uint64_t kv_bytes = 0;
  uint32_t cached_tokens = 0;  // of the prompt, at the worker that computes it
  SlowSource slow;
  ResumeCount resumes;

  // ---- The answer. ForgetTokens alone takes tokens away.
  // Rows of the prompt's log-probabilities that are known. When all are, the sink has them, and
  // spec.sampling.prompt_logprobs is reset: no later placement computes them again.
  std::shared_ptr<PromptLogprobs> prompt_log;
  ToldProgress told;
  TokenMerge merge;
  std::vector<ChoiceText> texts;                  // by choice
  std::vector<scheduler::FinishReason> finished;  // by choice, what the client was told
  std::vector<int64_t> last_token_us;             // by choice, 0 = none yet
  int64_t heard_us = 0;                           // the last new token, before it the arrival
  uint32_t num_finished = 0;
  uint32_t num_delivered = 0;  // tokens given to the sink
  DeliveredGuesses guesses;
  GapCount gaps;  // against the objective for them, if there is one

  int64_t DeadlineUs() const {
    return spec.timeout_us > 0 ? spec.received_us + spec.timeout_us : INT64_MAX;
  }
  RequestError PastDeadline() const { return DeadlineError(spec.fields.timeout, spec.timeout_us); }
  // Tells the sink once that workers have taken the request, as soon as that is known. Either the
  // decode worker has reserved and the prompt has begun, or no worker refused within a step or two.
  void TellTaken(int64_t now_us);
  // Its tokens wait for the prompt's log-probabilities.
  bool AwaitsPromptLog() const {
    return spec.sampling.prompt_logprobs.has_value() && spec.prompt.size() > 1;
  }
  // The times of its stages until now.
  RequestTimings Timings() const;
  // It is placed, again when it was before: what its workers had to do beside it then.
  void NotePlacement(const RegisteredWorker* prefill, const RegisteredWorker& decode,
                     int64_t now_us);
  // How far it is, at `now_us`; it is placed.
  RunningAnswer Progress(int64_t now_us) const;
  // The least --max-context of a worker that may take part in it now.
  uint32_t LeastContext() const;
  // Whether all of its answer is of the same numerics when `route` to `decode` is taken.
  bool ExactBy(const scheduler::Route& route, const WorkerDescription& decode) const;
  // `decode` could go on with other tokens than those that are known.
  bool LeavesNumerics(const WorkerDescription& decode) const {
    return merge.num_known() > 0 && decode.fingerprint.numerics_id != numerics_id;
  }
  // True: computing the request again from the prompt gives the same tokens, at workers of its
  // numerics. No worker had fast mode, and no KV came from other numerics.
  bool Repeats() const { return exact && !varies; }
  // False: no placement could go on from what the client has seen. Several choices are computed
  // again from their beginning, and other tokens could come.
  bool MayBePlacedAgain() const { return Repeats() || spec.num_choices == 1 || num_delivered == 0; }
  // A worker of this placement computes the prompt, or has it.
  bool HasBegunPrompt() const {
    return IsPlaced() && life.state() >= kv::HandoffRequestState::kPrefilling;
  }
  // It runs or ran, or is no client's: no batch limit keeps it waiting.
  bool HasBegun() const {
    return IsPlaced() || resumes.num > 0 || num_delivered > 0 || spec.is_own();
  }
  // True when known tokens beyond the first `num_from` could be computed as other tokens.
  bool MayDifferFrom(uint32_t num_from) const { return !Repeats() && merge.num_known() > num_from; }
  // The known tokens, which no client has seen, are those of a worker that is lost.
  void ForgetTokens();
  // Takes over what a plan found out about prefixes; see PlannedRoute.
  void NotePrefixes(std::vector<kv::ChainLink> new_links,
                    std::vector<RouterPrefixIndex::Hit> found);
  RouterPrefixIndex::Hit HitAt(const RegisteredWorker& worker) const;
  // Prompt tokens that a worker is taken to go on from; at least one is always computed.
  uint32_t CachedTokensAt(const RegisteredWorker& worker) const {
    return CachedTokens(HitAt(worker).num_whole, worker);
  }
  // Prompt tokens whose KV need not cross to a decode worker.
  uint32_t HeldTokensAt(const RegisteredWorker& worker) const {
    return CachedTokens(HitAt(worker).num_blocks, worker);
  }
  uint32_t CachedTokens(uint32_t num_hits, const RegisteredWorker& worker) const;
  // A worker says how many tokens of the prompt were cached. The client is told of its prompt
  // alone, so of a placement that began without output. The last token is always computed, and a
  // worker that says otherwise is not believed. Both workers say it, since either may be heard
  // first; an older decode worker says 0. One that hands a stream over computed no prompt for it.
  void NoteCached(uint32_t num_tokens);
  bool IsPlaced() const { return life.placed(); }
  uint32_t attempt() const { return life.attempt(); }
  // Output that the next placement starts from. With several choices each computes its own again:
  // the same tokens, which the merge drops.
  std::span<const TokenId> Replayed() const { return Replayed(num_replayed); }
  std::span<const TokenId> Replayed(uint32_t num) const;
  // num_replayed of a placement that followed now; `moves`: one that takes a decode worker's KV.
  uint32_t NumToReplay(bool moves) const;
  // Tokens whose KV a placement begins with: prompt and replayed output.
  uint32_t NumTokens() const { return NumTokens(num_replayed); }
  uint32_t NumTokens(uint32_t num) const {
    return static_cast<uint32_t>(spec.prompt.size() + Replayed(num).size());
  }
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_REQUEST_H_
