#include "src/router/route_planner.h"

#include <algorithm>
#include <string>
#include <vector>

#include "fmt/format.h"

#include "kvcache/hash_chain.h"

namespace baton::router {

using kv::ChainLink;
using kv::DeriveChainKey;
using kv::HashChain;
using scheduler::AsPrefillLoad;
using scheduler::DecodeLoad;
using scheduler::IsPaired;
using scheduler::LinkUp;
using scheduler::PairingOf;
using scheduler::PickAlone;
using scheduler::PickRoute;
using scheduler::PrefillLoad;
using scheduler::Route;
using scheduler::RouteQuery;
using scheduler::RouteReason;

namespace {

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

// A worker that would answer without the grammar, or mask by another engine, gets none.
bool Follows(const RegisteredWorker& worker, const RouterRequest& request) {
  return !request.spec.sampling.grammar ||
         worker.description.grammar_version == wire::kAnswerGrammarVersion;
}

// A worker that would answer without the prompt's log-probabilities gets no request for them.
bool LogsPrompt(const RegisteredWorker& worker, const RouterRequest& request) {
  return !request.AwaitsPromptLog() || worker.description.logs_prompts;
}

bool Embeds(const RegisteredWorker& worker, const RouterRequest& request) {
  return !request.spec.embeds || worker.description.embedding_size > 0;
}

bool CanServe(const RegisteredWorker& worker, const RouterRequest& request) {
  return Follows(worker, request) && LogsPrompt(worker, request) && Embeds(worker, request);
}

void TakeOutUnable(const WorkerRegistry& registry, const RouterRequest& request,
                   RouteTable& table) {
  // Most requests ask for nothing that a worker of an older release lacks.
  const bool asks = request.spec.sampling.grammar || request.AwaitsPromptLog();
  if (!asks && !request.spec.embeds) return;
  for (size_t i = 0; i < table.prefill.size(); ++i) {
    if (!CanServe(*registry.Find(table.prefill_leases[i]), request)) table.prefill[i].ready = false;
  }
  for (size_t i = 0; i < table.decode.size(); ++i) {
    if (!CanServe(*registry.Find(table.decode_leases[i]), request)) table.decode[i].ready = false;
  }
}

// The decode workers that may take the KV of `source`, another one. A link of it that failed or was
// slow rests; no probe tries such a link, the next hand-off does. One of an older release, or on a
// device, asks for all blocks of a stream, and `source` has released those that no row sees.
RouteTable TakersOfKv(const RegisteredWorker& source, int64_t now_us, RouteTable table) {
  const bool releases = source.description.window_blocks > 0;
  for (size_t i = 0; i < table.decode.size(); ++i) {
    DecodeLoad& row = table.decode[i];
    const auto link = source.links.find(table.decode_leases[i]);
    const bool rests = link != source.links.end() && link->second.Rests(now_us);
    if (rests || (releases && row.window_blocks == 0)) row.ready = false;
  }
  return table;
}

// The links of a worker whose KV came too slowly to this request a while ago, and the link that its
// present placement uses, are no other way.
void TakeOutLinks(const RouterRequest& request, const SlowSource& slow, int64_t now_us,
                  RouteTable& table) {
  for (LinkUp& link : table.links) {
    const LeaseId prefill = table.prefill_leases[link.prefill_idx];
    const LeaseId decode = table.decode_leases[link.decode_idx];
    const bool is_own =
        request.IsPlaced() && request.prefill.Is(prefill) && request.decode.Is(decode);
    link.rests |= is_own || slow.Is(prefill, now_us);
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

// The paths are compared for this request.
bool Adapts(const RouterCoreConfig& config, const RouterRequest& request) {
  return config.mode == ServeMode::kAdaptive && request.spec.path == AskedPath::kAuto;
}

// The mode, the request and its faults decide which worker computes its prompt.
void SetPath(const RouterCoreConfig& config, const RouterRequest& request, RouteQuery& query) {
  query.disaggregate =
      config.mode != ServeMode::kAggregated && request.spec.path != AskedPath::kLocal;
  query.needs_no_link = request.life.needs_no_link();
  query.max_backlog_s = static_cast<double>(config.prefill_wait_us) * 1e-6;
  if (!Adapts(config, request)) return;
  query.local_max_tokens = config.local_max_tokens;
  query.compares_paths = true;
  query.itl_objective_us = config.objective.itl_us;
}

// Fills in what each worker of the plan's table holds of the prompt. The workers of a model agree
// in the layout of blocks, and with it in their size and whether sequences have a state.
void FindPrefixes(const RouterState& state, const RouterRequest& request, PlannedRoute& planned) {
  RouteTable& table = planned.table;
  if (state.prefixes.num_entries() == 0 || table.decode.empty()) return;
  if (request.links.empty()) {
    HashChain chain(DeriveChainKey(state.config.cluster_secret, request.spec.tenant),
                    std::max(table.decode.front().block_size, 1u));
    chain.Reserve(static_cast<uint32_t>(request.spec.prompt.size()));
    chain.Append(request.spec.prompt);
    planned.new_links.assign(chain.full_links().begin(), chain.full_links().end());
  }
  const std::vector<ChainLink>& links = request.links.empty() ? planned.new_links : request.links;
  // A worker of a release that does not tell says 0.
  const bool has_states = std::any_of(table.decode.begin(), table.decode.end(),
                                      [](const auto& row) { return row.state_blocks > 0; });
  planned.hits = state.prefixes.Find(links, has_states);
  const auto fill = [&](auto& row, const RegisteredWorker& worker, uint32_t num_whole) {
    row.cached_tokens = request.CachedTokens(num_whole, worker);
    row.shared_blocks = worker.shared.NumShared(links, num_whole);
  };
  for (size_t i = 0; i < table.prefill.size(); ++i) {
    const LeaseId lease = table.prefill_leases[i];
    fill(table.prefill[i], *state.registry.Find(lease), HitOf(planned.hits, lease).num_whole);
  }
  for (size_t i = 0; i < table.decode.size(); ++i) {
    const RegisteredWorker& worker = *state.registry.Find(table.decode_leases[i]);
    const RouterPrefixIndex::Hit hit = HitOf(planned.hits, worker.lease);
    fill(table.decode[i], worker, hit.num_whole);
    table.decode[i].held_tokens = request.CachedTokens(hit.num_blocks, worker);
    table.decode[i].held_shared_blocks = worker.shared.NumShared(links, hit.num_blocks);
  }
}

// Takes the decode workers out that requests before it wait for. True: the request is bound to its
// numerics, and workers of others were ready.
bool TakeOutClaimed(const RouterRequest& request, const PlacementClaims& claims, bool is_bound,
                    RouteTable& table) {
  bool passes_by = false;
  for (DecodeLoad& row : table.decode) {
    const uint64_t numerics_id = row.fingerprint.numerics_id;
    if (is_bound && row.ready && numerics_id != request.numerics_id) passes_by = true;
    if (HasClaim(claims, request.spec.model->id, numerics_id, row.max_context) ||
        HasClaim(claims, request.spec.model->id, std::nullopt, row.max_context)) {
      row.ready = false;
    }
  }
  return passes_by;
}

// Whether the request that claims could use this prefill worker.
bool ClaimsPrefill(const PlacementClaim& claim, const RegisteredWorker& worker,
                   const std::vector<DecodeLoad>& decode) {
  if (!claim.decode) return worker.description.embedding_size > 0;
  return std::any_of(decode.begin(), decode.end(), [&](const DecodeLoad& row) {
    const bool is_of_numerics =
        !claim.numerics_id || row.fingerprint.numerics_id == *claim.numerics_id;
    return is_of_numerics && row.max_context >= claim.min_context &&
           IsPaired(PairingOf(worker.description.fingerprint, row.fingerprint));
  });
}

// The prefill workers that requests before it wait for are full to it: it waits for them, and takes
// no path without one. The worker that has computed its prompt takes nothing more for it.
void FillClaimed(const WorkerRegistry& registry, const RouterRequest& request, LeaseId kept,
                 const PlacementClaims& claims, RouteTable& table) {
  for (const PlacementClaim& claim : claims) {
    if (!claim.prefill || claim.model != request.spec.model->id) continue;
    for (size_t i = 0; i < table.prefill.size(); ++i) {
      const LeaseId lease = table.prefill_leases[i];
      const bool is_claimed = ClaimsPrefill(claim, *registry.Find(lease), table.decode);
      if (is_claimed && lease != kept) table.prefill[i].num_slots = 0;
    }
  }
}

}  // namespace

bool HasClaim(const PlacementClaims& claims, std::string_view model,
              std::optional<uint64_t> numerics_id, uint32_t context) {
  return std::any_of(claims.begin(), claims.end(), [&](const PlacementClaim& claim) {
    return claim.decode && claim.model == model && claim.numerics_id == numerics_id &&
           context >= claim.min_context;
  });
}

bool HasVectorClaim(const PlacementClaims& claims, std::string_view model) {
  return std::any_of(claims.begin(), claims.end(), [&](const PlacementClaim& claim) {
    return claim.prefill && !claim.decode && claim.model == model;
  });
}

bool RoutePlanner::IsBound(const RouterRequest& request, int64_t now_us) const {
  if (!request.exact || request.num_delivered == 0 || request.spec.is_own()) return false;
  return request.IsPlaced() || request.spec.num_choices > 1 ||
         now_us - request.wait.begin_us < state_->config.own_numerics_wait_us;
}

// Registered, and not about to leave: at most silent for a while, or its session opens again.
bool RoutePlanner::MayBecomeReady(const ModelInfo& model, uint64_t numerics_id,
                                  uint32_t min_context) const {
  const auto& workers = state_->registry.workers();
  return std::any_of(workers.begin(), workers.end(), [&](const auto& entry) {
    const RegisteredWorker& worker = entry.second;
    return !worker.IsPrefill() && !worker.load.draining &&
           worker.description.model->id == model.id &&
           worker.description.fingerprint.numerics_id == numerics_id &&
           worker.description.max_context >= min_context;
  });
}

std::optional<RequestError> RoutePlanner::UnableError(const RouterRequest& request) const {
  const WorkerRole role = RoleFor(request);
  bool any = false;
  bool any_follows = false;
  for (const auto& [lease, worker] : state_->registry.workers()) {
    if (worker.description.role != role || worker.description.model->id != request.spec.model->id) {
      continue;
    }
    if (CanServe(worker, request)) return std::nullopt;
    any = true;
    any_follows |= Follows(worker, request);
  }
  if (!any) return std::nullopt;
  if (request.spec.embeds) {
    return FieldError(ErrorCode::kUnsupported, "model",
                      "a model whose workers are of a release that gives embeddings");
  }
  if (!any_follows) {
    return FieldError(ErrorCode::kUnsupported, request.spec.fields.grammar,
                      "absent while all workers of the model are of a release that constrains no "
                      "answers");
  }
  return FieldError(ErrorCode::kUnsupported, request.spec.fields.prompt_logprobs,
                    "absent while all workers of the model are of a release that gives no "
                    "log-probabilities of prompts");
}

PlannedRoute RoutePlanner::Plan(const RouterRequest& request, const PlacementStart& start,
                                const PlacementClaims& claims, int64_t now_us) const {
  const uint32_t num_tokens = request.NumTokens(start.num_replayed);
  const auto max_total =
      static_cast<uint32_t>(request.spec.prompt.size() + request.spec.sampling.max_tokens);
  PlannedRoute planned;
  planned.num_replayed = start.num_replayed;
  RouteTable& table = planned.table;
  const bool adapts = Adapts(state_->config, request);
  table = state_->registry.TableFor(request.spec.model->id, now_us,
                                    adapts ? SpeedPools::kBoth : SpeedPools::kByRole);
  const uint32_t answer_context = AnswerContextOf(request, now_us);
  planned.short_context = TakeOutShort(request, answer_context, table);
  TakeOutUnable(state_->registry, request, table);
  FillClaimed(state_->registry, request, start.kept.lease, claims, table);
  if (request.spec.embeds) {
    PlanEmbedding(request, planned);
    return planned;
  }
  RouteQuery query;
  query.num_tokens = num_tokens;
  query.num_choices = request.spec.num_choices;
  query.max_total_tokens = max_total;
  query.random = request.uid.lo;
  query.has_begun = request.HasBegun();
  const bool is_bound = IsBound(request, now_us);
  if (is_bound) query.numerics_id = request.numerics_id;
  planned.is_bound = TakeOutClaimed(request, claims, is_bound, table);
  if (request.spec.is_shadow()) {
    planned.route = RouteForShadow(request, query, table);
    return planned;
  }
  if (request.spec.is_probe()) {
    planned.route = RouteForProbe(*request.spec.probe, query, table);
    return planned;
  }
  FindPrefixes(*state_, request, planned);
  for (size_t i = 0; i < table.prefill.size(); ++i) {
    if (table.prefill_leases[i] != start.kept.lease) continue;
    table.prefill[i].cached_tokens = num_tokens;
    table.prefill[i].shared_blocks = UINT32_MAX;
  }
  TakeOutLinks(request, start.slow, now_us, table);
  SetPath(state_->config, request, query);
  const RegisteredWorker* source = state_->registry.Find(start.kept.lease);
  if (source != nullptr && !source->IsPrefill() && !query.needs_no_link) {
    RouteQuery on_source_kv = query;
    on_source_kv.disaggregate = false;
    planned.route = PickForAnswer(TakersOfKv(*source, now_us, table), on_source_kv);
    if (planned.route.path == Route::Path::kLocal && planned.route.has_room) {
      const RegisteredWorker* dest =
          state_->registry.Find(table.decode_leases[planned.route.decode_idx]);
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

WorkerRole RoutePlanner::RoleFor(const RouterRequest& request) const {
  if (!request.spec.embeds || state_->config.mode == ServeMode::kAggregated) {
    return WorkerRole::kDecode;
  }
  bool prefill_leaves = false;
  bool decode_stays = false;
  for (const auto& [lease, worker] : state_->registry.workers()) {
    const bool is_of_model = worker.description.model->id == request.spec.model->id;
    if (!is_of_model || !CanServe(worker, request)) continue;
    const bool drains = worker.load.draining;
    if (worker.IsPrefill() && !drains) return WorkerRole::kPrefill;
    prefill_leaves |= worker.IsPrefill();
    decode_stays |= !worker.IsPrefill() && !drains;
  }
  return prefill_leaves && !decode_stays ? WorkerRole::kPrefill : WorkerRole::kDecode;
}

bool RoutePlanner::IsServed(const RouterRequest& request) const {
  return state_->registry.Serves(request.spec.model->id, RoleFor(request));
}

bool RoutePlanner::IsCallable(const RouterRequest& request) const {
  return state_->registry.HasSession(request.spec.model->id, RoleFor(request));
}

void RoutePlanner::PlanEmbedding(const RouterRequest& request, PlannedRoute& planned) const {
  RouteTable& table = planned.table;
  const RouteQuery query = {
      .num_tokens = request.NumTokens(),
      .max_backlog_s = static_cast<double>(state_->config.prefill_wait_us) * 1e-6,
      .random = request.uid.lo};
  if (RoleFor(request) == WorkerRole::kPrefill) {
    table.decode_leases = table.prefill_leases;
  } else {
    table.prefill.clear();
    for (const DecodeLoad& row : table.decode) table.prefill.push_back(AsPrefillLoad(row));
  }
  planned.route = PickAlone(table.prefill, query);
}

bool RoutePlanner::HasIdleWorkerFor(const GenerateRequest& shadow, int64_t now_us) const {
  for (const auto& [lease, worker] : state_->registry.workers()) {
    const bool serves = !worker.IsPrefill() && worker.description.model->id == shadow.model->id;
    if (serves && worker.Usable(now_us) && TakesShadow(worker, shadow)) return true;
  }
  return false;
}

// Among idle decode workers, and in half of their free blocks: a client that comes finds the rest
// free at once, before the worker has given up the shadow's.
Route RoutePlanner::RouteForShadow(const RouterRequest& request, const RouteQuery& query,
                                   RouteTable& table) const {
  for (size_t i = 0; i < table.decode.size(); ++i) {
    const RegisteredWorker& worker = *state_->registry.Find(table.decode_leases[i]);
    if (!TakesShadow(worker, request.spec)) table.decode[i].ready = false;
    table.decode[i].num_free_blocks /= 2;
  }
  RouteQuery alone = query;
  alone.disaggregate = false;
  return PickRoute(table.Load(), alone);
}

LeaseId PlannedRoute::PrefillLease() const {
  if (source.value() != 0) return source;
  return route.path == Route::Path::kDisagg ? table.prefill_leases[route.prefill_idx] : LeaseId{};
}

bool RoutePlanner::ShouldWaitForPair(RouteReason reason, const ModelInfo& model,
                                     int64_t now_us) const {
  const bool no_prefill = reason == RouteReason::kNoPrefillWorker;
  if (!no_prefill && reason != RouteReason::kNoLink) return false;
  const auto first = state_->first_workers.find(model.id);
  if (no_prefill && first != state_->first_workers.end() && !first->second.seen_prefill &&
      now_us - first->second.first_decode_us < state_->config.first_prefill_wait_us) {
    return true;
  }
  // A worker that has just registered is still opening its session (a prefill worker without one
  // is none yet) and its links: the pair is about to stand.
  for (const auto& [lease, worker] : state_->registry.workers()) {
    if (worker.description.model->id != model.id || worker.load.draining) continue;
    if (no_prefill && !worker.IsPrefill()) continue;
    if (now_us - worker.registered_us < state_->config.link_wait_us) return true;
  }
  return false;
}

// The tokens that a client was promised: all of max_tokens where it named so many. An answer of
// open length has as much as the worker that it began at. That holds for as long as it waits for a
// worker of its numerics.
uint32_t RoutePlanner::AnswerContextOf(const RouterRequest& request, int64_t now_us) const {
  const auto whole =
      static_cast<uint32_t>(request.spec.prompt.size() + request.spec.sampling.max_tokens);
  if (request.spec.names_length) return whole;
  const bool has_waited =
      !request.IsPlaced() && now_us - request.wait.begin_us >= state_->config.own_numerics_wait_us;
  const uint32_t begun = request.num_delivered > 0 && !has_waited ? request.begun_context : 0;
  return std::max(request.LeastContext(), std::min(whole, begun));
}

RequestError RoutePlanner::TooLargeError(const RouterRequest& request) const {
  const uint32_t answer_context = AnswerContextOf(request, state_->now_us);
  const WorkerRole role = RoleFor(request);
  const RegisteredWorker* largest = nullptr;
  for (const auto& [lease, worker] : state_->registry.workers()) {
    if (worker.description.role != role || worker.description.model->id != request.spec.model->id) {
      continue;
    }
    if (worker.description.max_context < answer_context) continue;
    const bool larger =
        largest == nullptr || worker.description.num_blocks > largest->description.num_blocks;
    if (larger) largest = &worker;
  }
  const RequestFields& fields = request.spec.fields;
  const auto num_tokens = static_cast<uint32_t>(request.spec.prompt.size());
  const uint32_t max_context = request.spec.model->max_context;
  if (largest == nullptr) return ContextLengthError(fields.prompt, num_tokens, max_context);

  // Each choice has a state in blocks of its own.
  const WorkerDescription& description = largest->description;
  const uint32_t num_state = description.state_blocks;
  const uint32_t pool = description.num_blocks - num_state;
  const uint32_t block_size = description.block_size;
  const uint32_t prompt_blocks = description.HeldBlocks(largest->BlocksFor(num_tokens));
  const std::string limit =
      fmt::format("the largest worker has {} KV blocks of {} tokens{}", pool + num_state,
                  block_size, num_state > 0 ? fmt::format(", a state takes {}", num_state) : "");
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
      std::min<uint64_t>(uint64_t{num_tokens} + max_tokens, description.max_context);
  if (description.HeldBlocks(largest->BlocksFor(total - 1)) > pool) {
    return PoolLimitError(fields.max_tokens, num_tokens, context,
                          fmt::format("at most {} with this prompt of {} tokens, not {}: {}",
                                      max_total - num_tokens, num_tokens, max_tokens, limit));
  }
  const uint32_t num_choices = request.spec.num_choices;
  const uint64_t needed = prompt_blocks + uint64_t{num_choices} * (1 + num_state);
  if (needed > uint64_t{pool} + num_state) {
    return FieldError(
        ErrorCode::kInvalidValue, fields.choices,
        fmt::format("at most {} with this prompt of {} tokens: the prompt and {} choices need {} "
                    "KV blocks, {}",
                    (pool + num_state - prompt_blocks) / (1 + num_state), num_tokens, num_choices,
                    needed, limit));
  }
  // The pools would do, so it was a worker's own context.
  return ContextLengthError(fields.prompt, num_tokens, max_context);
}

bool RoutePlanner::HasRoute(const ModelInfo& model, int64_t now_us) const {
  const RouteTable table = state_->registry.TableFor(model.id, now_us);
  RouteQuery query;
  query.disaggregate = state_->config.mode != ServeMode::kAggregated;
  const Route route = PickRoute(table.Load(), query);
  if (route.path == Route::Path::kDisagg) return true;
  return route.path == Route::Path::kLocal && !ShouldWaitForPair(route.reason, model, now_us);
}

bool RoutePlanner::HasSomeRoute(int64_t now_us) const {
  return std::ranges::any_of(state_->registry.Models(),
                             [&](const auto& model) { return HasRoute(*model, now_us); });
}

bool RoutePlanner::HasAllRoutes(int64_t now_us) const {
  const auto models = state_->registry.Models();
  return std::ranges::all_of(state_->config.expected_models, [&](const std::string& id) {
    const auto model = std::ranges::find_if(models, [&](const auto& one) { return one->id == id; });
    return model != models.end() && HasRoute(**model, now_us);
  });
}

}  // namespace baton::router
