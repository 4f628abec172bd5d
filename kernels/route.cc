#include "kernels/route.h"

#include <limits>

#include "kernels/math.h"

namespace baton::kernels {

using device::TaskRange;
using device::ThreadPool;

namespace {

// Comparisons of one task: fewer stay on the calling thread.
constexpr uint32_t kRouteGrain = 16384;

bool IsFinite(float x) { return x - x == 0.0f; }

bool Contains(const uint32_t* experts, uint32_t count, uint32_t expert) {
  for (uint32_t i = 0; i < count; ++i) {
    if (experts[i] == expert) return true;
  }
  return false;
}

// The expert of the largest logit that is not among the first `count` of `experts`; of equal ones
// the lowest. With NaN in the row any that is left: the weights say so.
uint32_t NextExpert(const RouteArgs& args, const float* logits, const uint32_t* experts,
                    uint32_t count) {
  uint32_t best = args.num_experts;
  for (uint32_t e = 0; e < args.num_experts; ++e) {
    if (best < args.num_experts && !(logits[e] > logits[best])) continue;
    if (!Contains(experts, count, e)) best = e;
  }
  return best;
}

void RouteRow(const RouteArgs& args, uint32_t row) {
  const float* logits = args.logits + size_t{row} * args.num_experts;
  uint32_t* experts = args.experts + size_t{row} * args.top_k;
  float* weights = args.weights + size_t{row} * args.top_k;
  bool finite = true;
  for (uint32_t e = 0; e < args.num_experts; ++e) finite = finite && IsFinite(logits[e]);
  float sum = 0.0f;
  for (uint32_t j = 0; j < args.top_k; ++j) {
    experts[j] = NextExpert(args, logits, experts, j);
    weights[j] = Exp(logits[experts[j]] - logits[experts[0]]);
    sum += weights[j];  // >= 1: the first is exactly 1
  }
  for (uint32_t j = 0; j < args.top_k; ++j) {
    weights[j] = finite ? weights[j] / sum : std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace

void RouteRows(ThreadPool& pool, const RouteArgs& args) {
  const uint32_t min_rows = 1 + kRouteGrain / (args.num_experts * args.top_k);
  pool.RunRanges(args.rows, min_rows, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    for (uint32_t row = range.begin; row < range.end; ++row) RouteRow(args, row);
  });
}

}  // namespace baton::kernels
