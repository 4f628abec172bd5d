// SamplerLoops compiled with AVX-512. As in sampler_loops_avx2.cc, nothing but the table leaves
// this file.
#include "src/base/instruction_sets.h"
#include "src/model/sampler_loops.h"

namespace baton::model {
namespace sampler_avx512 {
#include "src/model/sampler_loops_body.h"
}  // namespace sampler_avx512

const SamplerLoops* Avx512SamplerLoops() {
  return RunsAvx512() ? &sampler_avx512::kLoops : nullptr;
}

}  // namespace baton::model
