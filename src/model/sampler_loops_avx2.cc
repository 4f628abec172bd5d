// SamplerLoops compiled with AVX2. Inline functions of the headers may be emitted here with AVX2
// code, so nothing but the table leaves this file.
#include "src/base/instruction_sets.h"
#include "src/model/sampler_loops.h"

namespace baton::model {
namespace sampler_avx2 {
#include "src/model/sampler_loops_body.h"
}  // namespace sampler_avx2

const SamplerLoops* Avx2SamplerLoops() { return RunsAvx2() ? &sampler_avx2::kLoops : nullptr; }

}  // namespace baton::model
