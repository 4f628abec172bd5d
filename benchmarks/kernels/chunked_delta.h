// The form of a gated delta net that computes chunks of tokens as products of matrices: what the
// plain recurrent form of kernels/cpu/gated_delta.h is measured against. Its sums depend on where
// chunks begin, so it serves nobody. Needs AVX-512.
#ifndef BATON_BENCHMARKS_KERNELS_CHUNKED_DELTA_H_
#define BATON_BENCHMARKS_KERNELS_CHUNKED_DELTA_H_

#include <cstdint>

namespace baton::kernels {

inline constexpr uint32_t kChunkTokens = 64;
inline constexpr uint32_t kChunkedDim = 128;  // of heads of q, k and v

// One head of one sequence. Rows of q, k, v and out lie `stride` floats apart.
struct ChunkedDeltaArgs {
  const float* q;
  const float* k;
  const float* v;
  const float* beta;       // [num_tokens]
  const float* log_decay;  // [num_tokens]
  uint32_t num_tokens;     // a multiple of kChunkTokens
  uint32_t stride;
  float* state;  // [kChunkedDim][kChunkedDim], k by v; in and out
  float* out;
};

// S = S * decay; S += k (x) beta * (v - k S); out = q S, for each token. Any thread.
void ChunkedDelta(const ChunkedDeltaArgs& args);

}  // namespace baton::kernels

#endif  // BATON_BENCHMARKS_KERNELS_CHUNKED_DELTA_H_
