// SamplerLoops compiled with AVX-512. As in sampler_loops_avx2.cc, nothing but the table leaves
// this file.
#include "src/model/sampler_loops.h"

namespace baton::model {
namespace sampler_avx512 {
#include "src/model/sampler_loops_body.h"
}  // namespace sampler_avx512

const SamplerLoops* Avx512SamplerLoops() {
  const bool runs =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512vnni") != 0;
  return runs ? &sampler_avx512::kLoops : nullptr;
}

}  // namespace baton::model
