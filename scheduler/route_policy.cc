#include "scheduler/route_policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>

#include "scheduler/path_choice.h"
#include "src/base/split_mix.h"

namespace baton::scheduler {
namespace {

// Mixes the caller's random number with an index, so that equal loads are spread evenly and the
// same number gives the same pick.
uint64_t Mix(uint64_t random, uint32_t index) {
  return SplitMix(random + (uint64_t{index} + 1) * kSplitMixStep);
}

uint32_t BlocksFor(uint32_t num_tokens, uint32_t block_size) {
  const uint32_t size = std::max(block_size, 1u);
  return (num_tokens + size - 1) / size;
}

// Blocks of so many tokens that a sequence holds at a decode worker.
uint32_t HeldBlocks(const DecodeLoad& decode, uint32_t num_tokens) {
  const uint32_t num_blocks = BlocksFor(num_tokens, decode.block_size);
  return decode.window_blocks > 0 ? std::min(num_blocks, decode.window_blocks) : num_blocks;
}

uint32_t BlocksAtDecode(const DecodeLoad& decode, const RouteQuery& query) {
  const uint32_t reserve =
      HeldBlocks(decode, query.num_tokens) + query.num_choices * (1 + decode.state_blocks);
  // One choice must fit alone at its full length there; its last token needs no KV.
  const uint32_t full = std::max(std::min(query.max_total_tokens, decode.max_context), 1u) - 1;
  return std::max(reserve, HeldBlocks(decode, full) + decode.state_blocks);
}

// Prompt tokens that a worker would have to compute: the last one always, for its logits.
uint32_t NumUncached(uint32_t cached_tokens, const RouteQuery& query) {
  return std::max(query.num_tokens - std::min(cached_tokens, query.num_tokens), 1u);
}

// Prompt tokens whose KV the decode worker has.
uint32_t HeldTokens(const DecodeLoad& decode) {
  return std::max(decode.held_tokens, decode.cached_tokens);
}

// Free blocks that a request of `num_blocks` takes where `num_shared` of them are in use already.
uint32_t NumToTake(uint32_t num_blocks, uint32_t num_shared) {
  return num_blocks - std::min(num_blocks, num_shared);
}

// True when a prompt that came now would wait for too long. The prompt after the one in work is
// always taken: without it the worker would idle between them.
constexpr uint32_t kNumKeptBusy = 2;

template <typename Load>
bool IsBackedUp(const Load& load, const RouteQuery& query) {
  return load.num_waiting >= kNumKeptBusy && load.backlog_s >= query.max_backlog_s;
}

// How well a decode worker would stand with this request; smaller is better. First whether there is
// room now, then the share of its pool in use, then its rows.
using DecodeRank = std::tuple<bool, double, uint32_t, uint64_t>;
constexpr size_t kDecodeFull = 0;
constexpr size_t kPressure = 1;
constexpr size_t kSequences = 2;
constexpr size_t kTieBreak = 3;

DecodeRank RankDecode(const DecodeLoad& decode, const RouteQuery& query, uint32_t idx,
                      bool is_paired) {
  uint32_t num_shared =
      is_paired ? std::max(decode.held_shared_blocks, decode.shared_blocks) : decode.shared_blocks;
  // Blocks that others use may all lie before its window.
  if (decode.window_blocks > 0) num_shared = 0;
  const uint32_t need = NumToTake(HeldBlocks(decode, query.num_tokens), num_shared) +
                        query.num_choices * (1 + decode.state_blocks);
  const bool adds_little =
      !query.has_begun && decode.num_new < std::min(query.num_choices, decode.most_new);
  const bool full =
      decode.num_free_blocks < need || decode.num_slots < query.num_choices || adds_little;
  const double used =
      static_cast<double>(decode.num_blocks - std::min(decode.num_free_blocks, decode.num_blocks)) +
      need;
  // Sixteenths: a difference of a few blocks is noise and is left to the rows and the tie-break.
  const double pressure =
      static_cast<double>(static_cast<int64_t>(16 * used / std::max(decode.num_blocks, 1u)));
  return {full, pressure, decode.num_running + decode.num_waiting, Mix(query.random, idx)};
}

// Predicted times until the prefill worker has computed the prompt and the decode worker has its
// KV, which crosses meanwhile. A request that waits counts as a block's tokens beside the backlog:
// a prompt that is cached whole still takes a step and a hand-off.
PairTimes PairTimesOf(const PrefillLoad& prefill, const DecodeLoad& decode, const LinkUp& link,
                      const RouteQuery& query) {
  const double waiting = static_cast<double>(prefill.num_waiting) * prefill.block_size;
  // A fixed state crosses as so many tokens do.
  const double state_tokens = static_cast<double>(decode.state_blocks) * decode.block_size;
  // Blocks before a window stay where they are.
  const uint32_t num_seen = HeldBlocks(decode, query.num_tokens) * std::max(decode.block_size, 1u);
  const double num_crossing =
      std::min(NumUncached(HeldTokens(decode), query), std::max(num_seen, 1u)) + state_tokens;
  return {.wait_s = prefill.backlog_s + waiting / prefill.tokens_per_s,
          .compute_s = NumUncached(prefill.cached_tokens, query) / prefill.tokens_per_s,
          .cross_s = num_crossing * link.seconds_per_token + link.queued_s,
          .num_waiting = prefill.num_waiting};
}

// Predicted times of the decode worker beside this prefill worker, if it computes the prompt.
LocalTimes LocalTimesOf(const DecodeLoad& decode, const PrefillLoad& prefill,
                        const RouteQuery& query) {
  const double num_uncached = NumUncached(decode.cached_tokens, query);
  return {.wait_s = decode.backlog_s,
          .compute_s = num_uncached / decode.tokens_per_s,
          .at_prefill_s = num_uncached / prefill.tokens_per_s,
          .step_s = decode.step_s,
          .block_s = decode.block_size / decode.tokens_per_s,
          .num_streams = decode.num_streams,
          .num_waiting = decode.num_waiting};
}

bool SharesCores(const DecodeLoad& decode, const PrefillLoad& prefill) {
  return prefill.cores.id != 0 && prefill.cores.id == decode.cores.id;
}

// Predicted times of both ways.
PathTimes PathTimesOf(const DecodeLoad& decode, const PrefillLoad& prefill, const PairTimes& pair,
                      const RouteQuery& query) {
  PathTimes times = {.pair = pair, .local = LocalTimesOf(decode, prefill, query)};
  if (!SharesCores(decode, prefill)) return times;
  const double num_cores = 1.0 * prefill.cores.num_home + decode.cores.num_home;
  times.prefill_share = prefill.cores.num_home / num_cores;
  // Either has measured its speed on the cores that it had at that time. Both can have all of them.
  const double fastest = std::max(prefill.tokens_per_s, decode.tokens_per_s);
  // The block for each waiting request is no time on a core, which is all that is compared here.
  times.pair.wait_s = prefill.backlog_s * prefill.tokens_per_s / fastest;
  // A request whose prompt is computed stays there until its KV has crossed, and takes no core.
  if (prefill.backlog_s == 0) times.pair.num_waiting = 0;
  times.pair.compute_s *= prefill.tokens_per_s / fastest;
  times.local.wait_s *= decode.tokens_per_s / fastest;
  times.local.compute_s *= decode.tokens_per_s / fastest;
  times.local.block_s *= decode.tokens_per_s / fastest;
  times.local.at_prefill_s = times.local.compute_s;
  return times;
}

// Predicted time until the decode worker has computed the prompt itself.
double LocalSeconds(const DecodeLoad& decode, const RouteQuery& query) {
  return decode.backlog_s + NumUncached(decode.cached_tokens, query) / decode.tokens_per_s;
}

// The unit in which predicted times are compared: a sixteenth of the whole prompt at the fastest
// prefill worker. Less is noise (measured speeds are never quite equal) and is left to the
// tie-break.
constexpr double kUnitsOfPrompt = 16;
double PredictedUnit(const ClusterLoad& load, const RouteQuery& query) {
  double fastest = 0;
  for (const PrefillLoad& prefill : load.prefill) {
    if (prefill.ready) fastest = std::max(fastest, prefill.tokens_per_s);
  }
  return fastest > 0 ? std::max(query.num_tokens, 1u) / fastest / kUnitsOfPrompt : 1;
}

// How well a prefill worker would serve beside a chosen decode worker; smaller is better. An exact
// pair comes before an inexact one, then comes room now, then the predicted end in whole
// PredictedUnits.
using PrefillRank = std::tuple<bool, bool, double, uint32_t, uint64_t>;
constexpr size_t kPrefillFull = 1;
constexpr size_t kPrefillEnd = 2;

PrefillRank RankPrefill(const PrefillLoad& prefill, bool exact, double predicted_units,
                        const RouteQuery& query, uint32_t idx) {
  const uint32_t need =
      NumToTake(BlocksFor(query.num_tokens, prefill.block_size), prefill.shared_blocks) +
      prefill.state_blocks;
  const bool full =
      prefill.num_free_blocks < need || prefill.num_slots == 0 || IsBackedUp(prefill, query);
  return {!exact, full, std::floor(predicted_units), prefill.num_waiting,
          Mix(query.random ^ 0x5bf03635f0935ad1ull, idx)};
}

// The best prefill worker for one decode worker, or the reason why there is none.
struct PrefillPick {
  RouteReason reason = RouteReason::kNoPrefillWorker;  // kPair: idx is valid
  uint32_t idx = 0;
  bool exact = true;
  bool has_room = true;
  double end = 0;   // predicted, in PredictedUnits
  PairTimes times;  // the same in seconds
};

PrefillPick PickPrefill(const ClusterLoad& load, const RouteQuery& query, uint32_t decode_idx) {
  const WorkerFingerprint& wanted = load.decode[decode_idx].fingerprint;
  // Each worker fails at one of these hurdles; the highest one that any reached is the reason.
  PrefillPick pick;
  const auto failed = [&pick](RouteReason reason) {
    if (pick.reason != RouteReason::kPair) pick.reason = std::max(pick.reason, reason);
  };
  for (const PrefillLoad& prefill : load.prefill) {
    if (!prefill.ready) continue;
    const bool paired = IsPaired(PairingOf(prefill.fingerprint, wanted));
    failed(paired ? RouteReason::kNoLink : RouteReason::kNoCompatiblePair);
  }
  PrefillRank best;
  const double unit_s = PredictedUnit(load, query);
  for (const LinkUp& link : load.links) {
    if (link.decode_idx != decode_idx) continue;
    const PrefillLoad& prefill = load.prefill[link.prefill_idx];
    const Pairing pairing = PairingOf(prefill.fingerprint, wanted);
    if (!prefill.ready || !IsPaired(pairing)) continue;
    if (link.rests) {
      failed(RouteReason::kBadLink);
      continue;
    }
    const uint32_t need = BlocksFor(query.num_tokens, prefill.block_size) + prefill.state_blocks;
    if (need > prefill.num_blocks) {
      failed(RouteReason::kPromptExceedsPrefill);
      continue;
    }
    const bool exact = pairing == Pairing::kExact;
    const PairTimes times = PairTimesOf(prefill, load.decode[decode_idx], link, query);
    const PrefillRank rank =
        RankPrefill(prefill, exact, times.TotalS() / unit_s, query, link.prefill_idx);
    if (pick.reason == RouteReason::kPair && !(rank < best)) continue;
    best = rank;
    pick = {RouteReason::kPair,
            link.prefill_idx,
            exact,
            !std::get<kPrefillFull>(rank),
            std::get<kPrefillEnd>(rank),
            times};
  }
  return pick;
}

// A decode worker, and what would happen with the request there.
struct DecodeChoice {
  uint32_t idx = 0;
  bool other_numerics = false;  // than the output so far
  bool wants_pair = false;
  RouteReason own_reason = RouteReason::kShortPrompt;  // why it wants none
  PrefillPick pick;
  DecodeRank decode_rank;

