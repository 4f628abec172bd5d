#include "kernels/cuda/attention_reference.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/kernel_reference.h"
#include "kernels/math.h"

namespace baton::cuda {
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

void AttendHead(const AttentionData& data, const HeadQuery& query, double* out) {
  const KvBlocks& kv = data.kv;
  const auto key_at = [&](uint32_t key) {
    const size_t offset =
        kv.KeyOffset(query.blocks[key / kv.block_size], query.kv_head, key % kv.block_size);
    return kv.base + offset;
  };
  std::vector<double> scores;
  for (uint32_t key = query.keys.begin; key < query.keys.end; ++key) {
    const auto* k = reinterpret_cast<const Bf16*>(key_at(key));
    double score = 0;
    for (uint32_t d = 0; d < kv.head_dim; ++d) score += Value(query.q[d]) * Value(k[d]);
    scores.push_back(score * data.scale);
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (uint32_t d = 0; d < kv.head_dim; ++d) out[d] = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double weight = ExpInDouble(scores[i] - largest);
    const uint32_t key = query.keys.begin + static_cast<uint32_t>(i);
    const auto* v = reinterpret_cast<const Bf16*>(key_at(key) + kv.ValueOffset());
    sum += weight;
    for (uint32_t d = 0; d < kv.head_dim; ++d) out[d] += weight * Value(v[d]);
  }
  for (uint32_t d = 0; d < kv.head_dim; ++d) out[d] /= sum;
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
  const uint32_t dim = data.kv.head_dim;
  const uint32_t group = data.shape.num_heads / data.shape.num_kv_heads;
  std::vector<double> out(size_t{num_rows} * data.shape.num_heads * dim);
  for (const AttentionRows& span : spans) {
    for (uint32_t r = 0; r < span.num_rows; ++r) {
      for (uint32_t head = 0; head < data.shape.num_heads; ++head) {
        const size_t at = (size_t{span.first_row + r} * data.shape.num_heads + head) * dim;
        AttendHead(data,
                   {data.q + at, data.block_lists + size_t{span.sequence} * data.max_blocks,
                    head / group, KeysAt(span.first_position + r, data.shape.window)},
                   out.data() + at);
      }
    }
  }
  return out;
}

}  // namespace baton::cuda
