// The queue: which request is placed next, where, and how it gets back when it was refused.
#include <algorithm>
#include <string>
#include <utility>

#include "fmt/format.h"

#include "kvcache/hash_chain.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/random.h"
#include "src/router/router_core.h"

namespace baton::router {

using kv::DeriveChainKey;
using kv::HashChain;
using obs::RequestEvent;
using scheduler::DecodeLoad;
using scheduler::LinkUp;
using scheduler::PickRoute;
using scheduler::PrefillLoad;
using scheduler::Route;
using scheduler::RouteQuery;
using scheduler::RouteReason;

namespace {

// A prefill worker says when it has computed a prompt. The KV counts as late when that word comes
// later than twice the predicted time plus this. The word takes the same bad link.
constexpr int64_t kSpareUs = 500'000;

// Blocks of the request's tokens beside the prompt's full blocks.
uint32_t NumOwnBlocks(const RouterRequest& request, const RegisteredWorker& worker) {
  const size_t num_full = request.spec.prompt.size() / worker.description.block_size;
  return worker.BlocksFor(request.NumTokens()) - static_cast<uint32_t>(num_full);
}

// `exact`: of the placement.
PlacementSpec SpecOf(const RouterRequest& request, uint32_t attempt, bool exact, int64_t now_us) {
  PlacementSpec spec;
  spec.uid = request.uid;
  spec.attempt = attempt;
  spec.num_choices = request.spec.num_choices;
  // Rounded up: workers refuse a deadline of 0, and the router's own timer is exact. One that is
  // refused after a day, for want of a deadline, is placed again.
  const int64_t left_us = std::min(request.DeadlineUs() - now_us, limits::kMaxDeadlineUs);
  spec.deadline_ms = static_cast<uint32_t>((left_us + 999) / 1000);
  spec.prompt = &request.spec.prompt;
  spec.replayed = request.Replayed();
  spec.sampling = &request.spec.sampling;
  spec.trace = request.span;
  spec.tenant = request.spec.is_own() ? kShadowTenant : request.spec.tenant;
  // A request that finds the blocks there would be told that its answer is exact. Nobody finds the
  // blocks of a shadow or a probe.
  spec.is_cacheable = exact && !request.spec.is_own();
  return spec;
}

// Counts a request at one of its workers. `cost.num_blocks` are those beside the prompt's full
// blocks, which are counted once for all who share them.
void AddCost(const RouterRequest& request, RegisteredWorker& worker, PlacementHalf& half,
             const PlacementCost& cost) {
  half.lease = worker.lease;
  half.cost = cost;
  half.live = true;
  if (request.links.empty()) {
    half.cost.num_blocks +=
        static_cast<uint32_t>(request.spec.prompt.size() / worker.description.block_size);
  } else {
    const uint32_t num_hits = request.NumHitsAt(worker);
    worker.placed.num_blocks += worker.shared.Add(request.links, num_hits);
    half.shares = true;
  }
  worker.placed.num_blocks += half.cost.num_blocks;
  worker.placed.num_tokens += cost.num_tokens;
  worker.placed.num_prompts += cost.num_prompts;
  worker.placed.num_sequences += cost.num_sequences;
  ++worker.num_requests;
}

// Null `prefill`: it computes the prompt itself.
void StartDecode(const RouterRequest& request, const PlacementSpec& spec, RegisteredWorker& decode,
                 const RegisteredWorker* prefill, PlacementHalf& half) {
  PlacementCost cost;
  // A part-full last block, and one to grow into for each choice.
  cost.num_blocks = NumOwnBlocks(request, decode) + request.spec.num_choices;
  cost.num_sequences = request.spec.num_choices;
  if (prefill == nullptr) {
    cost.num_tokens = request.NumTokens() - request.CachedTokensAt(decode);
    cost.num_prompts = 1;
  }
  half.attempt = spec.attempt;
  AddCost(request, decode, half, cost);
  decode.session->StartDecode(spec, prefill == nullptr ? nullptr : &prefill->description.name);
}

// A worker that would answer without the grammar, or mask by another engine, gets none.
bool Follows(const RegisteredWorker& worker, const RouterRequest& request) {
  return !request.spec.sampling.grammar ||
         worker.description.grammar_version == wire::kAnswerGrammarVersion;
}

void TakeOutWithoutGrammars(const WorkerRegistry& registry, const RouterRequest& request,
                            RouteTable& table) {
  for (size_t i = 0; i < table.prefill.size(); ++i) {
    if (!Follows(*registry.Find(table.prefill_leases[i]), request)) table.prefill[i].ready = false;
  }
  for (size_t i = 0; i < table.decode.size(); ++i) {
    if (!Follows(*registry.Find(table.decode_leases[i]), request)) table.decode[i].ready = false;
  }
}

// False: all decode workers of the model answer without grammars. A request waits where there are
// none at all.
bool HasWorkerFor(const WorkerRegistry& registry, const RouterRequest& request) {
  bool any = false;
  for (const auto& [lease, worker] : registry.workers()) {
    if (worker.IsPrefill() || worker.description.model->id != request.spec.model->id) continue;
    if (Follows(worker, request)) return true;
    any = true;
  }
  return !any;
}

// A shadow that compares with a worker of those numerics may run there.
bool TakesShadow(const RegisteredWorker& worker, const GenerateRequest& shadow) {
  return worker.IsIdle() &&
         worker.description.fingerprint.numerics_id == *shadow.shadow_numerics_id;
}

// Takes the workers out whose context would end the request before it may end; the largest context
// of the decode workers among them, 0 = there are none.
uint32_t TakeOutShort(const RouterRequest& request, uint32_t answer_context, RouteTable& table) {
  const uint32_t least_context = request.LeastContext();
  for (PrefillLoad& row : table.prefill) {
    if (row.max_context < least_context) row.ready = false;
  }
  uint32_t largest = 0;
  for (DecodeLoad& row : table.decode) {
    if (row.max_context >= answer_context) continue;
    row.ready = false;
    // Nor does it fit there later, unless it takes less in the end.
    if (request.spec.names_length || row.max_context < least_context) row.num_blocks = 0;
    largest = std::max(largest, row.max_context);
  }
  return largest;
}

// The decode workers that may take the KV of `source`, another one: a link of it that failed or was
// slow rests. No probe tries such a link, the next hand-off does.
RouteTable WithoutBadLinksOf(const RegisteredWorker& source, int64_t now_us, RouteTable table) {
  for (size_t i = 0; i < table.decode.size(); ++i) {
    const auto link = source.links.find(table.decode_leases[i]);
    if (link != source.links.end() && link->second.Rests(now_us)) {
      table.decode[i].ready = false;
    }
  }
  return table;
}

// The links of a worker whose KV came too slowly to this request a while ago, and the link that its
// present placement uses, are no other way.
void TakeOutLinks(const RouterRequest& request, int64_t now_us, RouteTable& table) {
  for (LinkUp& link : table.links) {
    const LeaseId prefill = table.prefill_leases[link.prefill_idx];
    const LeaseId decode = table.decode_leases[link.decode_idx];
    const bool is_own =
        request.IsPlaced() && request.prefill.Is(prefill) && request.decode.Is(decode);
    link.rests |= is_own || request.slow.Is(prefill, now_us);
  }
}

// The pair of a probe, or none. Its link carries nothing else: whether it is left alone does not
// count.
Route RouteForProbe(const ProbedLink& probe, RouteQuery query, RouteTable& table) {
  for (size_t i = 0; i < table.decode.size(); ++i) {
    if (table.decode_leases[i] != probe.decode) table.decode[i].ready = false;
  }
  std::erase_if(table.links, [&](const LinkUp& link) {
    return table.prefill_leases[link.prefill_idx] != probe.prefill ||
           table.decode_leases[link.decode_idx] != probe.decode;
  });
  for (LinkUp& link : table.links) link.rests = false;
  query.disaggregate = true;
  const Route route = PickRoute(table.Load(), query);
  return route.path == Route::Path::kDisagg ? route : Route{};
}

// Among the workers whose context holds the whole answer; among all where none of those has room
// now.
Route PickForAnswer(const RouteTable& table, const RouteQuery& query) {
  const auto is_short = [&](const DecodeLoad& row) {
    return row.max_context < query.max_total_tokens;
  };
  if (std::any_of(table.decode.begin(), table.decode.end(), is_short)) {
    std::vector<DecodeLoad> holding = table.decode;
    for (DecodeLoad& row : holding) {
      if (is_short(row)) row.ready = false;
    }
    const Route route = PickRoute({table.prefill, holding, table.links}, query);
    if (route.path != Route::Path::kNone && route.has_room) return route;
  }
  return PickRoute(table.Load(), query);
}

}  // namespace

bool HasClaim(const PlacementClaims& claims, std::string_view model,
              std::optional<uint64_t> numerics_id, uint32_t context) {
  return std::any_of(claims.begin(), claims.end(), [&](const PlacementClaim& claim) {
    return claim.model == model && claim.numerics_id == numerics_id && context >= claim.min_context;
  });
}

// First come, first served within a model: a request that finds no room claims what comes free, so
// that a large one is not starved by small ones: all workers of its model, or those of its numerics
// or of a context that holds its answer where only they will do (decode workers). So does one whose
// fault settles, for its 10 ms: what else was lost then is not known yet.
void RouterCore::PlaceQueued(int64_t now_us) {
  if (!queue_changed_) return;
  queue_changed_ = false;
  PlacementClaims claims;
  std::deque<RequestUid> waiting;
  while (!queue_.empty()) {
    const RequestUid uid = queue_.front();
    queue_.pop_front();
    RouterRequest* request = FindRequest(uid);
    if (request == nullptr || request->IsPlaced()) continue;
    if (now_us >= request->DeadlineUs()) {
      EndBad(*request, request->PastDeadline());
      continue;
    }
    const std::string_view model = request->spec.model->id;
    const uint64_t numerics_id = request->numerics_id;
    const uint32_t context = AnswerContextOf(*request, now_us);
    const bool blocked = HasClaim(claims, model, std::nullopt, context);
    const bool is_behind =
        IsBound(*request, now_us) && HasClaim(claims, model, numerics_id, context);
    Placing placing = is_behind ? Placing::kWaitAside : Placing::kWait;
    uint32_t short_context = 0;
    if (!blocked && !is_behind && now_us >= request->not_before_us) {
      placing = TryPlace(*request, claims, now_us, &short_context);
      const bool waits = placing == Placing::kWait || placing == Placing::kWaitAside;
      const bool frees_room = waits && num_shadows_ > 0 && !request->spec.is_shadow();
      if (frees_room) EndShadows(LeaseId{});
      if (frees_room) placing = TryPlace(*request, claims, now_us, &short_context);
      if (placing == Placing::kPlaced || placing == Placing::kEnded) continue;
    }
    if (request->spec.is_shadow()) {  // it never waits, and never before a client
      const bool was_placed = request->num_resumes > 0;
      EndBad(*request, was_placed ? ErrorCode::kWorkerLost : ErrorCode::kQueueFull);
      continue;
    }
    if (!blocked) {
      const bool is_aside = placing == Placing::kWaitAside;
      SetWaiting(*request, is_aside, is_aside || short_context > 0);
      PlacementClaim claim{model, std::nullopt, short_context + 1};
      if (is_aside) claim.numerics_id = numerics_id;
      if (!is_behind) claims.push_back(claim);
    } else if (!HasClaim(claims, model, std::nullopt, 1)) {
      SetWaiting(*request, request->waits_aside, true);
    }
    waiting.push_back(uid);
    if (!claims.empty() && BlocksRest(claims.back())) break;
  }
  queue_.insert(queue_.begin(), waiting.begin(), waiting.end());
}

// All that the queue names besides waits for what is claimed: clients of the same model that any of
// its workers could serve. A queue of a thousand is then not walked in every tick. One that names
// too many requests that have ended is walked, which takes those out.
bool RouterCore::BlocksRest(const PlacementClaim& claim) const {
  if (claim.numerics_id || claim.min_context > 1 || num_shadows_ > 0) return false;
  const auto queue = model_queues_.find(claim.model);
  return queue != model_queues_.end() && queue->second.num_waiting == num_queued_ &&
         queue_.size() <= 2 * num_queued_;
}

// A probe does not go through the queue: clients that wait for room do not hold it up. It takes a
// few blocks, and it ends by kProbeTimeoutUs.
void RouterCore::PlaceProbe(RouterRequest& probe, int64_t now_us) {
  uint32_t short_context = 0;
  const Placing placing = TryPlace(probe, PlacementClaims{}, now_us, &short_context);
  const bool waits = placing == Placing::kWait || placing == Placing::kWaitAside;
  if (waits) EndBad(probe, ErrorCode::kQueueFull);
}

// Its client has seen tokens of one numerics, and a worker of others could go on with other ones.
// In the end that is better than none, but not for several choices: they are computed again from
// their beginning, and what was seen would not fit what follows.
bool RouterCore::IsBound(const RouterRequest& request, int64_t now_us) const {
  if (!request.exact || request.num_delivered == 0 || request.spec.is_own()) return false;
  return request.IsPlaced() || request.spec.num_choices > 1 ||
         now_us - request.queued_us < config_.own_numerics_wait_us;
}

// Registered, and not about to leave: at most silent for a while, or its session opens again.
bool RouterCore::MayBecomeReady(const ModelInfo& model, uint64_t numerics_id,
                                uint32_t min_context) const {
  const auto& workers = registry_.workers();
  return std::any_of(workers.begin(), workers.end(), [&](const auto& entry) {
    const RegisteredWorker& worker = entry.second;
    return !worker.IsPrefill() && !worker.load.draining &&
           worker.description.model->id == model.id &&
           worker.description.fingerprint.numerics_id == numerics_id &&
           worker.description.max_context >= min_context;
  });
}

std::span<const TokenId> RouterRequest::Replayed() const {
  if (spec.num_choices > 1) return {};
  return std::span<const TokenId>(merge.tokens(0)).first(num_replayed);
}

bool RouterRequest::ExactBy(const Route& route, const WorkerDescription& decode) const {
  if (merge.num_known() == 0) return route.exact;
  return exact && route.exact && decode.fingerprint.numerics_id == numerics_id;
}

void RouterRequest::ForgetTokens() {
  merge = TokenMerge(spec.num_choices, spec.sampling.max_tokens);
  num_replayed = 0;
}

uint32_t RouterRequest::NumHitsAt(const RegisteredWorker& worker) const {
  for (const RouterPrefixIndex::Hit& hit : hits) {
    if (hit.worker == worker.lease) return hit.num_blocks;
  }
  return 0;
}

uint32_t RouterRequest::CachedTokensAt(const RegisteredWorker& worker) const {
  const uint64_t tokens = uint64_t{NumHitsAt(worker)} * worker.description.block_size;
  return static_cast<uint32_t>(std::min<uint64_t>(tokens, spec.prompt.size() - 1));
}

// Fills in what each worker of the table holds of the prompt. The workers of a model agree in the
// layout of blocks, and with it in their size.
void RouterCore::FindPrefixes(RouterRequest& request, RouteTable& table) {
  request.hits.clear();
  if (prefixes_.num_entries() == 0 || table.decode.empty()) return;
  if (request.links.empty()) {
    HashChain chain(DeriveChainKey(config_.cluster_secret, request.spec.tenant),
                    std::max(table.decode.front().block_size, 1u));
    chain.Reserve(static_cast<uint32_t>(request.spec.prompt.size()));
    chain.Append(request.spec.prompt);
    request.links.assign(chain.full_links().begin(), chain.full_links().end());
  }
  request.hits = prefixes_.Find(request.links);
  for (size_t i = 0; i < table.prefill.size(); ++i) {
    const RegisteredWorker& worker = *registry_.Find(table.prefill_leases[i]);
    table.prefill[i].cached_tokens = request.CachedTokensAt(worker);
    table.prefill[i].shared_blocks =
        worker.shared.NumShared(request.links, request.NumHitsAt(worker));
  }
  for (size_t i = 0; i < table.decode.size(); ++i) {
    const RegisteredWorker& worker = *registry_.Find(table.decode_leases[i]);
    table.decode[i].cached_tokens = request.CachedTokensAt(worker);
    table.decode[i].shared_blocks =
        worker.shared.NumShared(request.links, request.NumHitsAt(worker));
  }
}

PlannedRoute RouterCore::RouteFor(RouterRequest& request, const PlacementClaims& claims,
                                  int64_t now_us) {
  const uint32_t num_tokens = request.NumTokens();
  const auto max_total =
      static_cast<uint32_t>(request.spec.prompt.size() + request.spec.sampling.max_tokens);
  PlannedRoute planned;
  RouteTable& table = planned.table;
  table = registry_.TableFor(request.spec.model->id, now_us);
  const uint32_t answer_context = AnswerContextOf(request, now_us);
  planned.short_context = TakeOutShort(request, answer_context, table);
  TakeOutWithoutGrammars(registry_, request, table);
  RouteQuery query;
  query.num_tokens = num_tokens;
  query.num_choices = request.spec.num_choices;
  query.max_total_tokens = max_total;
  query.random = request.uid.lo;
  const bool is_bound = IsBound(request, now_us);
  if (is_bound) query.numerics_id = request.numerics_id;
  for (DecodeLoad& row : table.decode) {
    const uint64_t numerics_id = row.fingerprint.numerics_id;
    if (is_bound && row.ready && numerics_id != request.numerics_id) planned.is_bound = true;
    if (HasClaim(claims, request.spec.model->id, numerics_id, row.max_context) ||
        HasClaim(claims, request.spec.model->id, std::nullopt, row.max_context)) {
      row.ready = false;
    }
  }
  if (request.spec.is_shadow()) {
    planned.route = RouteForShadow(request, query, table);
    return planned;
  }
  if (request.spec.is_probe()) {
    planned.route = RouteForProbe(*request.spec.probe, query, table);
    return planned;
  }
  FindPrefixes(request, table);
  for (size_t i = 0; i < table.prefill.size(); ++i) {
    if (table.prefill_leases[i] != request.kept.lease) continue;
    table.prefill[i].cached_tokens = num_tokens;
    table.prefill[i].shared_blocks = UINT32_MAX;
  }
  TakeOutLinks(request, now_us, table);
  query.disaggregate = config_.mode != ServeMode::kAggregated;
  query.needs_no_link = request.life.needs_no_link();
  if (config_.mode == ServeMode::kAdaptive) query.local_max_tokens = config_.local_max_tokens;
  query.max_backlog_s = static_cast<double>(config_.prefill_wait_us) * 1e-6;
  const RegisteredWorker* source = registry_.Find(request.kept.lease);
  if (source != nullptr && !source->IsPrefill() && !query.needs_no_link) {
    RouteQuery on_source_kv = query;
    on_source_kv.disaggregate = false;
    planned.route = PickForAnswer(WithoutBadLinksOf(*source, now_us, table), on_source_kv);
    if (planned.route.path == Route::Path::kLocal && planned.route.has_room) {
      const RegisteredWorker* dest = registry_.Find(table.decode_leases[planned.route.decode_idx]);
      if (source->IsLinkedTo(dest->description.name)) {
        planned.source = source->lease;
        return planned;
      }
    }
  }
  planned.route = PickForAnswer(table, query);
  if (!is_bound || planned.route.path == Route::Path::kNone) return planned;
  const DecodeLoad& chosen = table.decode[planned.route.decode_idx];
  planned.must_wait = chosen.fingerprint.numerics_id != request.numerics_id &&
                      (request.spec.num_choices > 1 ||
                       MayBecomeReady(*request.spec.model, request.numerics_id, answer_context));
  return planned;
}

bool RouterCore::HasIdleWorkerFor(const GenerateRequest& shadow, int64_t now_us) const {
  for (const auto& [lease, worker] : registry_.workers()) {
    const bool serves = !worker.IsPrefill() && worker.description.model->id == shadow.model->id;
    if (serves && worker.Usable(now_us) && TakesShadow(worker, shadow)) return true;
  }
  return false;
}

std::optional<uint64_t> RouterCore::NumericsOf(std::string_view worker_id) {
  const RegisteredWorker* worker = registry_.FindByWorkerId(worker_id);
  if (worker == nullptr) return std::nullopt;
  return worker->description.fingerprint.numerics_id;
}

// Among idle decode workers, and in half of their free blocks: a client that comes finds the rest
// free at once, before the worker has given up the shadow's.
Route RouterCore::RouteForShadow(const RouterRequest& request, const RouteQuery& query,
                                 RouteTable& table) {
  for (size_t i = 0; i < table.decode.size(); ++i) {
    const RegisteredWorker& worker = *registry_.Find(table.decode_leases[i]);
    if (!TakesShadow(worker, request.spec)) table.decode[i].ready = false;
    table.decode[i].num_free_blocks /= 2;
  }
  RouteQuery alone = query;
  alone.disaggregate = false;
  return PickRoute(table.Load(), alone);
}

Placing RouterCore::TryPlace(RouterRequest& request, const PlacementClaims& claims, int64_t now_us,
                             uint32_t* short_context) {
  if (!request.MayBePlacedAgain()) {
    EndBad(request, ErrorCode::kWorkerLost);
    return Placing::kEnded;
  }
  if (!HasWorkerFor(registry_, request)) {
    EndBad(request, FieldError(ErrorCode::kUnsupported, request.spec.fields.grammar,
                               "absent while all workers of the model are of a release that "
                               "constrains no answers"));
    return Placing::kEnded;
  }
  const PlannedRoute planned = RouteFor(request, claims, now_us);
  const RouteTable& table = planned.table;
  const Route& route = planned.route;
  const Placing wait = planned.is_bound ? Placing::kWaitAside : Placing::kWait;
  *short_context = planned.short_context;
  if (route.path == Route::Path::kNone) {
    if (route.reason != RouteReason::kExceedsEveryPool) return wait;
    EndBad(request, TooLargeError(request));
    return Placing::kEnded;
  }
  if (planned.must_wait) return Placing::kWaitAside;
  if (planned.source.value() == 0 && route.path == Route::Path::kLocal &&
      ShouldWaitForPair(route.reason, *request.spec.model, now_us)) {
    return wait;
  }
  if (!route.has_room) return wait;
  RegisteredWorker& decode = *registry_.Find(table.decode_leases[route.decode_idx]);
  const bool keeps_kv =
      request.kept.lease.value() != 0 && planned.PrefillLease() == request.kept.lease;
  const bool may_differ = request.LeavesNumerics(decode.description) ||
                          (!keeps_kv && request.MayDifferFrom(request.num_replayed));
  if (may_differ && CutFromNumerics(request)) {
    return TryPlace(request, claims, now_us, short_context);
  }
  request.exact = request.ExactBy(route, decode.description);
  request.due_us = now_us + kSpareUs + static_cast<int64_t>(route.predicted_s * 2e6);
  Start(request, registry_.Find(planned.PrefillLease()), decode, now_us);
  return Placing::kPlaced;
}

// Nothing that workers of other numerics would have to find again is left to them: every token that
// the client has seen is replayed, what it has not is forgotten. True when that changed something.
bool RouterCore::CutFromNumerics(RouterRequest& request) {
  if (request.num_delivered == 0) {
    request.ForgetTokens();
  } else {
    const auto num_first = static_cast<uint32_t>(request.merge.tokens(0).size());
    if (request.spec.num_choices > 1 || request.num_replayed == num_first) return false;
    request.num_replayed = num_first;
  }
  CancelKept(request);
  return true;
}

LeaseId PlannedRoute::PrefillLease() const {
  if (source.value() != 0) return source;
  return route.path == Route::Path::kDisagg ? table.prefill_leases[route.prefill_idx] : LeaseId{};
}

bool RouterCore::ShouldWaitForPair(RouteReason reason, const ModelInfo& model,
                                   int64_t now_us) const {
  const bool no_prefill = reason == RouteReason::kNoPrefillWorker;
  if (!no_prefill && reason != RouteReason::kNoLink) return false;
  if (no_prefill && !seen_prefill_ && now_us - first_decode_us_ < config_.first_prefill_wait_us) {
    return true;
  }
  // A worker that has just registered is still opening its session (a prefill worker without one
  // is none yet) and its links: the pair is about to stand.
  for (const auto& [lease, worker] : registry_.workers()) {
    if (worker.description.model->id != model.id || worker.load.draining) continue;
    if (no_prefill && !worker.IsPrefill()) continue;
    if (now_us - worker.registered_us < config_.link_wait_us) return true;
  }
  return false;
}

void RouterCore::Start(RouterRequest& request, RegisteredWorker* prefill, RegisteredWorker& decode,
                       int64_t now_us) {
  if (!request.spec.is_own()) EndShadows(decode.lease);
  LeaveQueue(request);
  request.placed_us = now_us;
  request.moved_us = now_us;
  request.is_counted = false;
  request.is_local = prefill == nullptr;
  NotePlacement(request, prefill, decode, now_us);
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
  if (!retargets) CancelKept(request);
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

  const PlacementSpec spec = SpecOf(request, request.attempt(), request.exact, now_us);
  if (prefill == nullptr) {
    request.transport = LinkKind::kLocal;
  } else {
    // First: its computation is what the client waits for.
    StartPrefill(request, spec, *prefill, decode);
  }
  // Both workers start at once: the decode worker reserves while the prompt is computed. One that
  // was asked for a move has its order.
  if (request.move.decode.Is(decode.lease)) {
    request.decode = std::exchange(request.move, AskedMove{}).decode;
  } else {
    StartDecode(request, spec, decode, prefill, request.decode);
  }
  ReportTableSize();
}

void RouterCore::StartPrefill(RouterRequest& request, const PlacementSpec& spec,
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
          {.num_blocks = NumOwnBlocks(request, prefill),
           .num_tokens = num_uncached,
           .num_prompts = 1,
           .num_sequences = 1});
  const uint64_t bytes_per_token = prefill.description.kv_bytes_per_token;
  const uint32_t num_crossing = request.NumTokens() - request.CachedTokensAt(decode);
  request.prefill.link_to = decode.lease;
  request.prefill.link_bytes = num_crossing * bytes_per_token;
  prefill.links[decode.lease].BeginHandOff(request.prefill.link_bytes);
  PlacementSpec own = spec;
  // A prefill worker computes all of it by itself.
  if (prefill.IsPrefill()) own.is_cacheable = !request.spec.is_own();
  prefill.session->StartPrefill(own, decode_name);
}

