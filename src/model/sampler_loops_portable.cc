// SamplerLoops for the baseline instruction set, and the choice among all.
#include "src/model/sampler_loops.h"

namespace baton::model {
namespace sampler_portable {
#include "src/model/sampler_loops_body.h"
}  // namespace sampler_portable

const SamplerLoops& PortableSamplerLoops() { return sampler_portable::kLoops; }

const SamplerLoops& BestSamplerLoops() {
  static const SamplerLoops* const best = [] {
    for (const SamplerLoops* loops : {Avx512SamplerLoops(), Avx2SamplerLoops()}) {
      if (loops != nullptr) return loops;
    }
    return &PortableSamplerLoops();
  }();
  return *best;
}

}  // namespace baton::model