  bool is_paired() const { return wants_pair && pick.reason == RouteReason::kPair; }
  // There is room at the decode worker, and at the prefill worker that computes the prompt.
  bool has_room() const { return !std::get<kDecodeFull>(decode_rank) && pick.has_room; }
  // A decode worker that goes on with the same bits comes first, also where the request must wait
  // for it. Then one that has a prefill worker beside it, or needs none, comes before any without
  // one. Then one with room comes before any where the request would wait. Then the better decode
  // worker comes first.
  std::tuple<bool, bool, bool, DecodeRank> rank() const {
    return {other_numerics, is_alone(), !has_room(), decode_rank};
  }
  bool is_alone() const { return wants_pair && !is_paired(); }
};

// Whether a pair of workers that lend each other their cores is to compute a prompt of which the
// decode worker lacks at most local_max_tokens. Few rows gain little from more cores: one of two
// computes 32 tokens in 1.6 times the time of both. The decode worker's streams lose less beside
// the prompt than in a step with it, and a prefill worker ends several such prompts in one step. A
// decode worker beside which nothing is computed saves the hand-off.
bool IsBetterApart(const DecodeLoad& decode, const PrefillLoad& prefill, const RouteQuery& query) {
  const bool is_short = NumUncached(prefill.cached_tokens, query) <= query.local_max_tokens;
  return is_short && SharesCores(decode, prefill) &&
         decode.num_streams + decode.num_waiting + prefill.num_waiting > 0;
}

DecodeChoice ChoiceOf(const ClusterLoad& load, const RouteQuery& query, uint32_t idx) {
  const DecodeLoad& decode = load.decode[idx];
  DecodeChoice choice;
  choice.idx = idx;
  choice.other_numerics =
      query.numerics_id.has_value() && decode.fingerprint.numerics_id != *query.numerics_id;
  const bool is_short = NumUncached(decode.cached_tokens, query) <= query.local_max_tokens;
  const bool may_be_apart = query.compares_paths && decode.cores.id != 0;
  choice.wants_pair = query.disaggregate && !query.needs_no_link && (!is_short || may_be_apart);
  if (choice.wants_pair) choice.pick = PickPrefill(load, query, idx);
  if (is_short) {
    choice.wants_pair = choice.is_paired() && choice.pick.has_room && choice.pick.exact &&
                        IsBetterApart(decode, load.prefill[choice.pick.idx], query);
    if (!choice.wants_pair) choice.pick = PrefillPick();
  }
  if (query.compares_paths && choice.is_paired() && !is_short) {
    const PathTimes times =
        PathTimesOf(decode, load.prefill[choice.pick.idx], choice.pick.times, query);
    auto reason = ReasonForLocal(times, query.itl_objective_us);
    // Room now comes before a prediction, which knows no full pool. Where streams run it does not:
    // they would pay for it.
    const bool may_begin = !IsBackedUp(decode, query);
    if (choice.pick.has_room && !may_begin) reason.reset();
    if (!choice.pick.has_room && may_begin && decode.num_streams == 0) {
      reason = reason.value_or(RouteReason::kPrefillQueue);
    }
    if (reason) {
      choice.wants_pair = false;
      choice.own_reason = *reason;
      choice.pick = PrefillPick();
    }
  }
  choice.decode_rank = RankDecode(decode, query, idx, choice.is_paired());
  if (!choice.is_paired() && IsBackedUp(decode, query))
    std::get<kDecodeFull>(choice.decode_rank) = true;
  return choice;
}

// Prompt tokens that must cross to the choice's worker, or be computed there.
uint32_t NumMissing(const DecodeChoice& choice, const ClusterLoad& load, const RouteQuery& query) {
  const DecodeLoad& decode = load.decode[choice.idx];
  return NumUncached(choice.is_paired() ? HeldTokens(decode) : decode.cached_tokens, query);
}

// The part of the prompt that `choice` saves: of its tokens, or of the time that it takes to
// compute; in [0, 1].
double SavedShare(const DecodeChoice& choice, const DecodeChoice& least, const ClusterLoad& load,
                  const RouteQuery& query) {
  const double num_saved = static_cast<double>(NumMissing(least, load, query)) -
                           static_cast<double>(NumMissing(choice, load, query));
  const bool are_pairs = choice.is_paired() && least.is_paired();
  const double sooner = are_pairs ? (least.pick.end - choice.pick.end) / kUnitsOfPrompt : 0;
  return std::clamp(std::max(num_saved / std::max(query.num_tokens, 1u), sooner), 0.0, 1.0);
}

// True when `choice` may be preferred to the least loaded decode worker for what it holds of the
// prompt. Both must be alike in three things: whether they go on with the same bits, whether they
// have a prefill worker beside them, and whether they have room. The bounds of the header must be
// kept. A prompt that the decode worker computes itself waits for its other prompts, so this wait
// may be no longer than the hit saves.
bool IsAboutAsLoaded(const DecodeChoice& choice, const DecodeChoice& least, const ClusterLoad& load,
                     const RouteQuery& query) {
  const DecodeRank& a = choice.decode_rank;
  const DecodeRank& b = least.decode_rank;
  if (choice.other_numerics != least.other_numerics || choice.is_alone() != least.is_alone() ||
      choice.has_room() != least.has_room()) {
    return false;
  }
  const double share = SavedShare(choice, least, load, query);
  const double more_pressure = std::round(share * kMaxExtraPressure);
  if (std::get<kPressure>(a) > std::get<kPressure>(b) + more_pressure) return false;
  const uint32_t sequences = std::get<kSequences>(b);
  const uint32_t most_more = kMaxExtraSequences + sequences / kMaxExtraSequencesShare;
  if (std::get<kSequences>(a) > sequences + std::round(share * most_more)) return false;
  const DecodeLoad& here = load.decode[choice.idx];
  const DecodeLoad& there = load.decode[least.idx];
  return choice.is_paired() || LocalSeconds(here, query) <= LocalSeconds(there, query);
}

Route RouteOf(const DecodeChoice& choice, const ClusterLoad& load, const RouteQuery& query) {
  Route route = {.path = choice.is_paired() ? Route::Path::kDisagg : Route::Path::kLocal,
                 .reason = choice.pick.reason,
                 .prefill_idx = choice.pick.idx,
                 .decode_idx = choice.idx,
                 .exact = choice.pick.exact,
                 .has_room = choice.has_room(),
                 .prefill_has_room = choice.pick.has_room,
                 .predicted_s = choice.is_paired() ? choice.pick.times.TotalS()
                                                   : LocalSeconds(load.decode[choice.idx], query)};
  if (!query.disaggregate) {
    route.reason = RouteReason::kAggregatedMode;
  } else if (query.needs_no_link) {
    route.reason = RouteReason::kBadLink;
  } else if (!choice.wants_pair) {
    route.reason = choice.own_reason;
  }
  return route;
}

constexpr std::array<std::string_view, kNumRouteReasons> kReasonNames = {"pair",
                                                                         "aggregated_mode",
                                                                         "short_prompt",
                                                                         "no_prefill_worker",
                                                                         "no_compatible_pair",
                                                                         "no_link",
                                                                         "prompt_exceeds_prefill",
                                                                         "no_decode_worker",
                                                                         "exceeds_every_pool",
                                                                         "bad_link",
                                                                         "prefill_queue",
                                                                         "slow_link",
                                                                         "decode_hit",
                                                                         "faster_decode"};

}  // namespace

std::string_view RouteReasonName(RouteReason reason) {
  return kReasonNames[static_cast<size_t>(reason)];
}

Pairing PairingOf(const WorkerFingerprint& prefill, const WorkerFingerprint& decode) {
  const bool common_wire =
      std::max(prefill.wire_min, decode.wire_min) <= std::min(prefill.wire_max, decode.wire_max);
  if (!common_wire) return Pairing::kOtherWire;
  if (prefill.layout_id != decode.layout_id) return Pairing::kOtherLayout;
  if (prefill.weights_id != decode.weights_id) return Pairing::kOtherWeights;
  if (prefill.tokenizer_id != decode.tokenizer_id) return Pairing::kOtherTokenizer;
  if (prefill.numerics_id == decode.numerics_id) return Pairing::kExact;
  const bool allowed = prefill.allow_inexact && decode.allow_inexact;
  return allowed ? Pairing::kInexact : Pairing::kOtherNumerics;
}

PrefillLoad AsPrefillLoad(const DecodeLoad& load) {
  return {.ready = load.ready,
          .fingerprint = load.fingerprint,
          .backlog_s = load.backlog_s,
          .num_waiting = load.num_waiting,
          .num_free_blocks = load.num_free_blocks,
          .num_blocks = load.num_blocks,
          .block_size = load.block_size,
          .state_blocks = load.state_blocks,
          .tokens_per_s = load.tokens_per_s,
          .cached_tokens = load.cached_tokens,
          .shared_blocks = load.shared_blocks,
          .num_slots = load.num_slots,
          .max_context = load.max_context};
}

Route PickAlone(std::span<const PrefillLoad> workers, const RouteQuery& query) {
  Route route;
  route.reason = RouteReason::kNoPrefillWorker;
  const double unit_s = PredictedUnit({.prefill = workers, .decode = {}, .links = {}}, query);
  PrefillRank best;
  bool any_ready = false;
  bool fits_later = false;
  for (uint32_t i = 0; i < workers.size(); ++i) {
    const PrefillLoad& worker = workers[i];
    const uint32_t need = BlocksFor(query.num_tokens, worker.block_size) + worker.state_blocks;
    const bool fits = need < worker.num_blocks;
    any_ready = any_ready || worker.ready;
    fits_later = fits_later || (fits && !worker.ready);
    if (!worker.ready || !fits) continue;
    const double end_s = PairTimesOf(worker, DecodeLoad(), LinkUp(), query).TotalS();
    const PrefillRank rank = RankPrefill(worker, /*exact=*/true, end_s / unit_s, query, i);
    if (route.path == Route::Path::kLocal && !(rank < best)) continue;
    best = rank;
    route = {.path = Route::Path::kLocal,
             .reason = RouteReason::kPair,
             .decode_idx = i,
             .has_room = !std::get<kPrefillFull>(rank),
             .predicted_s = end_s};
  }
  const bool is_too_large = route.path == Route::Path::kNone && any_ready && !fits_later;
  if (is_too_large) route.reason = RouteReason::kExceedsEveryPool;
  return route;
}

Route PickRoute(const ClusterLoad& load, const RouteQuery& query) {
  std::optional<DecodeChoice> least;
  bool any_ready = false;
  bool fits_later = false;  // a worker that is large enough may become ready
  for (uint32_t i = 0; i < load.decode.size(); ++i) {
    const DecodeLoad& decode = load.decode[i];
    const bool fits = BlocksAtDecode(decode, query) <= decode.num_blocks;
    any_ready = any_ready || decode.ready;
    fits_later = fits_later || (fits && !decode.ready);
    if (!decode.ready || !fits) continue;
    const DecodeChoice choice = ChoiceOf(load, query, i);
    if (!least || choice.rank() < least->rank()) least = choice;
  }
  if (!least) {
    Route route;
    route.reason =
        any_ready && !fits_later ? RouteReason::kExceedsEveryPool : RouteReason::kNoDecodeWorker;
    return route;
  }
  // Among those about as loaded as the least loaded one, the one that holds most of the prompt,
  // then the one that has its KV first: links may differ.
  DecodeChoice best = *least;
  for (uint32_t i = 0; i < load.decode.size(); ++i) {
    const DecodeLoad& decode = load.decode[i];
    if (!decode.ready || BlocksAtDecode(decode, query) > decode.num_blocks) continue;
    const uint32_t best_missing = NumMissing(best, load, query);
    if (NumUncached(HeldTokens(decode), query) > best_missing) continue;
    const DecodeChoice choice = ChoiceOf(load, query, i);
    if (!IsAboutAsLoaded(choice, *least, load, query)) continue;
    const auto key = [](uint32_t tokens, const DecodeChoice& c) {
      return std::tuple(tokens, c.is_paired() ? c.pick.end : 0, c.rank());
    };
    if (key(NumMissing(choice, load, query), choice) < key(best_missing, best)) best = choice;
  }
  Route route = RouteOf(best, load, query);
  // The tie-break chose among those that are as loaded.
  const auto load_of = [](DecodeRank rank) {
    std::get<kTieBreak>(rank) = 0;
    return rank;
  };
  route.for_prefix = NumMissing(best, load, query) < NumMissing(*least, load, query) &&
                     load_of(least->decode_rank) < load_of(best.decode_rank);
  return route;
}

}  // namespace baton::scheduler
