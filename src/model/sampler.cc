#include "src/model/sampler.h"

#include <algorithm>
#include <bit>

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

uint64_t UnitsOf(float l, float largest) { return UnitsOfWeight(RelativeWeight(l, largest)); }

// The weights of a vocabulary by their depth below the largest logit. A logit that is larger is
// never deeper, so the prefix that top_p keeps ends within one bin: only that one needs an order.
// Few weights lie deep, and top_p rarely ends there: they are put into bins when one is asked for.
class WeightBins {
 public:
  static constexpr size_t kBlock = 512;

  WeightBins(std::span<const float> logits, float largest) : logits_(logits), largest_(largest) {
    ForEachWeight([this](float l, uint64_t units) {
      total_ += units;
      if (DepthOf(l) < kShallow) bins_[BinOf(l)] += units;
    });
  }

  static std::span<const float> BlockAt(std::span<const float> logits, size_t begin) {
    return logits.subspan(begin, std::min(kBlock, logits.size() - begin));
  }
  // In bins; infinite for -infinity, NaN for NaN.
  float DepthOf(float l) const { return l == largest_ ? 0.0f : (largest_ - l) * kBinsPerNat; }

  uint64_t total() const { return total_; }
  // The sum of a bin. Not const: a deep one may have to be filled.
  uint64_t at(size_t bin) {
    if (static_cast<float>(bin) >= kShallow && !has_deep_) AddDeep();
    return bins_[bin];
  }

 private:
  static constexpr float kBinsPerNat = 4.0f;
  static constexpr size_t kNumBins = 128;   // nothing deeper than 28 nats weighs a unit
  static constexpr float kShallow = 48.0f;  // 12 nats: a vocabulary of 160,000 weighs 1 below

  static_assert(kernels::kDeepest * kBinsPerNat < static_cast<float>(kNumBins));

  size_t BinOf(float l) const { return static_cast<size_t>(DepthOf(l)); }

  template <typename Take>
  void ForEachWeight(const Take& take) const {
    std::array<float, kBlock> weights;
    const SamplerLoops& loops = BestSamplerLoops();
    for (size_t begin = 0; begin < logits_.size(); begin += kBlock) {
      const auto block = BlockAt(logits_, begin);
      loops.weights(block, largest_, weights.data());
      for (size_t i = 0; i < block.size(); ++i) take(block[i], UnitsOfWeight(weights[i]));
    }
  }

  void AddDeep() {
    has_deep_ = true;
    ForEachWeight([this](float l, uint64_t units) {
      if (units > 0 && !(DepthOf(l) < kShallow)) bins_[BinOf(l)] += units;
    });
  }

  const std::span<const float> logits_;
  const float largest_;
  std::array<uint64_t, kNumBins> bins_ = {};
  uint64_t total_ = 0;
  bool has_deep_ = false;
};

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
      adjusted_(vocab_size) {
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
  // Step 4 at once: what the grammar closes is -infinity after steps 1 to 3 too.
  if (query.mask.empty()) {
    std::copy(query.logits.begin(), query.logits.end(), adjusted_.begin());
  } else {
    CopyAllowed(query.logits, query.mask);
  }
  for (const SamplerState::Seen& seen : state.seen()) {
    float& l = adjusted_[static_cast<size_t>(seen.token)];
    l = Penalised(l, params.repetition_penalty);
    l = l - params.frequency_penalty * static_cast<float>(seen.num_output);
    l = l - (seen.num_output > 0 ? params.presence_penalty : 0.0f);
  }
  for (const LogitBias& entry : params.logit_bias) {
    adjusted_[static_cast<size_t>(entry.token)] += entry.bias;
  }
  if (state.num_output() < params.min_tokens) MaskEndOfGeneration(query);
  return adjusted_;
}

