#include "src/model/sampler.h"

#include <algorithm>
#include <cmath>

#include "kernels/math.h"
#include "kernels/sampling.h"
#include "src/base/check.h"
#include "src/model/sampler_loops.h"

namespace baton::model {

using kernels::GumbelAt;
using kernels::GumbelKey;
using kernels::KeptByMinP;
using kernels::kMinusInfinity;
using kernels::Log;
using kernels::RelativeWeight;
using kernels::RowSampling;
using kernels::UnitsOfTopP;
using kernels::UnitsOfWeight;
using wire::LogitBias;
using wire::SamplingParams;

namespace {

// The log-probability that is reported for a token with a logit of -infinity. JSON has no infinity
// (vLLM uses the same number).
constexpr float kLowestLogprob = -9999.0f;

// Descending logit, then ascending id.
template <typename Entry>
bool Before(const Entry& a, const Entry& b) {
  return a.l > b.l || (a.l == b.l && a.token < b.token);
}

bool IsFinite(float value) { return value > kMinusInfinity && value < -kMinusInfinity; }

// Step 1. A penalty near 0 makes no logit infinite, nor one that step 6 divides by its least T.
float Penalised(float l, float penalty) {
  if (l <= 0) return l * penalty;
  const float raised = l / penalty;
  return l < kMostPenalised && raised > kMostPenalised ? kMostPenalised : raised;
}

// Whether steps 1 to 5 change a logit.
bool AdjustsLogits(const SampleQuery& query) {
  return !query.state->seen().empty() || !query.params->logit_bias.empty() || !query.mask.empty() ||
         query.state->num_output() < query.params->min_tokens;
}

}  // namespace

RowSampling RowSamplingOf(const SampleQuery& query) {
  const SamplingParams& params = *query.params;
  return {.seed = params.seed,
          .temperature = params.greedy() ? 0.0f : params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = params.top_k,
          .output_index = query.state->num_output(),
          .choice = query.choice,
          // The mask of a grammar is not known yet when the step is begun.
          .on_device = AdjustsLogits(query) || params.logprobs || params.grammar ? 0u : 1u};
}

Sampler::Sampler(uint32_t vocab_size, std::span<const TokenId> eog_tokens)
    : vocab_size_(vocab_size),
      eog_tokens_(eog_tokens.begin(), eog_tokens.end()),
      adjusted_(vocab_size),
      weights_(vocab_size) {
  candidates_.reserve(vocab_size);
}

absl::Status Sampler::Sample(const SampleQuery& query, SampledToken& out) {
  BATON_CHECK(query.logits.size() == vocab_size_, "{} logits for a vocabulary of {}",
              query.logits.size(), vocab_size_);
  const SamplerLoops& loops = BestSamplerLoops();
  std::span<const float> logits = AdjustLogits(query);
  float largest = loops.largest(logits);
  if (!IsFinite(largest)) {
    return DataLoss("no token can be chosen: the largest logit at output index {} is {}",
                    query.state->num_output(), largest);
  }
  if (query.params->greedy()) {
    out.token = static_cast<TokenId>(loops.first_equal(logits, largest));
  } else {
    loops.divide(logits, query.params->temperature, adjusted_.data());
    largest = loops.largest(adjusted_);
    out.token = PickRandom(query, adjusted_, largest);
  }
  out.has_logprob = query.params->logprobs;
  out.logprob = 0;
  out.num_top = 0;
  if (query.params->logprobs) FillLogprobs(query.logits, query.params->top_logprobs, out);
  return OkStatus();
}

std::span<const float> Sampler::AdjustLogits(const SampleQuery& query) {
  const SamplingParams& params = *query.params;
  const SamplerState& state = *query.state;
  if (!AdjustsLogits(query)) return query.logits;
  std::copy(query.logits.begin(), query.logits.end(), adjusted_.begin());
  for (const SamplerState::Seen& seen : state.seen()) {
    float& l = adjusted_[static_cast<size_t>(seen.token)];
    l = Penalised(l, params.repetition_penalty);
    l = l - params.frequency_penalty * static_cast<float>(seen.num_output);
    l = l - (seen.num_output > 0 ? params.presence_penalty : 0.0f);
  }
  for (const LogitBias& entry : params.logit_bias) {
    adjusted_[static_cast<size_t>(entry.token)] += entry.bias;
  }
  if (!query.mask.empty()) ApplyMask(query.mask);
  if (state.num_output() < params.min_tokens) MaskEndOfGeneration(query);
  return adjusted_;
}

void Sampler::ApplyMask(std::span<const uint32_t> mask) {
  constexpr size_t kBits = 32;
  for (size_t first = 0; first < adjusted_.size(); first += kBits) {
    const uint32_t word = first / kBits < mask.size() ? mask[first / kBits] : 0;
    if (word == UINT32_MAX) continue;
    const size_t end = std::min(first + kBits, adjusted_.size());
    for (size_t i = first; i < end; ++i) {
      if ((word >> (i - first) & 1) == 0) adjusted_[i] = kMinusInfinity;
    }
  }
}

void Sampler::MaskEndOfGeneration(const SampleQuery& query) {
  const auto is_in = [](std::span<const TokenId> tokens, size_t id) {
    return std::find(tokens.begin(), tokens.end(), static_cast<TokenId>(id)) != tokens.end();
  };
  const auto ends = [&](size_t id) {
    return is_in(eog_tokens_, id) || is_in(query.params->stop_token_ids, id);
  };
  if (!query.mask.empty()) {
    // A text that the grammar lets end only would otherwise leave no token at all.
    size_t id = 0;
    while (id < adjusted_.size() && (!(adjusted_[id] > kMinusInfinity) || ends(id))) ++id;
    if (id == adjusted_.size()) return;
  }
  const auto mask = [&](std::span<const TokenId> tokens) {
    for (TokenId token : tokens) {
      const size_t id = static_cast<uint32_t>(token);
      if (id < adjusted_.size()) adjusted_[id] = kMinusInfinity;
    }
  };
  mask(eog_tokens_);
  mask(query.params->stop_token_ids);
}

TokenId Sampler::PickRandom(const SampleQuery& query, std::span<const float> logits,
                            float largest) {
  const SamplingParams& params = *query.params;
  const GumbelKey key = {PhiloxKeyFromSeed(params.seed), query.state->num_output(), query.choice};
  candidates_.clear();
  const bool top_k = params.top_k > 0 && params.top_k < vocab_size_;
  const bool top_p = params.top_p < 1.0f;
  const bool min_p = params.min_p > 0.0f;
  if (!top_k && !top_p && !min_p) return BestSamplerLoops().best_gumbel(logits, key);
  if (top_k) KeepTopK(logits, params.top_k);
  if (top_p) KeepTopP(logits, largest, params.top_p);
  if (!top_k && !top_p) {
    // min_p alone: only what it may keep, with a margin for the rounding of Log.
    const float lowest = largest + Log(params.min_p) - 0.01f;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] >= lowest) candidates_.push_back({logits[i], static_cast<TokenId>(i)});
    }
  }
  if (min_p) KeepMinP(largest, params.min_p);
  Candidate best = {kMinusInfinity, -1};
  for (const Candidate& candidate : candidates_) {
    const float gumbel = GumbelAt(key, static_cast<uint32_t>(candidate.token));
    const Candidate scored = {candidate.l + gumbel, candidate.token};
    if (best.token < 0 || Before(scored, best)) best = scored;
  }
  return best.token;
}

