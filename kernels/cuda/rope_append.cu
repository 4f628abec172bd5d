// Norms of q and k, rotary embedding, and the append of K and V to the blocks, in one pass.
//
// Work: head_dim / 8 lanes a head, each with eight elements: four from 4j on and four from
// head_dim / 2 + 4j on, so that a lane has both halves of its pairs in either style. A cta has 128
// threads: 16, 8 or 4 heads of one row. Bytes: 4 an element, the table once a row from L2. Flops: 6
// an element, 10 with norms. Limit: memory (few rows: latency). Reached: not yet measured on a GPU.
// Order of a norm: a lane adds its squares ascending by fma, a head its lanes by the tree
// head_dim / 16, ..., 2, 1. It depends on head_dim only.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kRopeThreads = 128;
constexpr uint32_t kQuad = 4;  // elements of a half of a lane

// Four bf16 that a lane moves in one access.
struct alignas(8) Quad {
  uint32_t words[2];
};

// A lane's elements of a head: [0, 4) from 4j on, [4, 8) from head_dim / 2 + 4j on.
struct LaneElements {
  float values[2 * kQuad];
};

// One lane's place: a row of the batch, a head of [q|k|v] and eight of its elements.
struct Place {
  uint32_t row;
  uint32_t head;
  uint32_t lane;  // of the head
  bool is_head;   // false behind the last head
};

BATON_DEVICE Place PlaceOfThread(const RopeAppendParams& params) {
  const uint32_t lanes = params.kv.head_dim / kVec;
  const uint32_t heads_a_cta = kRopeThreads / lanes;
  const uint32_t num_heads = params.num_heads + 2 * params.kv.num_kv_heads;
  const uint32_t ctas_a_row = (num_heads + heads_a_cta - 1) / heads_a_cta;
  const uint32_t head = simt::block().x % ctas_a_row * heads_a_cta + simt::thread() / lanes;
  return {simt::block().x / ctas_a_row, head, simt::thread() % lanes,
          simt::guard(head < num_heads)};
}

BATON_DEVICE float QuadElement(const Quad& quad, uint32_t i) {
  const uint32_t word = quad.words[i / 2];
  return simt::from_bf16({static_cast<uint16_t>(i % 2 == 0 ? word : word >> 16)});
}

BATON_DEVICE LaneElements Widen(const Quad& low, const Quad& high) {
  LaneElements x;
  BATON_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    x.values[i] = QuadElement(low, i);
    x.values[kQuad + i] = QuadElement(high, i);
  }
  return x;
}

// The sum of the values of a head's lanes, the same bits in each. All lanes of the warp call it.
BATON_DEVICE float HeadSum(float value, uint32_t lanes) {
  for (uint32_t step = lanes / 2; step > 0; step /= 2) value += simt::shfl_xor(value, step);
  return value;
}

BATON_DEVICE void ScaleByWeight(const Bf16* weight, uint32_t dim, const Place& place, float scale,
                                LaneElements& x) {
  const auto* quads = reinterpret_cast<const Quad*>(weight);
  const Quad low = quads[place.lane];
  const Quad high = quads[dim / 2 / kQuad + place.lane];
  BATON_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    x.values[i] = x.values[i] * scale * QuadElement(low, i);
    x.values[kQuad + i] = x.values[kQuad + i] * scale * QuadElement(high, i);
  }
}

BATON_DEVICE void RotatePair(const float* cos_sin, float& x0, float& x1) {
  const float cos = cos_sin[0];
  const float sin = cos_sin[1];
  const float y0 = simt::fma(x0, cos, -(x1 * sin));
  x1 = simt::fma(x1, cos, x0 * sin);
  x0 = y0;
}

// `table`: (cos, sin) of the row's position, [head_dim / 2][2].
BATON_DEVICE void Rotate(const RopeAppendParams& params, const float* table, uint32_t lane,
                         LaneElements& x) {
  if (params.interleaved) {
    const float* low = table + size_t{kQuad} * lane;
    const float* high = low + params.kv.head_dim / 2;
    BATON_UNROLL
    for (uint32_t i = 0; i < kQuad; i += 2) {
      RotatePair(low + i, x.values[i], x.values[i + 1]);
      RotatePair(high + i, x.values[kQuad + i], x.values[kQuad + i + 1]);
    }
    return;
  }
  const float* pairs = table + size_t{2} * kQuad * lane;
  BATON_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    RotatePair(pairs + size_t{2} * i, x.values[i], x.values[kQuad + i]);
  }
}

BATON_DEVICE Quad Narrow(const float* values) {
  return {{Pair(values[0], values[1]), Pair(values[2], values[3])}};
}

