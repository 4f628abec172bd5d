#include "src/obs/trace_sampler.h"

namespace baton::obs {

bool TraceSampler::Records(const SpanIds& parent, uint64_t trace_lo) const {
  if (asks_parent && parent.valid()) return parent.sampled;
  constexpr double kNumIds = 18446744073709551616.0;  // 2^64
  return share >= 1 || static_cast<double>(trace_lo) < share * kNumIds;
}

}  // namespace baton::obs