void Sampler::KeepTopK(std::span<const float> logits, uint32_t top_k) {
  // A heap whose front is the worst of the k best so far; few blocks have a logit above it.
  constexpr size_t kBlock = 256;
  const SamplerLoops& loops = BestSamplerLoops();
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    const bool is_full = candidates_.size() == top_k;
    if (is_full && !(loops.largest(block) > candidates_.front().l)) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      const Candidate candidate = {block[i], static_cast<TokenId>(begin + i)};
      if (!(candidate.l > kMinusInfinity)) continue;  // -infinity or NaN
      if (candidates_.size() < top_k) {
        candidates_.push_back(candidate);
        std::push_heap(candidates_.begin(), candidates_.end(), Before<Candidate>);
      } else if (candidate.l > candidates_.front().l) {
        std::pop_heap(candidates_.begin(), candidates_.end(), Before<Candidate>);
        candidates_.back() = candidate;
        std::push_heap(candidates_.begin(), candidates_.end(), Before<Candidate>);
      }
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), Before<Candidate>);
}

void Sampler::KeepTopP(std::span<const float> logits, float largest, float top_p) {
  const auto weigh = [&](const Candidate& candidate) {
    return UnitsOfWeight(RelativeWeight(candidate.l, largest));
  };
  uint64_t needed = 0;
  if (candidates_.empty()) {
    needed = CollectForTopP(logits, largest, top_p);
    std::sort(candidates_.begin(), candidates_.end(), Before<Candidate>);
  } else {  // sorted by KeepTopK
    uint64_t total = 0;
    for (const Candidate& candidate : candidates_) total += weigh(candidate);
    needed = UnitsOfTopP(total, top_p);
  }
  size_t num_kept = 0;
  for (uint64_t sum = 0; sum < needed;) sum += weigh(candidates_[num_kept++]);
  candidates_.resize(num_kept);
}

