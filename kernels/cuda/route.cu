// The experts of each row and their weights; a kernel for logits that choose, and one for scores.
//
// Work: one warp a row, four rows a cta. Each choice is a pass over the row's logits, which the
// first pass leaves in L1: what comes next after the last choice in the order (logit descending,
// expert ascending), so nothing records who was chosen. Bytes: 4 a logit, 8 a pair. Operations: 4
// a logit and choice, 10 shuffles a choice. Limit: latency: choices follow one another, each
// num_experts / 32 loads from L1 and the shuffles. Reached: kernels/NOTES.md.
#include <bit>
#include <string>

#include "kernels/cuda/kernel_table.h"
#include "kernels/math.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kRouteThreads = 128;
constexpr uint32_t kRouteRows = kRouteThreads / simt::kWarpSize;
static_assert(kMaxRouteTopK == 2 * simt::kWarpSize, "a lane keeps two weights");

// An expert and the number that chooses it, which is finite: its logit, or its score plus a bias.
struct Candidate {
  float logit;
  uint32_t expert;

  BATON_DEVICE bool ComesBefore(const Candidate& other) const {
    return logit > other.logit || (logit == other.logit && expert < other.expert);
  }
};

constexpr float kInfinity = std::bit_cast<float>(0x7F800000u);

BATON_DEVICE float ScoreOf(float logit) { return 1.0f / (1.0f + Exp(-logit)); }

// The first candidate of the row after `last`, the same in all lanes.
template <bool kScored>
BATON_DEVICE Candidate NextCandidate(const RouteParams& params, const float* logits,
                                     const Candidate& last) {
  Candidate best = {-kInfinity, params.num_experts};
  for (uint32_t e = simt::lane(); e < params.num_experts; e += simt::kWarpSize) {
    Candidate candidate = {logits[e], e};
    if constexpr (kScored) candidate.logit = ScoreOf(logits[e]) + params.scores.bias[e];
    if (last.ComesBefore(candidate) && candidate.ComesBefore(best)) best = candidate;
  }
  BATON_UNROLL
  for (uint32_t step = simt::kWarpSize / 2; step > 0; step /= 2) {
    const float logit = simt::shfl_xor(best.logit, step);
    const Candidate other = {logit, simt::shfl_xor(best.expert, step)};
    if (other.ComesBefore(best)) best = other;
  }
  return best;
}

BATON_DEVICE bool AllFinite(const RouteParams& params, const float* logits) {
  uint32_t others = 0;
  for (uint32_t e = simt::lane(); e < params.num_experts; e += simt::kWarpSize) {
    others |= logits[e] - logits[e] == 0.0f ? 0 : 1;
  }
  BATON_UNROLL
  for (uint32_t step = simt::kWarpSize / 2; step > 0; step /= 2) {
    others |= simt::shfl_xor(others, step);
  }
  return others == 0;
}

template <bool kScored>
BATON_DEVICE void RouteRow(const RouteParams& params) {
  simt::wait_for_previous();
  const uint32_t row = simt::block().x * kRouteRows + simt::warp();
  if (!simt::guard(row < params.num_rows)) return;
  const float* const logits = params.logits + size_t{row} * params.num_experts;
  uint32_t* const experts = params.experts + size_t{row} * params.top_k;
  float* const weights = params.weights + size_t{row} * params.top_k;
  if (!simt::guard(AllFinite(params, logits))) {
    for (uint32_t j = simt::lane(); j < params.top_k; j += simt::kWarpSize) {
      experts[j] = j;
      weights[j] = std::bit_cast<float>(0x7FC00000u);
    }
    return;
  }
  Candidate last = {kInfinity, 0};
  [[maybe_unused]] float largest = 0.0f;
  float sum = 0.0f;
  if constexpr (kScored) sum = params.scores.sum_to_one ? params.scores.least_sum : 1.0f;
  float own[2] = {0.0f, 0.0f};  // of choices lane and lane + 32
  for (uint32_t j = 0; j < params.top_k; ++j) {
    last = NextCandidate<kScored>(params, logits, last);
    float weight = 0.0f;
    if constexpr (kScored) {
      weight = ScoreOf(logits[last.expert]);
      if (params.scores.sum_to_one) sum += weight;
    } else {
      if (j == 0) largest = last.logit;
      weight = Exp(last.logit - largest);
      sum += weight;  // >= 1: the first is exactly 1
    }
    if (simt::lane() != j % simt::kWarpSize) continue;
    experts[j] = last.expert;
    if (j < simt::kWarpSize) own[0] = weight;
    if (j >= simt::kWarpSize) own[1] = weight;
  }
  const float scale = kScored ? params.scores.scale : 1.0f;
  if (simt::lane() < params.top_k) weights[simt::lane()] = own[0] / sum * scale;
  if (simt::lane() + simt::kWarpSize < params.top_k) {
    weights[simt::lane() + simt::kWarpSize] = own[1] / sum * scale;
  }
}

BATON_KERNEL(kRouteThreads) RouteKernel(RouteParams params) { RouteRow<false>(params); }
BATON_KERNEL(kRouteThreads) RouteScoredKernel(RouteParams params) { RouteRow<true>(params); }

}  // namespace

const KernelInfo kRouteInfos[2] = {{"RouteKernel", kRouteThreads, 0},
                                   {"RouteScoredKernel", kRouteThreads, 0}};

absl::Status Route(const RouteParams& params, void* stream) {
  const bool fits =
      params.top_k >= 1 && params.top_k <= params.num_experts && params.top_k <= kMaxRouteTopK;
  if (!fits) {
    return absl::InvalidArgumentError("Route: top " + std::to_string(params.top_k) + " of " +
                                      std::to_string(params.num_experts) +
                                      " experts; it takes at least 1 and at most 64");
  }
  if (params.num_rows == 0) return absl::OkStatus();
  return simt::launch({.name = "Route",
                       .grid = {(params.num_rows - 1) / kRouteRows + 1, 1, 1},
                       .num_threads = kRouteThreads,
                       .overlaps = true,
                       .stream = stream},
                      params.scores.bias == nullptr ? RouteKernel : RouteScoredKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
