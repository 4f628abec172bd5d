#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kv_piece.h"
#include "kernels/reference/reference_math.h"

namespace baton::kernels {

using device::ThreadPool;
using kv::KvLayout;

namespace {

constexpr uint32_t kTileKeys = 64;
constexpr uint32_t kSplitKeys = 256;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Running result of one query: rule (3)'s m, l and acc.
struct State {
  explicit State(uint32_t dim) : acc(dim, 0.0f) {}
  float max = -kInfinity;
  float lanes[16] = {};
  std::vector<float> acc;
};

// One query head of one row.
struct Query {
  const AttentionArgs& args;
  const AttentionSpan& span;
  uint32_t kv_head;
  std::vector<float> q;  // scaled

  float Key(uint32_t key, uint32_t d) const { return Element(key, d, 0); }
  float Value(uint32_t key, uint32_t d) const {
    return Element(key, d, args.value_dim > 0 ? 0 : 1);
  }
  // Without the scale; in q8 of the turned row.
  float Element(uint32_t key, uint32_t d, uint32_t which) const {
    const KvLayout& layout = *args.kv.layout;
    const uint32_t token = key % layout.block_size;
    const size_t index = which == 0 ? KIndex(layout, token, d) : VIndex(layout, token, d);
    return LoadKv(layout.dtype, Piece(key, which), index);
  }
  // 1 where rows have none.
  float Scale(uint32_t key, uint32_t d, uint32_t which) const {
    return KvScale(*args.kv.layout, Piece(key, which), key % args.kv.layout->block_size, d);
  }
  // Elements of a row that have one scale.
  uint32_t SegmentDims() const {
    return args.kv.layout->dtype == kv::KvDtype::kQ8 ? kv::kQ8SegmentDims
                                                     : static_cast<uint32_t>(q.size());
  }
  const std::byte* Piece(uint32_t key, uint32_t which) const {
    const uint32_t block = span.kv.blocks[key / args.kv.layout->block_size];
    return args.kv.Piece(block, args.layer, which, kv_head);
  }
};

float Score(const Query& query, uint32_t key) {
  const uint32_t dim = static_cast<uint32_t>(query.q.size());
  float score = 0.0f;
  for (uint32_t begin = 0; begin < dim; begin += query.SegmentDims()) {
    float sum = 0.0f;
    for (uint32_t d = begin; d < std::min(begin + query.SegmentDims(), dim); ++d) {
      sum = std::fma(query.q[d], query.Key(key, d), sum);
    }
    score = std::fma(sum, query.Scale(key, begin, 0), score);
  }
  return score;
}

void AddTile(const Query& query, uint32_t begin, uint32_t end, State* state) {
  std::vector<float> scores;
  float max = state->max;
  for (uint32_t key = begin; key < end; ++key) {
    scores.push_back(Score(query, key));
    if (scores.back() > max) max = scores.back();
  }
  if (max > state->max) {
    const float factor = ReferenceExp(state->max - max);
    for (float& lane : state->lanes) lane *= factor;
    for (float& value : state->acc) value *= factor;
    state->max = max;
  }
  for (uint32_t key = begin; key < end; ++key) {
    const float e = ReferenceExp(scores[key - begin] - max);
    state->lanes[key % 16] += e;
    for (uint32_t d = 0; d < state->acc.size(); ++d) {
      const float weight = e * query.Scale(key, d, 1);
      state->acc[d] = std::fma(weight, query.Value(key, d), state->acc[d]);
    }
  }
}

void Fold(const State& split, State* total) {
  const float max = split.max > total->max ? split.max : total->max;
  const float old_factor = ReferenceExp(total->max - max);
  const float new_factor = ReferenceExp(split.max - max);
  for (int i = 0; i < 16; ++i) {
    total->lanes[i] = std::fma(split.lanes[i], new_factor, total->lanes[i] * old_factor);
  }
  for (size_t d = 0; d < split.acc.size(); ++d) {
    total->acc[d] = std::fma(split.acc[d], new_factor, total->acc[d] * old_factor);
  }
  total->max = max;
}

// Rule (6): one key more, which has no value.
void AddSink(float sink, State* state) {
  const float max = sink > state->max ? sink : state->max;
  const float factor = ReferenceExp(state->max - max);
  for (float& lane : state->lanes) lane *= factor;
  for (float& value : state->acc) value *= factor;
  state->lanes[0] += ReferenceExp(sink - max);
  state->max = max;
}

// Keys [first, end) in tiles and splits cut at absolute positions.
State Attend(const Query& query, uint32_t first, uint32_t end) {
  const uint32_t dim =
      query.args.value_dim > 0 ? query.args.value_dim : static_cast<uint32_t>(query.q.size());
  State total(dim);
  bool empty = true;
  for (uint32_t split = first / kSplitKeys; split * kSplitKeys < end; ++split) {
    State state(dim);
    for (uint32_t tile = split * kSplitKeys; tile < (split + 1) * kSplitKeys; tile += kTileKeys) {
      const uint32_t begin = tile > first ? tile : first;
      const uint32_t stop = tile + kTileKeys < end ? tile + kTileKeys : end;
      if (begin < stop) AddTile(query, begin, stop, &state);
    }
    if (empty) {
      total = state;
    } else {
      Fold(state, &total);
    }
    empty = false;
  }
  return total;
}

}  // namespace

float ReferenceSumTree(const float (&lanes)[16]) {
  float sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = lanes[i];
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] = sums[i] + sums[i + width];
  }
  return sums[0];
}

float ReferenceExp(float x) {
  if (std::isnan(x)) return x;
  if (x < -87.3f) return 0.0f;
  const float clamped = x > 88.0f ? 88.0f : x;
  const float n = std::nearbyint(clamped * 1.44269504088896341f);
  float r = std::fma(n, -0.693359375f, clamped);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = std::fma(1.9875691500e-4f, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  return std::ldexp(std::fma(p, r * r, r) + 1.0f, static_cast<int>(n));
}

void ReferenceAttention(ThreadPool&, const AttentionArgs& args) {
  const KvLayout& layout = *args.kv.layout;
  const uint32_t dim = layout.head_dim;
  for (const AttentionSpan& span : args.spans) {
    for (uint32_t i = 0; i < span.num_rows * args.num_heads; ++i) {
      const uint32_t r = i / args.num_heads;
      const uint32_t head = i % args.num_heads;
      const uint32_t position = span.first_pos + r;
      const size_t row = size_t{span.first_row} + r;
      Query query = {args, span, head / (args.num_heads / layout.num_kv_heads), {}};
      for (uint32_t d = 0; d < dim; ++d) {
        query.q.push_back(args.q[row * args.q_stride + size_t{head} * dim + d] * args.scale);
      }
      const bool is_turned = layout.dtype == kv::KvDtype::kQ8;
      if (is_turned) TurnQ8(query.q.data(), dim);
      const uint32_t first =
          args.window != 0 && position >= args.window ? position - args.window + 1 : 0;
      State state = Attend(query, first, position + 1);
      if (args.sinks != nullptr) AddSink(args.sinks[head], &state);
      const float denominator = ReferenceSumTree(state.lanes);
      const uint32_t value_dim = args.value_dim > 0 ? args.value_dim : dim;
      if (is_turned) TurnQ8(state.acc.data(), value_dim);
      for (uint32_t d = 0; d < value_dim; ++d) {
        args.out[(row * args.num_heads + head) * value_dim + d] = state.acc[d] / denominator;
      }
    }
  }
}

}  // namespace baton::kernels