void Sampler::CopyAllowed(std::span<const float> logits, std::span<const uint32_t> mask) {
  constexpr size_t kBits = 32;
  for (size_t first = 0; first < logits.size(); first += kBits) {
    const uint32_t word = first / kBits < mask.size() ? mask[first / kBits] : 0;
    float* const out = adjusted_.data() + first;
    const size_t count = std::min(kBits, logits.size() - first);
    // Most words allow all or nothing; the logits of nothing are not read.
    if (word == 0) {
      std::fill_n(out, count, kMinusInfinity);
      continue;
    }
    std::copy_n(logits.data() + first, count, out);
    for (uint32_t closed = ~word; closed != 0; closed &= closed - 1) {
      const auto bit = static_cast<size_t>(std::countr_zero(closed));
      if (bit < count) out[bit] = kMinusInfinity;
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
  if (top_k) {
    candidates_.resize(params.top_k);
    candidates_.resize(TakeLargest(logits, candidates_));
  }
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

size_t Sampler::TakeLargest(std::span<const float> logits, std::span<Candidate> best) {
  // A heap whose front is the worst of the best so far; few blocks have a logit above it.
  constexpr size_t kBlock = 256;
  const SamplerLoops& loops = BestSamplerLoops();
  std::span<Candidate> heap;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    const bool is_full = heap.size() == best.size();
    if (is_full && !(loops.largest(block) > heap.front().l)) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      const Candidate candidate = {block[i], static_cast<TokenId>(begin + i)};
      if (!(candidate.l > kMinusInfinity)) continue;  // -infinity or NaN
      if (heap.size() < best.size()) {
        heap = best.first(heap.size() + 1);
      } else if (candidate.l > heap.front().l) {
        std::pop_heap(heap.begin(), heap.end(), Before<Candidate>);
      } else {
        continue;
      }
      heap.back() = candidate;
      std::push_heap(heap.begin(), heap.end(), Before<Candidate>);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), Before<Candidate>);
  return heap.size();
}

void Sampler::KeepTopP(std::span<const float> logits, float largest, float top_p) {
  if (candidates_.empty()) return KeepTopPOfAll(logits, largest, top_p);
  // Sorted by TakeLargest.
  uint64_t total = 0;
  for (const Candidate& candidate : candidates_) total += UnitsOf(candidate.l, largest);
  KeepUnits(0, largest, UnitsOfTopP(total, top_p));
}

void Sampler::KeepUnits(size_t num_kept, float largest, uint64_t units) {
  for (uint64_t sum = 0; sum < units;) sum += UnitsOf(candidates_[num_kept++].l, largest);
  candidates_.resize(num_kept);
}

void Sampler::KeepTopPOfAll(std::span<const float> logits, float largest, float top_p) {
  WeightBins bins(logits, largest);
  const uint64_t needed = UnitsOfTopP(bins.total(), top_p);
  uint64_t sum = 0;  // of the bins that are kept whole
  size_t border = 0;
  while (sum + bins.at(border) < needed) sum += bins.at(border++);
  const auto border_depth = static_cast<float>(border);
  const SamplerLoops& loops = BestSamplerLoops();
  for (size_t begin = 0; begin < logits.size(); begin += WeightBins::kBlock) {
    const auto block = WeightBins::BlockAt(logits, begin);
    if (!(bins.DepthOf(loops.largest(block)) < border_depth + 1.0f)) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      const float l = block[i];
      if (!(bins.DepthOf(l) < border_depth + 1.0f)) continue;  // also a NaN
      if (UnitsOf(l, largest) > 0) candidates_.push_back({l, static_cast<TokenId>(begin + i)});
    }
  }
  const auto first_at_border =
      std::partition(candidates_.begin(), candidates_.end(),
                     [&](const Candidate& c) { return bins.DepthOf(c.l) < border_depth; });
  std::sort(first_at_border, candidates_.end(), Before<Candidate>);
  const auto num_whole = static_cast<size_t>(first_at_border - candidates_.begin());
  KeepUnits(num_whole, largest, needed - sum);
}

void Sampler::KeepMinP(float largest, float min_p) {
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return !KeptByMinP(RelativeWeight(candidate.l, largest), min_p);
  });
}

uint32_t Sampler::LogprobOf(std::span<const float> logits, uint32_t num_top, SampledToken& out) {
  BATON_CHECK(static_cast<size_t>(out.token) < logits.size(), "token {} of a vocabulary of {}",
              out.token, logits.size());
  out.has_logprob = true;
  out.num_top = 0;
  FillLogprobs(logits, num_top, out);
  return 1 + BestSamplerLoops().num_above(logits, logits[static_cast<size_t>(out.token)]);
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
  if (num_top == 0) return;
  std::array<Candidate, limits::kMaxTopLogprobs> best;
  size_t num_best = 0;
  if (num_top > 1) {
    num_best = TakeLargest(logits, std::span(best).first(num_top));
  } else if (largest > kMinusInfinity) {
    best[num_best++] = {largest, static_cast<TokenId>(loops.first_equal(logits, largest))};
  }
  for (const Candidate& candidate : std::span(best).first(num_best)) {
    out.top[out.num_top++] = {candidate.token, logprob_of(candidate.l)};
  }
}

}  // namespace baton::model
