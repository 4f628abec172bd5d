// The body of SamplerLoops, written so that a compiler vectorises it. Included once by each
// sampler_loops_*.cc, inside a namespace of its own so that the copies stay apart.
//
// flatten: everything is inlined, so that no function compiled for AVX2 is left for the linker to
// share with code that runs on machines without it.
#ifndef BATON_MODEL_SAMPLER_LOOPS_BODY_H_
#define BATON_MODEL_SAMPLER_LOOPS_BODY_H_

#define BATON_FLATTEN __attribute__((flatten))

inline constexpr size_t kLanes = 16;
inline constexpr size_t kChunk =
    512;  // 32 additions a lane: rounding error below 2e-6 of the chunk

BATON_FLATTEN inline float Largest(std::span<const float> logits) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = kMinusInfinity;
  const size_t full = logits.size() / kLanes * kLanes;
  for (size_t i = 0; i < full; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
    }
  }
  for (size_t i = full; i < logits.size(); ++i) {
    lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  }
  float best = kMinusInfinity;
  for (float lane : lanes) best = lane > best ? lane : best;
  return best;
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

BATON_FLATTEN inline void Divide(std::span<const float> logits, float temperature, float* out) {
  for (size_t i = 0; i < logits.size(); ++i) {
    const float l = logits[i];
    out[i] = l == l ? l / temperature : kMinusInfinity;
  }
}

// Exp(l - largest), 0 for a NaN.
inline float Weight(float l, float largest) {
  const float e = Exp(l - largest);
  return e == e ? e : 0.0f;
}

BATON_FLATTEN inline double SumExp(std::span<const float> logits, float largest) {
  float weights[kChunk];
  double total = 0.0;
  for (size_t begin = 0; begin < logits.size(); begin += kChunk) {
    const size_t rest = logits.size() - begin;
    const size_t size = rest < kChunk ? rest : kChunk;
    for (size_t i = 0; i < size; ++i) weights[i] = Weight(logits[begin + i], largest);
    for (size_t i = size; i < kChunk; ++i) weights[i] = 0.0f;
    float lanes[kLanes] = {};
    for (size_t i = 0; i < kChunk; i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) lanes[j] += weights[i + j];
    }
    double sum = 0.0;
    for (float lane : lanes) sum += double{lane};
    total += sum;
  }
  return total;
}

BATON_FLATTEN inline void Weights(std::span<const float> logits, float largest, float* out) {
  for (size_t i = 0; i < logits.size(); ++i) out[i] = Weight(logits[i], largest);
}

BATON_FLATTEN inline int32_t BestGumbel(std::span<const float> logits, const GumbelKey& key) {
  constexpr size_t kBlock = 64;
  uint32_t words[kBlock];
  float scores[kBlock];
  float best_score = kMinusInfinity;
  int32_t best = -1;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t rest = logits.size() - begin;
    const size_t size = rest < kBlock ? rest : kBlock;
    const uint32_t first = static_cast<uint32_t>(begin);
    for (uint32_t i = 0; i < kBlock; ++i) {
      words[i] = Philox4x32({key.output_index, key.choice, first + i, 0}, key.key)[0];
    }
    for (size_t i = 0; i < kBlock; ++i) scores[i] = GumbelFromWord(words[i]);
    for (size_t i = 0; i < size; ++i) {
      const float score = logits[begin + i] + scores[i];
      if (score > best_score) {
        best_score = score;
        best = static_cast<int32_t>(begin + i);
      }
    }
  }
  return best;
}

static constexpr SamplerLoops kLoops = {&Largest, &FirstEqual, &Divide,
                                        &SumExp,  &Weights,    &BestGumbel};

#undef BATON_FLATTEN

#endif  // BATON_MODEL_SAMPLER_LOOPS_BODY_H_
