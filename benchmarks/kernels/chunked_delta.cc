// Compiled for AVX-512 with products and sums fused.
//
// With G_t = the product of the decays of a chunk up to token t, S the state before the chunk:
//   A[t][s] = beta_t (k_t . k_s) G_t / G_s            for s < t
//   U = (I + A)^-1 diag(beta) V,  W = (I + A)^-1 diag(beta G) K
//   D = U - W S                                       what each token adds to v for its k
//   out = diag(G) Q S + (Q K^T, s <= t, times G_t / G_s) D
//   S   = G_C S + (K^T diag(G_C / G)) D
#include "benchmarks/kernels/chunked_delta.h"

#include <cmath>
#include <cstddef>

namespace baton::kernels {
namespace {

using V16 [[gnu::vector_size(64), gnu::aligned(4)]] = float;

constexpr uint32_t kC = kChunkTokens;
constexpr uint32_t kD = kChunkedDim;
constexpr uint32_t kLanes = 16;
constexpr uint32_t kRows = 8;     // of a tile of MatMul
constexpr uint32_t kColumns = 2;  // in vectors

V16& At(float* x) { return *reinterpret_cast<V16*>(x); }
const V16& At(const float* x) { return *reinterpret_cast<const V16*>(x); }

// Rows [0, kRows) and columns [0, 32) of out = (kAdds: out +) sign * a b; rows of a have kK
// elements, those of b and out kN.
template <uint32_t kK, uint32_t kN, bool kAdds>
void MatMulTile(const float* a, const float* b, float* out, float sign) {
  V16 sums[kRows][kColumns] = {};
  for (uint32_t k = 0; k < kK; ++k, b += kN) {
    const V16 b0 = At(b), b1 = At(b + kLanes);
#pragma GCC unroll 8
    for (uint32_t r = 0; r < kRows; ++r) {
      const float x = a[size_t{r} * kK + k];
      sums[r][0] += x * b0;
      sums[r][1] += x * b1;
    }
  }
#pragma GCC unroll 8
  for (uint32_t r = 0; r < kRows; ++r) {
    for (uint32_t c = 0; c < kColumns; ++c) {
      V16& to = At(out + size_t{r} * kN + c * kLanes);
      to = kAdds ? to + sign * sums[r][c] : sign * sums[r][c];
    }
  }
}

// out[kM][kN] = (kAdds: out +) sign * a[kM][kK] b[kK][kN], rows side by side.
template <uint32_t kM, uint32_t kK, uint32_t kN, bool kAdds>
void MatMul(const float* a, const float* b, float* out, float sign = 1.0f) {
  for (uint32_t j = 0; j < kN; j += kColumns * kLanes) {
    for (uint32_t i = 0; i < kM; i += kRows) {
      MatMulTile<kK, kN, kAdds>(a + size_t{i} * kK, b + j, out + size_t{i} * kN + j, sign);
    }
  }
}

// x[kC][2 kD] = (I + a)^-1 x, a strictly below its diagonal. Four vectors of columns at a time.
void Solve(const float* a, float* x) {
  constexpr uint32_t kVectors = 4;
  for (uint32_t j = 0; j < 2 * kD; j += kVectors * kLanes) {
    for (uint32_t t = 1; t < kC; ++t) {
      float* row = x + size_t{t} * 2 * kD + j;
      V16 sums[kVectors];
      for (uint32_t c = 0; c < kVectors; ++c) sums[c] = At(row + c * kLanes);
      for (uint32_t s = 0; s < t; ++s) {
        const float factor = a[size_t{t} * kC + s];
        const float* from = x + size_t{s} * 2 * kD + j;
        for (uint32_t c = 0; c < kVectors; ++c) sums[c] -= factor * At(from + c * kLanes);
      }
      for (uint32_t c = 0; c < kVectors; ++c) At(row + c * kLanes) = sums[c];
    }
  }
}

struct Scratch {
  alignas(64) float q[kC * kD], k[kC * kD], k_turned[kD * kC];
  float products[kC * kC], reads[kC * kC];
  float both[kC * 2 * kD];  // U | W
  float u[kC * kD], w[kC * kD];
  float decays[kC], inverse[kC];
};

void Chunk(const ChunkedDeltaArgs& args, uint32_t first, Scratch& x) {
  float sum = 0;
  for (uint32_t t = 0; t < kC; ++t) {
    sum += args.log_decay[first + t];
    x.decays[t] = std::exp(sum);
    x.inverse[t] = std::exp(-sum);
  }
  for (uint32_t t = 0; t < kC; ++t) {
    const size_t at = size_t{first + t} * args.stride;
    const float beta = args.beta[first + t];
    for (uint32_t i = 0; i < kD; ++i) {
      x.q[t * kD + i] = args.q[at + i] * x.decays[t];
      x.k[t * kD + i] = args.k[at + i] * x.decays[t] * beta;
      x.k_turned[i * kC + t] = args.k[at + i] * x.inverse[t];
      x.both[t * 2 * kD + i] = args.v[at + i] * beta;
      x.both[t * 2 * kD + kD + i] = x.k[t * kD + i];
    }
  }
  MatMul<kC, kD, kC, false>(x.k, x.k_turned, x.products);
  Solve(x.products, x.both);
  for (uint32_t t = 0; t < kC; ++t) {
    for (uint32_t i = 0; i < kD; ++i) {
      x.u[t * kD + i] = x.both[t * 2 * kD + i];
      x.w[t * kD + i] = x.both[t * 2 * kD + kD + i];
    }
  }
  MatMul<kC, kD, kD, true>(x.w, args.state, x.u, -1.0f);
  MatMul<kC, kD, kC, false>(x.q, x.k_turned, x.reads);
  for (uint32_t t = 0; t < kC; ++t) {
    for (uint32_t s = t + 1; s < kC; ++s) x.reads[t * kC + s] = 0;
  }
  float* out = x.both;  // [kC][kD]
  MatMul<kC, kD, kD, false>(x.q, args.state, out);
  MatMul<kC, kC, kD, true>(x.reads, x.u, out);
  for (uint32_t t = 0; t < kC; ++t) {
    for (uint32_t i = 0; i < kD; ++i) {
      args.out[size_t{first + t} * args.stride + i] = out[t * kD + i];
    }
  }
  const float whole = x.decays[kC - 1];
  for (float& key : x.k_turned) key *= whole;
  for (uint32_t i = 0; i < kD * kD; ++i) args.state[i] *= whole;
  MatMul<kD, kC, kD, true>(x.k_turned, x.u, args.state);
}

}  // namespace

void ChunkedDelta(const ChunkedDeltaArgs& args) {
  thread_local Scratch scratch;
  for (uint32_t first = 0; first < args.num_tokens; first += kC) Chunk(args, first, scratch);
}

}  // namespace baton::kernels
