#include "src/router/placer.h"

#include <algorithm>
#include <utility>

#include "src/base/limits.h"
#include "src/router/queue_forecast.h"
#include "src/router/service_objective.h"

namespace baton::router {

using obs::RequestEvent;
using scheduler::AsPrefillLoad;
using scheduler::PrefillLoad;
using scheduler::Route;
using scheduler::RouteReason;

namespace {

// A prefill worker says when it has computed a prompt. The KV counts as late when that word comes
// later than twice the predicted time plus this. The word takes the same bad link.
constexpr int64_t kSpareUs = 500'000;

uint32_t NumTokensOf(const PlacementSpec& spec) {
  return static_cast<uint32_t>(spec.prompt->size() + spec.replayed.size());
}

// Blocks of the request's tokens beside the prompt's full blocks.
uint32_t NumOwnBlocks(const PlacementSpec& spec, const RegisteredWorker& worker) {
  const WorkerDescription& description = worker.description;
  const auto num_full = static_cast<uint32_t>(spec.prompt->size() / description.block_size);
  return description.HeldBlocks(worker.BlocksFor(NumTokensOf(spec))) -
         description.HeldBlocks(num_full);
}

// `attempt`, `num_replayed`, `exact`: of the placement.
PlacementSpec SpecOf(const RouterRequest& request, uint32_t attempt, uint32_t num_replayed,
                     bool exact, int64_t now_us) {
  PlacementSpec spec;
  spec.uid = request.uid;
  spec.attempt = attempt;
  spec.num_choices = request.spec.num_choices;
  // Rounded up: workers refuse a deadline of 0, and the router's own timer is exact. One that is
  // refused after a day, for want of a deadline, is placed again.
  const int64_t left_us = std::min(request.DeadlineUs() - now_us, limits::kMaxDeadlineUs);
  spec.deadline_ms = static_cast<uint32_t>((left_us + 999) / 1000);
  spec.prompt = &request.spec.prompt;
  spec.replayed = request.Replayed(num_replayed);
  spec.sampling = &request.spec.sampling;
  spec.trace = request.span;
  spec.tenant = request.spec.is_own() ? kShadowTenant : request.spec.tenant;
  // A request that finds the blocks there would be told that its answer is exact. Nobody finds the
  // blocks of a shadow or a probe.
  spec.is_cacheable = exact && !request.spec.is_own();
  spec.priority = request.spec.priority;
  spec.reports_progress = request.spec.reports_progress && request.num_delivered == 0;
  return spec;
}

// Counts a request at one of its workers. `cost.num_blocks` are those beside the prompt's full
// blocks, which are counted once for all who share them.
// `num_hits`: of the prompt's first blocks, which the worker finds in its cache.
void AddCost(const RouterRequest& request, RegisteredWorker& worker, PlacementHalf& half,
             const PlacementCost& cost, uint32_t num_hits) {
  half.lease = worker.lease;
  half.cost = cost;
  half.live = true;
  // Which of its blocks a sequence with a window shares with others changes with every block.
  if (request.links.empty() || worker.description.window_blocks > 0) {
    const size_t num_full = request.spec.prompt.size() / worker.description.block_size;
    half.cost.num_blocks += worker.description.HeldBlocks(static_cast<uint32_t>(num_full));
  } else {
    worker.placed.num_blocks += worker.shared.Add(request.links, num_hits);
    half.shares = true;
  }
  worker.placed.num_blocks += half.cost.num_blocks;
  worker.placed.num_tokens += cost.num_tokens;
  worker.placed.num_prompts += cost.num_prompts;
  worker.placed.num_sequences += cost.num_sequences;
  ++worker.num_requests;
}

// The time of a prediction, with an upper limit: a worker may tell any speed.
int64_t UsOf(double seconds) {
  constexpr double kLongestS = 1e6;
  return static_cast<int64_t>(std::min(seconds, kLongestS) * 1e6);
}

// Null `prefill`: it computes the prompt itself.
void StartDecode(const RouterRequest& request, const PlacementSpec& spec, RegisteredWorker& decode,
                 const RegisteredWorker* prefill, PlacementHalf& half) {
  PlacementCost cost;
  // A part-full last block, and for each choice one to grow into and its state's.
  cost.num_blocks =
      NumOwnBlocks(spec, decode) + request.spec.num_choices * (1 + decode.description.state_blocks);
  cost.num_sequences = request.spec.num_choices;
  if (prefill == nullptr) {
    cost.num_tokens = NumTokensOf(spec) - request.CachedTokensAt(decode);
    cost.num_prompts = 1;
  }
  half.attempt = spec.attempt;
  const RouterPrefixIndex::Hit hit = request.HitAt(decode);
  AddCost(request, decode, half, cost, prefill == nullptr ? hit.num_whole : hit.num_blocks);
  if (request.spec.embeds) return decode.session->StartEmbedding(spec);
  decode.session->StartDecode(spec, prefill == nullptr ? nullptr : &prefill->description.name);
}

RouteNote NoteOf(const RouterRequest& request, const PlannedRoute& planned,
                 const RegisteredWorker& decode) {
  const bool is_pair = planned.PrefillLease().value() != 0;
  // KV that moves on from a decode worker comes as from a prefill worker.
  const bool moves = planned.source.value() != 0;
  return {.reason = moves ? RouteReason::kPair : planned.route.reason,
          .held_tokens = is_pair ? request.HeldTokensAt(decode) : request.CachedTokensAt(decode),
          .for_prefix = planned.route.for_prefix};
}

}  // namespace

Placing Placer::TryPlace(RouterRequest& request, const PlacementClaims& claims, int64_t now_us,
                         PlacementLack* lack) {
  if (!request.MayBePlacedAgain()) {
    table_->EndBad(request, ErrorCode::kWorkerLost);
    return Placing::kEnded;
  }
  if (const std::optional<RequestError> error = planner_->UnableError(request)) {
    table_->EndBad(request, *error);
    return Placing::kEnded;
  }
  PlannedRoute planned = planner_->Plan(request, NextStartOf(request), claims, now_us);
  request.NotePrefixes(std::move(planned.new_links), std::move(planned.hits));
  const RouteTable& table = planned.table;
  const Route& route = planned.route;
  const Placing wait = planned.is_bound ? Placing::kWaitAside : Placing::kWait;
  *lack = {.short_context = planned.short_context};
  if (route.path == Route::Path::kNone) {
    if (route.reason != RouteReason::kExceedsEveryPool) return wait;
    table_->EndBad(request, planner_->TooLargeError(request));
    return Placing::kEnded;
  }
  if (planned.must_wait) return Placing::kWaitAside;
  if (planned.source.value() == 0 && route.path == Route::Path::kLocal &&
      planner_->ShouldWaitForPair(route.reason, *request.spec.model, now_us)) {
    return wait;
  }
  if (request.spec.path == AskedPath::kDisagg && route.path == Route::Path::kLocal &&
      request.attempt() == 0) {
    table_->EndBad(request, NoPairError(route.reason));
    return Placing::kEnded;
  }
  const RegisteredWorker* const source = state_->registry.Find(planned.PrefillLease());
  // One that has computed the prompt takes nothing more for it.
  const bool takes_prefill =
      source != nullptr && source->IsPrefill() && source->lease != request.kept.lease;
  lack->prefill = takes_prefill && !route.prefill_has_room;
  if (!route.has_room) return wait;
  if (RefusedAsTooLate(request, planned, now_us)) return Placing::kEnded;
  if (RefusedByObjective(request, planned, now_us)) return Placing::kEnded;
  RegisteredWorker& decode = *state_->registry.Find(table.decode_leases[route.decode_idx]);
  const bool keeps_kv =
      request.kept.lease.value() != 0 && planned.PrefillLease() == request.kept.lease;
  const bool may_differ = request.LeavesNumerics(decode.description) ||
                          (!keeps_kv && request.MayDifferFrom(request.num_replayed));
  if (may_differ && CutFromNumerics(request)) {
    return TryPlace(request, claims, now_us, lack);
  }
  request.exact = request.ExactBy(route, decode.description);
  request.due_us = now_us + kSpareUs + static_cast<int64_t>(route.predicted_s * 2e6);
  TakeNote(request, NoteOf(request, planned, decode));
  Start(request, state_->registry.Find(planned.PrefillLease()), decode, now_us);
  return Placing::kPlaced;
}

// A request that cannot meet its deadline takes no place from others. Only what was measured
// counts, and a stream that runs goes on.
bool Placer::RefusedAsTooLate(RouterRequest& request, const PlannedRoute& planned, int64_t now_us) {
  if (request.HasBegun() || request.DeadlineUs() == INT64_MAX) return false;
  const Route& route = planned.route;
  const RegisteredWorker& decode =
      *state_->registry.Find(planned.table.decode_leases[route.decode_idx]);
  const RegisteredWorker* const prefill = state_->registry.Find(planned.PrefillLease());
  const RegisteredWorker& computes = prefill == nullptr ? decode : *prefill;
  AnswerTime time = {.token_us = decode.load.step_us, .num_tokens = request.spec.LeastTokens()};
  if (computes.load.prefill_tokens_per_s > 0) {
    time.prompt_us = UsOf(route.predicted_s);
  }
  const int64_t left_us = request.DeadlineUs() - now_us;
  if (!IsTooLateToStart(left_us, time)) return false;
  state_->metrics->CountEarlyRefusal(obs::EarlyRefusal::kDeadline);
  table_->EndBad(request, NotStartedError(request.spec.fields.timeout, left_us, time.TotalUs()));
  return true;
}

// A request that would miss the objective for what waits before it leaves its place to one that
// meets it. Only what was measured counts, and a stream that runs goes on.
bool Placer::RefusedByObjective(RouterRequest& request, const PlannedRoute& planned,
                                int64_t now_us) {
  const int64_t ttft_us = state_->config.objective.ttft_us;
  const bool skips = request.spec.embeds || request.spec.skips_forecast;
  if (ttft_us == 0 || request.HasBegun() || skips) return false;
  const RouteTable& table = planned.table;
  const Route& route = planned.route;
  const RegisteredWorker& decode = *state_->registry.Find(table.decode_leases[route.decode_idx]);
  const bool is_pair = route.path == Route::Path::kDisagg;
  const RegisteredWorker& computes =
      is_pair ? *state_->registry.Find(table.prefill_leases[route.prefill_idx]) : decode;
  if (!(computes.load.prefill_tokens_per_s > 0)) return false;
  const PrefillLoad load =
      is_pair ? table.prefill[route.prefill_idx] : AsPrefillLoad(table.decode[route.decode_idx]);
  const uint32_t num_uncached = request.NumTokens() - request.CachedTokensAt(computes);
  const FirstTokenForecast forecast = {
      .wait_us = now_us - request.wait.begin_us + UsOf(load.backlog_s),
      .own_us = request.wait.begin_us - request.spec.received_us +
                UsOf(num_uncached / load.tokens_per_s)};
  const std::optional<RequestError> refusal = RefusalForFirstToken(forecast, ttft_us);
  if (!refusal) return false;
  state_->metrics->CountEarlyRefusal(obs::EarlyRefusal::kFirstToken);
  table_->EndBad(request, *refusal);
  return true;
}

// Nothing that workers of other numerics would have to find again is left to them: every token that
// the client has seen is replayed, what it has not is forgotten. True when that changed something.
bool Placer::CutFromNumerics(RouterRequest& request) {
  if (request.num_delivered == 0) {
    request.ForgetTokens();
  } else {
    const auto num_first = static_cast<uint32_t>(request.merge.tokens(0).size());
    if (request.spec.num_choices > 1 || request.num_replayed == num_first) return false;
    request.num_replayed = num_first;
  }
  table_->CancelKept(request);
  return true;
}

void Placer::TakeNote(RouterRequest& request, const RouteNote& note) {
  if (request.spec.embeds || request.spec.is_own()) return;
  request.notes.route = note;
  state_->metrics->CountRoute(request.notes.RouteText());
  if (note.for_prefix) state_->metrics->prefix_placements_total->Add();
}

void Placer::Start(RouterRequest& request, RegisteredWorker* prefill, RegisteredWorker& decode,
                   int64_t now_us) {
  if (!request.spec.is_own()) table_->EndShadows(decode.lease);
  waiting_->Leave(request);
  request.placed_us = now_us;
  request.moved_us = now_us;
  request.is_counted = false;
  request.is_local = prefill == nullptr;
  request.NotePlacement(prefill, decode, now_us);
  request.life.OnPlaced(request.is_local);
  if (request.merge.num_known() == 0) {
    request.numerics_id = decode.description.fingerprint.numerics_id;
    request.varies = false;
  }
  if (request.num_delivered == 0) request.begun_context = decode.description.max_context;
  // Token 0 is the prefill worker's, and a later placement's workers may be others.
  for (const RegisteredWorker* worker : {prefill, &decode}) {
    if (worker != nullptr) request.varies |= worker->description.fingerprint.varies_with_batch;
  }
  const bool retargets = prefill != nullptr && prefill->lease == request.kept.lease;
  if (!retargets) table_->CancelKept(request);
  // Alone, a worker only accepts or refuses; there is no reservation to wait for.
  request.accepted = request.is_local;
  request.verified = false;
  request.prompt_done = false;
  request.kv_received = 0;
  request.decode_worker_id = decode.description.name.worker_id;
  // KV that moves on was computed where it was computed before.
  request.moves_kv = prefill != nullptr && !prefill->IsPrefill();
  if (!request.moves_kv) request.prefill_worker_id.clear();
  request.lifetime.Mark(RequestEvent::kAdmitted, now_us);
  request.merge.DropAhead();
  if (!request.spec.is_own()) {
    request.kv_hold.Begin(request.spec.kv, request.spec.model->id,
                          request.spec.prompt.size() + request.merge.num_known() +
                              request.spec.num_choices * decode.description.state_tokens());
  }

  const PlacementSpec spec =
      SpecOf(request, request.attempt(), request.num_replayed, request.exact, now_us);
  if (prefill == nullptr) {
    request.transport = LinkKind::kLocal;
  } else {
    // First: its computation is what the client waits for.
    StartPrefill(request, spec, *prefill, decode);
  }
  // Both workers start at once: the decode worker reserves while the prompt is computed. One that
  // was asked for a move has its order.
  if (request.move.decode.Is(decode.lease)) {
    const AskedMove move = std::exchange(request.move, AskedMove{});
    request.decode = move.decode;
    TakeNote(request, move.note);
  } else {
    StartDecode(request, spec, decode, prefill, request.decode);
  }
}

void Placer::StartPrefill(RouterRequest& request, const PlacementSpec& spec,
                          RegisteredWorker& prefill, const RegisteredWorker& decode) {
  const WorkerName& decode_name = decode.description.name;
  const bool moves = !prefill.IsPrefill();
  if (!moves || request.prefill_worker_id.empty()) {
    request.prefill_worker_id = prefill.description.name.worker_id;
  }
  for (const LinkView& link : prefill.load.links) {
    if (link.to == decode_name.worker_id) request.transport = link.kind;
  }
  const bool retargets = request.kept.lease == prefill.lease;
  request.kept = KeptSource{};
  const uint32_t num_uncached =
      retargets ? 0 : request.NumTokens() - request.CachedTokensAt(prefill);
  request.prefill.attempt = spec.attempt;
  AddCost(request, prefill, request.prefill,
          {.num_blocks = NumOwnBlocks(spec, prefill) + prefill.description.state_blocks,
           .num_tokens = num_uncached,
           .num_prompts = 1,
           .num_sequences = 1},
          request.HitAt(prefill).num_whole);
  const uint64_t bytes_per_token = prefill.description.kv_bytes_per_token;
  const uint64_t num_seen =
      uint64_t{decode.description.HeldBlocks(decode.BlocksFor(request.NumTokens()))} *
      decode.description.block_size;
  const uint64_t num_crossing =
      std::min<uint64_t>(request.NumTokens() - request.HeldTokensAt(decode), num_seen) +
      prefill.description.state_tokens();
  request.prefill.link_to = decode.lease;
  request.prefill.link_bytes = num_crossing * bytes_per_token;
  prefill.links[decode.lease].BeginHandOff(request.prefill.link_bytes);
  PlacementSpec own = spec;
  // A prefill worker computes all of it by itself.
  if (prefill.IsPrefill()) own.is_cacheable = !request.spec.is_own();
  prefill.session->StartPrefill(own, decode_name);
}

void Placer::AskMove(RouterRequest& request, const PlannedRoute& planned, int64_t now_us) {
  RegisteredWorker& decode =
      *state_->registry.Find(planned.table.decode_leases[planned.route.decode_idx]);
  const RegisteredWorker* const prefill = state_->registry.Find(planned.PrefillLease());
  table_->EndShadows(decode.lease);
  AskedMove& move = request.move;
  move.source = planned.PrefillLease();
  move.num_replayed = planned.num_replayed;
  move.exact = request.ExactBy(planned.route, decode.description);
  move.note = NoteOf(request, planned, decode);
  move.asked_us = now_us;
  const PlacementSpec spec =
      SpecOf(request, request.life.next_attempt(), move.num_replayed, move.exact, now_us);
  StartDecode(request, spec, decode, prefill, move.decode);
}

void Placer::PlaceProbe(RouterRequest& probe, int64_t now_us) {
  PlacementLack lack;
  const Placing placing = TryPlace(probe, PlacementClaims{}, now_us, &lack);
  const bool waits = placing == Placing::kWait || placing == Placing::kWaitAside;
  if (waits) table_->EndBad(probe, ErrorCode::kQueueFull);
}

}  // namespace baton::router