// `request.num_replayed` is that of the planned placement.
void RouterCore::AskMove(RouterRequest& request, const PlannedRoute& planned, int64_t now_us) {
  RegisteredWorker& decode = *registry_.Find(planned.table.decode_leases[planned.route.decode_idx]);
  const RegisteredWorker* const prefill = registry_.Find(planned.PrefillLease());
  EndShadows(decode.lease);
  AskedMove& move = request.move;
  move.source = planned.PrefillLease();
  move.num_replayed = request.num_replayed;
  move.exact = request.ExactBy(planned.route, decode.description);
  move.asked_us = now_us;
  const PlacementSpec spec = SpecOf(request, request.life.next_attempt(), move.exact, now_us);
  StartDecode(request, spec, decode, prefill, move.decode);
}

void RouterCore::GiveUpMove(RouterRequest& request) {
  if (!request.move.on()) return;
  ReleaseHalf(request, request.move.decode, /*cancel=*/true);
  request.move = AskedMove{};
  request.life.SkipAttempt();
}

// A token that only a prompt's end gave is sampled again: the prefill worker's blocks then serve
// the next attempt as they are. A decode worker has no KV of its last token.
uint32_t RouterRequest::NumToReplay(bool moves) const {
  const size_t num_first = spec.num_choices > 1 ? 0 : merge.tokens(0).size();
  if (num_first <= num_replayed + 1) return num_replayed;
  return static_cast<uint32_t>(moves ? num_first - 1 : num_first);
}