// The slots of a piece from `slot` on get zeros where the row is the sequence's last: this lane's
// elements of each.
BATON_DEVICE void ZeroSlotsBehind(const RopeAppendParams& params, const Place& place, Quad* slot,
                                  uint32_t num_slots) {
  const uint32_t quads_a_row = params.kv.head_dim / kQuad;
  const bool is_last = place.row + 1 == params.num_rows ||
                       params.sequences[place.row + 1] != params.sequences[place.row];
  if (!simt::guard(is_last)) return;
  for (uint32_t i = 0; i < num_slots; ++i) {
    slot[place.lane] = {{0, 0}};
    slot[quads_a_row / 2 + place.lane] = {{0, 0}};
    slot += quads_a_row;
  }
}

BATON_KERNEL(kRopeThreads) RopeAppendKernel(RopeAppendParams params) {
  const KvBlocks& kv = params.kv;
  const Place place = PlaceOfThread(params);
  const uint32_t sequence = params.sequences[place.row];
  if (simt::guard(sequence == kPaddingRow)) return;
  const uint32_t quads_a_row = kv.head_dim / kQuad;
  const uint32_t num_heads = params.num_heads + 2 * kv.num_kv_heads;
  const auto* in = reinterpret_cast<const Quad*>(params.qkv) +
                   (size_t{place.row} * num_heads + place.head) * quads_a_row + place.lane;
  Quad low = {{0, 0}};
  Quad high = {{0, 0}};
  if (place.is_head) {
    low = in[0];
    high = in[quads_a_row / 2];
  }

  const uint32_t position = params.positions[place.row];
  const bool is_q = place.head < params.num_heads;
  const bool is_v = place.head >= params.num_heads + kv.num_kv_heads;
  LaneElements x = Widen(low, high);
  if (params.q_norm != nullptr || params.k_norm != nullptr) {
    float squares = 0.0f;
    BATON_UNROLL
    for (const float value : x.values) squares = simt::fma(value, value, squares);
    const float mean = HeadSum(squares, kv.head_dim / kVec) / static_cast<float>(kv.head_dim);
    const float scale = 1.0f / simt::square_root(mean + params.eps);
    const Bf16* weight = is_q ? params.q_norm : params.k_norm;
    if (!is_v && weight != nullptr) ScaleByWeight(weight, kv.head_dim, place, scale, x);
  }
  if (!place.is_head) return;
  if (!is_v) {
    Rotate(params, params.cos_sin + size_t{position} * kv.head_dim, place.lane, x);
    low = Narrow(x.values);
    high = Narrow(x.values + kQuad);
  }

  if (is_q) {
    auto* out = reinterpret_cast<Quad*>(params.q) +
                (size_t{place.row} * params.num_heads + place.head) * quads_a_row + place.lane;
    out[0] = low;
    out[quads_a_row / 2] = high;
    return;
  }
  const uint32_t kv_head = (place.head - params.num_heads) % kv.num_kv_heads;
  const uint32_t* blocks = params.block_lists + size_t{sequence} * params.max_blocks;
  const uint32_t token = position % kv.block_size;
  const size_t offset = kv.KeyOffset(blocks[position / kv.block_size], kv_head, token);
  auto* slot = reinterpret_cast<Quad*>(kv.base + offset + (is_v ? kv.ValueOffset() : 0));
  slot[place.lane] = low;
  slot[quads_a_row / 2 + place.lane] = high;
  ZeroSlotsBehind(params, place, slot + quads_a_row, kv.block_size - 1 - token);
}

}  // namespace

const KernelInfo kRopeAppendInfo = {"RopeAppendKernel", kRopeThreads, 0};

absl::Status RopeAppend(const RopeAppendParams& params, void* stream) {
  if (absl::Status status = CheckKvShape("RopeAppend", params.kv, params.num_heads); !status.ok()) {
    return status;
  }
  if (params.num_rows == 0) return absl::OkStatus();
  const uint64_t heads_a_cta = kRopeThreads / (params.kv.head_dim / kVec);
  const uint64_t num_heads = params.num_heads + uint64_t{2} * params.kv.num_kv_heads;
  const uint64_t ctas = (num_heads + heads_a_cta - 1) / heads_a_cta * params.num_rows;
  if (ctas > kMaxGridX) {
    return absl::InvalidArgumentError("RopeAppend: " + std::to_string(params.num_rows) +
                                      " rows are too many for one grid");
  }
  return simt::launch({.name = "RopeAppend",
                       .grid = {static_cast<uint32_t>(ctas), 1, 1},
                       .num_threads = kRopeThreads,
                       .stream = stream},
                      RopeAppendKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::cuda
