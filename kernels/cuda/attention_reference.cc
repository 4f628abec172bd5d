#include "kernels/cuda/attention_reference.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention_fold.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/cuda/kv_rows_reference.h"
#include "kernels/math.h"

namespace baton::kernels::cuda {
namespace {

double Value(Bf16 x) { return FloatFromBf16(x.bits); }

// One head of one row of `params`, normed and turned, into `values` and `magnitudes`.
struct RotatedHead {
  const Bf16* in;
  const Bf16* norm;
  const float* cos_sin;  // [head_dim / 2][2]
  double* values;
  double* magnitudes;
};

void RotateHead(const RopeAppendParams& params, const RotatedHead& head) {
  const uint32_t dim = params.kv.head_dim;
  double squares = 0;
  for (uint32_t i = 0; i < dim; ++i) squares += Value(head.in[i]) * Value(head.in[i]);
  const double scale = 1.0 / std::sqrt(squares / dim + params.eps);
  const auto input = [&](uint32_t i) {
    return Value(head.in[i]) * (head.norm != nullptr ? scale * Value(head.norm[i]) : 1.0);
  };
  for (uint32_t pair = 0; pair < dim / 2; ++pair) {
    const uint32_t first = params.interleaved ? 2 * pair : pair;
    const uint32_t second = params.interleaved ? first + 1 : pair + dim / 2;
    const double cos = head.cos_sin[2 * pair];
    const double sin = head.cos_sin[2 * pair + 1];
    const double x0 = input(first);
    const double x1 = input(second);
    head.values[first] = x0 * cos - x1 * sin;
    head.values[second] = x1 * cos + x0 * sin;
    head.magnitudes[first] = std::fabs(x0 * cos) + std::fabs(x1 * sin);
    head.magnitudes[second] = std::fabs(x1 * cos) + std::fabs(x0 * sin);
  }
}

// Keys [begin, end) of a row at this position.
struct VisibleKeys {
  uint32_t begin;
  uint32_t end;
};

VisibleKeys KeysAt(uint32_t position, uint32_t window) {
  const bool is_cut = window > 0 && position >= window;
  return {is_cut ? position - window + 1 : 0, position + 1};
}

// One query head of one row into out [head_dim].
struct HeadQuery {
  const Bf16* q;
  const uint32_t* blocks;
  uint32_t kv_head;
  VisibleKeys keys;
};

const Bf16* KeyAt(const AttentionData& data, const HeadQuery& query, uint32_t key) {
  const KvBlocks& kv = data.kv;
  return reinterpret_cast<const Bf16*>(kv.base + kv.KeyOffset(query.blocks[key / kv.block_size],
                                                              query.kv_head, key % kv.block_size));
}

const Bf16* ValueAt(const AttentionData& data, const HeadQuery& query, uint32_t key) {
  return KeyAt(data, query, key) + data.kv.ValueOffset() / sizeof(Bf16);
}

void AttendHead(const AttentionData& data, const HeadQuery& query, double* out) {
  const uint32_t dim = data.kv.head_dim;
  std::vector<double> scores;
  for (uint32_t key = query.keys.begin; key < query.keys.end; ++key) {
    const Bf16* k = KeyAt(data, query, key);
    double score = 0;
    for (uint32_t d = 0; d < dim; ++d) score += Value(query.q[d]) * Value(k[d]);
    scores.push_back(score * data.scale);
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (uint32_t d = 0; d < dim; ++d) out[d] = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double weight = ExpInDouble(scores[i] - largest);
    const Bf16* v = ValueAt(data, query, query.keys.begin + static_cast<uint32_t>(i));
    sum += weight;
    for (uint32_t d = 0; d < dim; ++d) out[d] += weight * Value(v[d]);
  }
  for (uint32_t d = 0; d < dim; ++d) out[d] /= sum;
}

// A row over some tiles: the maximum, the weights of its four lanes, the sums.
struct RowState {
  float largest = kNothing;
  float weights[4] = {};
  std::vector<float> sums;
};

// One tile, rules 2 to 4.
void AddTile(const AttentionData& data, const HeadQuery& query, uint32_t first_key,
             RowState& state) {
  constexpr uint32_t kStep = simt::kTensorCoreProducts;
  const float scale = data.scale * 1.44269504088896341f;
  float scores[kTileKeys];
  float after = state.largest;
  for (uint32_t i = 0; i < kTileKeys; ++i) {
    const uint32_t key = first_key + i;
    scores[i] = kNothing;
    if (key < query.keys.begin || key >= query.keys.end) continue;
    const Bf16* k = KeyAt(data, query, key);
    float score = 0.0f;
    for (uint32_t d = 0; d < data.kv.head_dim; d += kStep) {
      score = simt::DotBf16(data.core, query.q + d, k + d, score);
    }
    scores[i] = score * scale;
    after = std::max(after, scores[i]);
  }
  const float factor = Exp2(state.largest - after);
  state.largest = after;
  Bf16 weights[kTileKeys];
  for (float& weight : state.weights) weight *= factor;
  for (uint32_t i = 0; i < kTileKeys; ++i) {
    weights[i].bits = Bf16FromFloat(Exp2(scores[i] - after));
    state.weights[i % 8 / 2] += FloatFromBf16(weights[i].bits);
  }
  for (uint32_t d = 0; d < data.kv.head_dim; ++d) {
    state.sums[d] *= factor;
    for (uint32_t i = 0; i < kTileKeys; i += kStep) {
      Bf16 values[kStep] = {};
      for (uint32_t j = 0; j < kStep; ++j) {
        const uint32_t key = first_key + i + j;
        if (key < query.keys.begin || key >= query.keys.end) continue;
        values[j] = ValueAt(data, query, key)[d];
      }
      state.sums[d] = simt::DotBf16(data.core, weights + i, values, state.sums[d]);
    }
  }
}

// All tiles and splits, rules 1 and 5.
void AttendHeadBits(const AttentionData& data, const HeadQuery& query, Bf16* out) {
  constexpr uint32_t kSplitKeys = kSplitTiles * kTileKeys;
  RowTotal total = {kNothing, 0.0f};
  std::vector<float> totals(data.kv.head_dim, 0.0f);
  const uint32_t first_split = query.keys.begin / kSplitKeys;
  for (uint32_t split = first_split; split * kSplitKeys < query.keys.end; ++split) {
    RowState state;
    state.sums.assign(data.kv.head_dim, 0.0f);
    for (uint32_t tile = 0; tile < kSplitTiles; ++tile) {
      const uint32_t first_key = split * kSplitKeys + tile * kTileKeys;
      if (first_key >= query.keys.end || first_key + kTileKeys <= query.keys.begin) continue;
      AddTile(data, query, first_key, state);
    }
    const float weight =
        (state.weights[0] + state.weights[1]) + (state.weights[2] + state.weights[3]);
    const float largest = std::max(total.largest, state.largest);
    const float of_total = Exp2(total.largest - largest);
    const float of_split = Exp2(state.largest - largest);
    const auto fold = [&](float before, float added) {
      return split == first_split ? added : std::fma(added, of_split, before * of_total);
    };
    for (uint32_t d = 0; d < data.kv.head_dim; ++d) totals[d] = fold(totals[d], state.sums[d]);
    total = {largest, fold(total.weight, weight)};
  }
  for (uint32_t d = 0; d < data.kv.head_dim; ++d) {
    out[d].bits = Bf16FromFloat(totals[d] * (1.0f / total.weight));
  }
}

// K or V of one head in all slots of a block.
void WidenPiece(const KvBlocks& from, const std::byte* piece, const KvBlocks& to, std::byte* wide) {
  for (uint32_t token = 0; token < from.block_size; ++token) {
    const std::vector<Bf16> row = ReferenceLoadRow(from, piece, token);
    std::copy(row.begin(), row.end(), reinterpret_cast<Bf16*>(wide + token * to.RowBytes()));
  }
}

// The data with K and V in bf16, which `bytes` then holds: attention over fp8 is attention over
// this bf16 data. A block that some span sees has all its slots there.
AttentionData InBf16(const AttentionData& data, std::span<const AttentionRows> spans,
                     std::vector<std::byte>& bytes) {
  if (data.kv.element == KvElement::kBf16) return data;
  AttentionData wide = data;
  wide.kv.element = KvElement::kBf16;
  wide.kv.block_stride_bytes = 2 * wide.kv.ValueOffset();
  for (const AttentionRows& span : spans) {
    if (span.num_rows == 0) continue;
    const uint32_t* blocks = data.block_lists + size_t{span.sequence} * data.max_blocks;
    const uint32_t first = KeysAt(span.first_position, data.shape.window).begin;
    const uint32_t last = span.first_position + span.num_rows - 1;
    for (uint32_t i = first / data.kv.block_size; i <= last / data.kv.block_size; ++i) {
      bytes.resize(std::max(bytes.size(), (size_t{blocks[i]} + 1) * wide.kv.block_stride_bytes));
      for (uint32_t piece = 0; piece < 2 * data.kv.num_kv_heads; ++piece) {
        const std::byte* from = data.kv.base + data.kv.KeyOffset(blocks[i], piece, 0);
        WidenPiece(data.kv, from, wide.kv, bytes.data() + wide.kv.KeyOffset(blocks[i], piece, 0));
      }
    }
  }
  wide.kv.base = bytes.data();
  return wide;
}

// Calls attend(query, at) for each row and head of the spans; `at` is where its elements begin.
template <typename Attend>
void ForEachHead(const AttentionData& data, std::span<const AttentionRows> spans,
                 const Attend& attend) {
  const uint32_t group = data.shape.num_heads / data.shape.num_kv_heads;
  for (const AttentionRows& span : spans) {
    for (uint32_t i = 0; i < span.num_rows * data.shape.num_heads; ++i) {
      const uint32_t row = i / data.shape.num_heads;
      const uint32_t head = i % data.shape.num_heads;
      const size_t at =
          (size_t{span.first_row + row} * data.shape.num_heads + head) * data.kv.head_dim;
      attend(HeadQuery{data.q + at, data.block_lists + size_t{span.sequence} * data.max_blocks,
                       head / group, KeysAt(span.first_position + row, data.shape.window)},
             at);
    }
  }
}

}  // namespace

RotatedRows ReferenceRotate(const RopeAppendParams& params) {
  const uint32_t dim = params.kv.head_dim;
  const uint32_t num_rotated = params.num_heads + params.kv.num_kv_heads;
  const size_t row_size = size_t{num_rotated} * dim;
  RotatedRows rows;
  rows.values.resize(params.num_rows * row_size);
  rows.magnitudes.resize(params.num_rows * row_size);
  for (uint32_t row = 0; row < params.num_rows; ++row) {
    if (params.sequences[row] == kPaddingRow) continue;
    const Bf16* in = params.qkv + row * (row_size + size_t{params.kv.num_kv_heads} * dim);
    for (uint32_t head = 0; head < num_rotated; ++head) {
      const size_t at = row * row_size + size_t{head} * dim;
      RotateHead(params,
                 {in + size_t{head} * dim, head < params.num_heads ? params.q_norm : params.k_norm,
                  params.cos_sin + size_t{params.positions[row]} * dim, rows.values.data() + at,
                  rows.magnitudes.data() + at});
    }
  }
  return rows;
}

std::vector<double> ReferenceAttention(const AttentionData& data, uint32_t num_rows,
                                       std::span<const AttentionRows> spans) {
  std::vector<double> out(size_t{num_rows} * data.shape.num_heads * data.kv.head_dim);
  std::vector<std::byte> bytes;
  const AttentionData wide = InBf16(data, spans, bytes);
  ForEachHead(wide, spans,
              [&](const HeadQuery& query, size_t at) { AttendHead(wide, query, out.data() + at); });
  return out;
}

std::vector<Bf16> ReferenceAttentionBits(const AttentionData& data, uint32_t num_rows,
                                         std::span<const AttentionRows> spans) {
  std::vector<Bf16> out(size_t{num_rows} * data.shape.num_heads * data.kv.head_dim, Bf16{0});
  std::vector<std::byte> bytes;
  const AttentionData wide = InBf16(data, spans, bytes);
  ForEachHead(wide, spans, [&](const HeadQuery& query, size_t at) {
    AttendHeadBits(wide, query, out.data() + at);
  });
  return out;
}

}  // namespace baton::kernels::cuda