uint64_t Sampler::CollectForTopP(std::span<const float> logits, float largest, float top_p) {
  // A histogram of weight over the distance from the largest logit.
  constexpr float kBinsPerNat = 4.0f;
  constexpr size_t kNumBins = 128;  // nothing deeper than 28 weighs a unit
  std::array<uint64_t, kNumBins> bins = {};
  const auto bin_of = [largest](float l) {
    return l == largest ? 0 : static_cast<size_t>((largest - l) * kBinsPerNat);
  };
  BestSamplerLoops().weights(logits, largest, weights_.data());
  uint64_t total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint64_t units = UnitsOfWeight(weights_[i]);
    if (units == 0) continue;
    bins[bin_of(logits[i])] += units;
    total += units;
  }
  const uint64_t needed = UnitsOfTopP(total, top_p);
  size_t num_bins = 0;
  for (uint64_t sum = 0; sum < needed;) sum += bins[num_bins++];
  for (size_t i = 0; i < logits.size(); ++i) {
    if (UnitsOfWeight(weights_[i]) == 0 || bin_of(logits[i]) >= num_bins) continue;
    candidates_.push_back({logits[i], static_cast<TokenId>(i)});
  }
  return needed;
}

void Sampler::KeepMinP(float largest, float min_p) {
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return !KeptByMinP(RelativeWeight(candidate.l, largest), min_p);
  });
}

uint32_t Sampler::LogprobOf(std::span<const float> logits, uint32_t num_top, SampledToken& out) {
  BATON_CHECK(logits.size() == vocab_size_, "{} logits for a vocabulary of {}", logits.size(),
              vocab_size_);
  out.has_logprob = true;
  out.num_top = 0;
  FillLogprobs(logits, num_top, out);
  const float own = logits[static_cast<size_t>(out.token)];
  return 1 + static_cast<uint32_t>(
                 std::count_if(logits.begin(), logits.end(), [own](float l) { return l > own; }));
}

void Sampler::FillLogprobs(std::span<const float> logits, uint32_t num_top, SampledToken& out) {
  const SamplerLoops& loops = BestSamplerLoops();
  const float largest = loops.largest(logits);
  const float log_sum = Log(static_cast<float>(loops.sum_exp(logits, largest)));
  const auto logprob_of = [&](float l) {
    const float logprob = (l - largest) - log_sum;
    return logprob > kLowestLogprob ? logprob : kLowestLogprob;  // also for NaN
  };
  out.logprob = logprob_of(logits[static_cast<size_t>(out.token)]);
  candidates_.clear();
  if (num_top > 0) KeepTopK(logits, num_top);
  for (const Candidate& candidate : candidates_) {
    out.top[out.num_top++] = {candidate.token, logprob_of(candidate.l)};
  }
}

}  // namespace baton::model
