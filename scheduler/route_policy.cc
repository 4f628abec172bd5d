#include "scheduler/route_policy.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace baton {
namespace {

// Mixes the caller's random number with an index, so that equal loads are spread evenly and the
// same number gives the same pick (the finaliser of SplitMix64; Steele et al., OOPSLA 2014).
uint64_t Mix(uint64_t random, uint32_t index) {
  uint64_t z = random + (uint64_t{index} + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

uint32_t BlocksFor(uint32_t num_tokens, uint32_t block_size) {
  const uint32_t size = std::max(block_size, 1u);
  return (num_tokens + size - 1) / size;
}

uint32_t BlocksAtDecode(const DecodeLoad& decode, const RouteQuery& query) {
  const uint32_t reserve = BlocksFor(query.num_tokens, decode.block_size) + query.num_choices;
  // One choice must fit alone at its full length; its last token needs no KV.
  const uint32_t full = std::max(query.max_total_tokens, 1u) - 1;
  return std::max(reserve, BlocksFor(full, decode.block_size));
}

// How well a decode worker would stand with this request; smaller is better. First whether the
// blocks are there now, then the share of its pool in use, then its rows.
using DecodeRank = std::tuple<bool, double, uint32_t, uint64_t>;

DecodeRank RankDecode(const DecodeLoad& decode, const RouteQuery& query, uint32_t idx) {
  const uint32_t need = BlocksFor(query.num_tokens, decode.block_size) + query.num_choices;
  const bool full = decode.num_free_blocks < need;
  const double used =
      static_cast<double>(decode.num_blocks - std::min(decode.num_free_blocks, decode.num_blocks)) +
      need;
  // Sixteenths: a difference of a few blocks is noise and is left to the rows and the tie-break.
  const double pressure =
      static_cast<double>(static_cast<int64_t>(16 * used / std::max(decode.num_blocks, 1u)));
  return {full, pressure, decode.num_running + decode.num_waiting, Mix(query.random, idx)};
}

// The same for a prefill worker beside a chosen D: exact before inexact, blocks there now, backlog.
using PrefillRank = std::tuple<bool, bool, double, uint32_t, uint64_t>;

PrefillRank RankPrefill(const PrefillLoad& prefill, bool exact, const RouteQuery& query,
                        uint32_t idx) {
  const bool full = prefill.num_free_blocks < BlocksFor(query.num_tokens, prefill.block_size);
  return {!exact, full, prefill.backlog_s, prefill.num_waiting,
          Mix(query.random ^ 0x5bf03635f0935ad1ull, idx)};
}

bool IsLinked(const ClusterLoad& load, uint32_t prefill_idx, uint32_t decode_idx) {
  return std::any_of(load.links.begin(), load.links.end(), [&](const LinkUp& link) {
    return link.prefill_idx == prefill_idx && link.decode_idx == decode_idx;
  });
}

// What is known about P's beside one D.
struct PrefillPick {
  RouteReason reason = RouteReason::kNoPrefillWorker;  // kPair: idx is valid
  uint32_t idx = 0;
  bool exact = true;
};

PrefillPick PickPrefill(const ClusterLoad& load, const RouteQuery& query, uint32_t decode_idx) {
  // Each worker fails at one of these hurdles; the highest one that any reached is the reason.
  PrefillPick pick;
  PrefillRank best;
  for (uint32_t i = 0; i < load.prefill.size(); ++i) {
    const PrefillLoad& prefill = load.prefill[i];
    if (!prefill.ready) continue;
    const auto failed = [&](RouteReason reason) {
      if (pick.reason != RouteReason::kPair) pick.reason = std::max(pick.reason, reason);
    };
    const Pairing pairing = PairingOf(prefill.fingerprint, load.decode[decode_idx].fingerprint);
    if (!IsPaired(pairing)) {
      failed(RouteReason::kNoCompatiblePair);
      continue;
    }
    if (!IsLinked(load, i, decode_idx)) {
      failed(RouteReason::kNoLink);
      continue;
    }
    if (BlocksFor(query.num_tokens, prefill.block_size) > prefill.num_blocks) {
      failed(RouteReason::kPromptExceedsPrefill);
      continue;
    }
    const bool exact = pairing == Pairing::kExact;
    const PrefillRank rank = RankPrefill(prefill, exact, query, i);
    if (pick.reason == RouteReason::kPair && !(rank < best)) continue;
    best = rank;
    pick = {RouteReason::kPair, i, exact};
  }
  return pick;
}

constexpr std::array<std::string_view, 9> kReasonNames = {"pair",
                                                          "aggregated_mode",
                                                          "short_prompt",
                                                          "no_prefill_worker",
                                                          "no_compatible_pair",
                                                          "no_link",
                                                          "prompt_exceeds_prefill",
                                                          "no_decode_worker",
                                                          "exceeds_every_pool"};

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

std::string_view PairingFieldName(Pairing pairing) {
  switch (pairing) {
    case Pairing::kExact:
    case Pairing::kInexact:
      return "";
    case Pairing::kOtherWire:
      return "wire_version";
    case Pairing::kOtherLayout:
      return "layout_id";
    case Pairing::kOtherWeights:
      return "weights_id";
    case Pairing::kOtherTokenizer:
      return "tokenizer_id";
    case Pairing::kOtherNumerics:
      return "numerics_id";
  }
  return "unknown";
}

Route PickRoute(const ClusterLoad& load, const RouteQuery& query) {
  const bool wants_pair = query.disaggregate && query.num_tokens > query.local_max_tokens;
  Route route;
  // A D with a P beside it comes before any D without one; then the better D.
  std::tuple<bool, DecodeRank> best;
  bool found = false;
  bool any_ready = false;
  bool fits_later = false;  // a worker that is large enough may become ready
  for (uint32_t i = 0; i < load.decode.size(); ++i) {
    const DecodeLoad& decode = load.decode[i];
    const bool fits = BlocksAtDecode(decode, query) <= decode.num_blocks;
    any_ready = any_ready || decode.ready;
    fits_later = fits_later || (fits && !decode.ready);
    if (!decode.ready || !fits) continue;
    PrefillPick pick;
    if (wants_pair) pick = PickPrefill(load, query, i);
    const bool paired = wants_pair && pick.reason == RouteReason::kPair;
    const std::tuple<bool, DecodeRank> rank{wants_pair && !paired, RankDecode(decode, query, i)};
    if (found && !(rank < best)) continue;
    found = true;
    best = rank;
    route = {.path = paired ? Route::Path::kDisagg : Route::Path::kLocal,
             .reason = pick.reason,
             .prefill_idx = pick.idx,
             .decode_idx = i,
             .exact = pick.exact,
             .has_room = !std::get<0>(std::get<1>(rank))};
  }
  if (!found) {
    route.reason =
        any_ready && !fits_later ? RouteReason::kExceedsEveryPool : RouteReason::kNoDecodeWorker;
  } else if (!query.disaggregate) {
    route.reason = RouteReason::kAggregatedMode;
  } else if (!wants_pair) {
    route.reason = RouteReason::kShortPrompt;
  }
  return route;
}

}  // namespace baton