// Workers of one model may have unequal contexts, and an answer ends where the context of its
// decode worker does. That end must come after the tokens that others have given, or will: else
// they differ about which one is the last.
uint32_t RouterRequest::LeastContext() const {
  size_t most_known = 0;
  for (uint32_t choice = 0; choice < spec.num_choices; ++choice) {
    most_known = std::max(most_known, merge.tokens(choice).size());
  }
  const size_t whole = spec.prompt.size() + spec.sampling.max_tokens;
  return static_cast<uint32_t>(std::min(whole, spec.prompt.size() + most_known + 2));
}

// The tokens that a client was promised: all of max_tokens where it named so many. An answer of
// open length has as much as the worker that it began at. That holds for as long as it waits for a
// worker of its numerics.
uint32_t RouterCore::AnswerContextOf(const RouterRequest& request, int64_t now_us) const {
  const auto whole =
      static_cast<uint32_t>(request.spec.prompt.size() + request.spec.sampling.max_tokens);
  if (request.spec.names_length) return whole;
  const bool has_waited =
      !request.IsPlaced() && now_us - request.queued_us >= config_.own_numerics_wait_us;
  const uint32_t begun = request.num_delivered > 0 && !has_waited ? request.begun_context : 0;
  return std::max(request.LeastContext(), std::min(whole, begun));
}

