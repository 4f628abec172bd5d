#include "kernels/cuda/experts_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cuda/kernel_reference.h"
#include "kernels/math.h"

namespace baton::kernels::cuda {

namespace {

float ScoreOf(float logit) { return 1.0f / (1.0f + Exp(-logit)); }

}  // namespace

void ReferenceRoute(const RouteParams& params) {
  for (size_t row = 0; row < params.num_rows; ++row) {
    const float* const logits = params.logits + row * params.num_experts;
    uint32_t* const experts = params.experts + row * params.top_k;
    float* const weights = params.weights + row * params.top_k;
    const bool is_finite = std::all_of(logits, logits + params.num_experts,
                                       [](float logit) { return std::isfinite(logit); });
    const RouteScores& scores = params.scores;
    const bool is_scored = scores.bias != nullptr;
    const auto choice_of = [&](uint32_t e) {
      return is_scored ? ScoreOf(logits[e]) + scores.bias[e] : logits[e];
    };
    std::vector<uint32_t> order(params.num_experts);
    std::iota(order.begin(), order.end(), 0u);
    if (is_finite) {
      std::stable_sort(order.begin(), order.end(),
                       [&](uint32_t a, uint32_t b) { return choice_of(a) > choice_of(b); });
    }
    float sum = !is_scored ? 0.0f : scores.sum_to_one ? scores.least_sum : 1.0f;
    for (size_t j = 0; j < params.top_k; ++j) {
      experts[j] = order[j];
      weights[j] = is_scored ? ScoreOf(logits[order[j]]) : Exp(logits[order[j]] - logits[order[0]]);
      if (!is_scored || scores.sum_to_one) sum += weights[j];
    }
    const float scale = is_scored ? scores.scale : 1.0f;
    for (size_t j = 0; j < params.top_k; ++j) {
      weights[j] = is_finite ? weights[j] / sum * scale : std::numeric_limits<float>::quiet_NaN();
    }
  }
}

void ReferenceSortPairs(const SortPairsParams& params) {
  uint32_t slot = 0;
  *params.num_tiles = 0;
  for (uint32_t expert = 0; expert < params.num_experts; ++expert) {
    const uint32_t begin = slot;
    params.begins[expert] = begin;
    for (uint32_t pair = 0; pair < params.num_pairs; ++pair) {
      if (params.experts[pair] != expert) continue;
      params.slots[pair] = slot;
      params.slot_rows[slot++] = pair / params.top_k;
    }
    for (uint32_t first = begin; first < slot; first += params.tile_rows) {
      params.tiles[(*params.num_tiles)++] = {expert, first,
                                             std::min(slot - first, params.tile_rows)};
    }
  }
}

void ReferenceGroupedGemmBits(const GroupedGemmParams& params, simt::TensorCore core) {
  for (uint32_t i = 0; i < *params.num_tiles; ++i) {
    const ExpertTile& tile = params.tiles[i];
    for (size_t slot = tile.first_slot; slot < tile.first_slot + tile.num_slots; ++slot) {
      const size_t row = params.slot_rows == nullptr ? slot : params.slot_rows[slot];
      ReferenceGemmBits({.x = params.x + row * params.k,
                         .w = params.w + size_t{tile.expert} * params.n * params.k,
                         .y_bf16 = params.y + slot * params.n,
                         .m = 1,
                         .n = params.n,
                         .k = params.k},
                        core);
    }
  }
}

void ReferenceCombine(const CombineParams& params) {
  for (size_t row = 0; row < params.num_rows; ++row) {
    for (size_t i = 0; i < params.dim; ++i) {
      float sum = 0.0f;
      for (size_t pair = row * params.top_k; pair < (row + 1) * params.top_k; ++pair) {
        const Bf16 y = params.y[size_t{params.slots[pair]} * params.dim + i];
        sum = std::fma(params.weights[pair], FloatFromBf16(y.bits), sum);
      }
      const size_t at = row * params.dim + i;
      if (params.out_float != nullptr) {
        params.out_float[at] = sum;
      } else {
        params.out[at].bits = Bf16FromFloat(sum);
      }
    }
  }
}

}  // namespace baton::kernels::cuda
