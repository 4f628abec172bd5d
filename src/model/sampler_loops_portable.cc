// SamplerLoops for the baseline instruction set, and the choice between the two.
#include "src/model/sampler_loops.h"

namespace baton::model {
namespace sampler_portable {
#include "src/model/sampler_loops_body.h"
}  // namespace sampler_portable

const SamplerLoops& PortableSamplerLoops() { return sampler_portable::kLoops; }

const SamplerLoops& BestSamplerLoops() {
  static const SamplerLoops* const best =
      Avx2SamplerLoops() != nullptr ? Avx2SamplerLoops() : &PortableSamplerLoops();
  return *best;
}

}  // namespace baton::model