void RouterCore::Requeue(RouterRequest& request, int64_t not_before_us, KeptSource keep) {
  GiveUpMove(request);
  request.notes.unplaced_us = now_us_;
  request.kept = keep;
  const bool moves = keep.lease.value() != 0 && request.decode.Is(keep.lease);
  const bool retargets = keep.lease.value() != 0 && request.prefill.Is(keep.lease);
  ReleaseHalf(request, request.prefill, !retargets);
  ReleaseHalf(request, request.decode, !moves);
  request.num_replayed = request.NumToReplay(moves);
  request.accepted = false;
  request.not_before_us = not_before_us;
  timers_.LookAtAll();
  EnterQueue(request);
  queue_.push_front(request.uid);  // it came before everything that still waits
  queue_changed_ = true;
  ReportTableSize();
}

// Names the first of prompt, answer and number of choices that no pool holds, with the largest
// value that one does. The rules are those of PickRoute and of the worker's scheduler.
RequestError RouterCore::TooLargeError(const RouterRequest& request) const {
  const uint32_t answer_context = AnswerContextOf(request, now_us_);
  const RegisteredWorker* largest = nullptr;
  for (const auto& [lease, worker] : registry_.workers()) {
    if (worker.IsPrefill() || worker.description.model->id != request.spec.model->id) continue;
    if (worker.description.max_context < answer_context) continue;
    const bool larger =
        largest == nullptr || worker.description.num_blocks > largest->description.num_blocks;
    if (larger) largest = &worker;
  }
  const RequestFields& fields = request.spec.fields;
  const auto num_tokens = static_cast<uint32_t>(request.spec.prompt.size());
  const uint32_t max_context = request.spec.model->max_context;
  if (largest == nullptr) return ContextLengthError(fields.prompt, num_tokens, max_context);

  const uint32_t pool = largest->description.num_blocks;
  const uint32_t block_size = largest->description.block_size;
  const uint32_t prompt_blocks = largest->BlocksFor(num_tokens);
  const std::string limit =
      fmt::format("the largest worker has {} KV blocks of {} tokens", pool, block_size);
  // A prompt leaves a block to grow into; the last token of an answer needs no KV.
  const uint64_t max_total = uint64_t{pool} * block_size + 1;
  const auto context = static_cast<uint32_t>(std::min<uint64_t>(max_total, max_context));
  if (prompt_blocks + 1 > pool) {
    return PoolLimitError(
        fields.prompt, num_tokens, context,
        fmt::format("at most {} tokens, not {}: {}", uint64_t{pool > 0 ? pool - 1 : 0} * block_size,
                    num_tokens, limit));
  }
  const uint32_t max_tokens = request.spec.sampling.max_tokens;
  const uint64_t total =
      std::min<uint64_t>(uint64_t{num_tokens} + max_tokens, largest->description.max_context);
  if (total > max_total) {
    return PoolLimitError(fields.max_tokens, num_tokens, context,
                          fmt::format("at most {} with this prompt of {} tokens, not {}: {}",
                                      max_total - num_tokens, num_tokens, max_tokens, limit));
  }
  const uint32_t num_choices = request.spec.num_choices;
  if (prompt_blocks + num_choices > pool) {
    return FieldError(
        ErrorCode::kInvalidValue, fields.choices,
        fmt::format("at most {} with this prompt of {} tokens: the prompt and {} choices need {} "
                    "KV blocks, {}",
                    pool - prompt_blocks, num_tokens, num_choices, prompt_blocks + num_choices,
                    limit));
  }
  // The pools would do, so it was a worker's own context.
  return ContextLengthError(fields.prompt, num_tokens, max_context);
}

}  // namespace baton::router
