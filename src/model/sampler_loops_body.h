// The body of SamplerLoops, written so that a compiler vectorises it. Included once by each
// sampler_loops_*.cc, inside a namespace of its own so that the copies stay apart.
//
// flatten: everything is inlined, so that no function compiled for AVX2 is left for the linker to
// share with code that runs on machines without it.
#ifndef BATON_MODEL_SAMPLER_LOOPS_BODY_H_
#define BATON_MODEL_SAMPLER_LOOPS_BODY_H_

#define BATON_FLATTEN __attribute__((flatten))

inline constexpr size_t kLanes = 16;
// Lanes of a largest logit. gcc 12 unrolls a loop of 16 and keeps each lane as a scalar: 7.0 us for
// 49,152 logits instead of 1.8 (Zen 4, AVX2).
inline constexpr size_t kWideLanes = 64;
inline constexpr size_t kChunk =
    512;                              // 32 additions a lane: rounding error below 2e-6 of the chunk
inline constexpr size_t kChunks = 4;  // summed side by side: no addition waits for the one before

BATON_FLATTEN inline float Largest(std::span<const float> logits) {
  float lanes[kWideLanes];
  for (float& lane : lanes) lane = kernels::kMinusInfinity;
  const size_t full = logits.size() / kWideLanes * kWideLanes;
  for (size_t i = 0; i < full; i += kWideLanes) {
    for (size_t j = 0; j < kWideLanes; ++j) {
      lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
    }
  }
  for (size_t i = full; i < logits.size(); ++i) {
    lanes[i - full] = logits[i] > lanes[i - full] ? logits[i] : lanes[i - full];
  }
  for (size_t width = kWideLanes / 2; width > 0; width /= 2) {
    for (size_t j = 0; j < width; ++j) {
      lanes[j] = lanes[width + j] > lanes[j] ? lanes[width + j] : lanes[j];
    }
  }
  return lanes[0];
}

BATON_FLATTEN inline size_t FirstEqual(std::span<const float> logits, float value) {
  const size_t full = logits.size() / kLanes * kLanes;
  size_t i = 0;
  for (; i < full; i += kLanes) {
    int found = 0;
    for (size_t j = 0; j < kLanes; ++j) found |= logits[i + j] == value;
    if (found != 0) break;
  }
  for (; i < logits.size(); ++i) {
    if (logits[i] == value) return i;
  }
  return logits.size();
}

BATON_FLATTEN inline uint32_t NumAbove(std::span<const float> logits, float value) {
  uint32_t lanes[kLanes] = {};
  const size_t full = logits.size() / kLanes * kLanes;
  for (size_t i = 0; i < full; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += logits[i + j] > value ? 1u : 0u;
  }
  uint32_t count = 0;
  for (size_t i = full; i < logits.size(); ++i) count += logits[i] > value ? 1u : 0u;
  for (uint32_t lane : lanes) count += lane;
  return count;
}

BATON_FLATTEN inline void Divide(std::span<const float> logits, float temperature, float* out) {
  for (size_t i = 0; i < logits.size(); ++i) {
    const float l = logits[i];
    out[i] = l == l ? l / temperature : kernels::kMinusInfinity;
  }
}

// Adds exp(l - largest) of kLanes logits of each chunk.
BATON_FLATTEN inline void AddWeights(const float* chunks, float largest,
                                     float (&lanes)[kChunks][kLanes]) {
  for (size_t c = 0; c < kChunks; ++c) {
    for (size_t j = 0; j < kLanes; ++j) {
      lanes[c][j] += kernels::ExpOfNonPositive(chunks[c * kChunk + j] - largest);
    }
  }
}

BATON_FLATTEN inline double SumExp(std::span<const float> logits, float largest) {
  constexpr size_t kSize = kChunks * kChunk;
  float last[kSize];  // the rest of a row, filled up with what has no weight
  double total = 0.0;
  for (size_t begin = 0; begin < logits.size(); begin += kSize) {
    const float* chunks = logits.data() + begin;
    const size_t rest = logits.size() - begin;
    if (rest < kSize) {
      for (size_t i = 0; i < rest; ++i) last[i] = chunks[i];
      for (size_t i = rest; i < kSize; ++i) last[i] = kernels::kMinusInfinity;
      chunks = last;
    }
    float lanes[kChunks][kLanes] = {};
    for (size_t i = 0; i < kChunk; i += kLanes) AddWeights(chunks + i, largest, lanes);
    double sums[kChunks] = {};
    for (size_t j = 0; j < kLanes; ++j) {
      for (size_t c = 0; c < kChunks; ++c) sums[c] += double{lanes[c][j]};
    }
    for (double sum : sums) total += sum;
  }
  return total;
}

BATON_FLATTEN inline void Weights(std::span<const float> logits, float largest, float* out) {
  for (size_t i = 0; i < logits.size(); ++i) out[i] = kernels::RelativeWeight(logits[i], largest);
}

BATON_FLATTEN inline int32_t BestGumbel(std::span<const float> logits,
                                        const kernels::GumbelKey& key) {
  const float largest = Largest(logits);
  if (largest == kernels::kMinusInfinity) return -1;
  // A good score to begin with: few blocks have a token that may reach it.
  size_t best = FirstEqual(logits, largest);
  float best_score = largest + kernels::GumbelAt(key, static_cast<uint32_t>(best));
  uint32_t words[kernels::kGumbelBlock];
  for (size_t begin = 0; begin < logits.size(); begin += kernels::kGumbelBlock) {
    const size_t rest = logits.size() - begin;
    const size_t size = rest < kernels::kGumbelBlock ? rest : kernels::kGumbelBlock;
    const uint32_t first_call =
        static_cast<uint32_t>(begin) / kernels::kGumbelBlock * kernels::kGumbelCalls;
    for (uint32_t j = 0; j < kernels::kGumbelCalls; ++j) {
      const std::array<uint32_t, 4> four = kernels::GumbelWords(key, first_call + j);
      words[j] = four[0];
      words[kernels::kGumbelCalls + j] = four[1];
      words[2 * kernels::kGumbelCalls + j] = four[2];
      words[3 * kernels::kGumbelCalls + j] = four[3];
    }
    int may_win = 0;
    for (size_t i = 0; i < size; ++i) {
      may_win |= logits[begin + i] + kernels::GumbelBound(words[i]) >= best_score;
    }
    if (may_win == 0) continue;
    for (size_t i = 0; i < size; ++i) {
      const float score = logits[begin + i] + kernels::GumbelFromWord(words[i]);
      if (score > best_score || (score == best_score && begin + i < best)) {
        best_score = score;
        best = begin + i;
      }
    }
  }
  return static_cast<int32_t>(best);
}

static constexpr SamplerLoops kLoops = {&Largest, &FirstEqual, &NumAbove,  &Divide,
                                        &SumExp,  &Weights,    &BestGumbel};

#undef BATON_FLATTEN

#endif  // BATON_MODEL_SAMPLER_LOOPS_BODY_H_
