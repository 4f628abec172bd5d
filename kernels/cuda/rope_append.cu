// Norms of q and k, rotary embedding, and the append of K and V to the blocks, in one pass.
//
// Work: head_dim / 8 lanes a head, each with eight elements: four from 4j on and four from
// head_dim / 2 + 4j on, so that a lane has both halves of its pairs in either style. A cta has 128
// threads: 16, 8 or 4 heads of one row. Bytes: 4 an element, the table once a row from L2. Flops: 6
// an element, 10 with norms. Limit: memory (few rows: latency). Reached: kernels/NOTES.md.
// Order of a norm: a lane adds its squares ascending by fma, a head its lanes by the tree
// head_dim / 16, ..., 2, 1. It depends on head_dim only.
// Fp8 (kv_fp8.h): K and V rounded to bf16 as above, then to codes. The lanes of a head agree on its
// largest magnitude by the same tree of shuffles; one more for each half of the head puts dims i
// and i + 8 of sixteen into one lane, which stores four codes at once. Bytes: 3 an element of K and
// V.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/kv_fp8.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
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

BATON_DEVICE uint32_t Larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Bits of bf16 of the largest magnitude; the order of the bits is that of the numbers.
BATON_DEVICE uint32_t LargestOf(const Quad& quad) {
  uint32_t largest = 0;
  BATON_UNROLL
  for (const uint32_t word : quad.words) {
    largest = Larger(largest, Larger(word & 0x7FFFu, word >> 16 & 0x7FFFu));
  }
  return largest;
}

// The largest of all elements of the head, which all its lanes get. All lanes of the warp call it.
BATON_DEVICE uint32_t LargestOfHead(const Quad& low, const Quad& high, uint32_t lanes) {
  uint32_t largest = Larger(LargestOf(low), LargestOf(high));
  for (uint32_t step = lanes / 2; step > 0; step /= 2) {
    largest = Larger(largest, simt::shfl_xor(largest, step));
  }
  return largest;
}

// Four codes of the lane and of the one with the dims that are eight away, in the order of the
// piece: those of the first two dims of both in the lane of the lower dims, else of the last two.
BATON_DEVICE uint32_t CodesOf(const Quad& quad, float inverse, uint32_t lane) {
  const uint32_t own =
      simt::to_e4m3x2(QuadElement(quad, 0) * inverse, QuadElement(quad, 1) * inverse) |
      simt::to_e4m3x2(QuadElement(quad, 2) * inverse, QuadElement(quad, 3) * inverse) << 16;
  const uint32_t other = simt::shfl_xor(own, 2u);
  const bool is_lower = lane % 4 < 2;
  const uint32_t lower = is_lower ? own : other >> 16;
  const uint32_t upper = is_lower ? other : own >> 16;
  return (lower & 0xFFu) | (upper & 0xFFu) << 8 | (lower & 0xFF00u) << 8 | (upper & 0xFF00u) << 16;
}

// A head's K or V in fp8: this lane's codes, and its scale.
struct CodedHead {
  uint32_t low;   // of [0, head_dim / 2)
  uint32_t high;  // of [head_dim / 2, head_dim)
  uint16_t scale;
};

// All lanes of the warp call it.
BATON_DEVICE CodedHead CodeHead(const Quad& low, const Quad& high, uint32_t lane, uint32_t lanes) {
  const uint16_t scale = Fp8Scale(LargestOfHead(low, high, lanes));
  const float inverse = Fp8Inverse(scale);
  return {CodesOf(low, inverse, lane), CodesOf(high, inverse, lane), scale};
}

// Stores the row's codes and scale and, where the row is its sequence's last, zeros into the slots
// after it.
BATON_DEVICE void StoreCodes(const RopeAppendParams& params, const Place& place, std::byte* piece,
                             uint32_t token, const CodedHead& coded) {
  const KvBlocks& kv = params.kv;
  const bool is_last = place.row + 1 == params.num_rows ||
                       params.sequences[place.row + 1] != params.sequences[place.row];
  const uint32_t end = simt::guard(is_last) ? kv.block_size : token + 1;
  const uint32_t lane = place.lane;
  const uint32_t words_a_row = kv.head_dim / kQuad;
  auto* row = reinterpret_cast<uint32_t*>(piece) + size_t{token} * words_a_row + lane / 4 * 4 +
              lane % 2 * 2 + lane % 4 / 2;
  auto* scales = reinterpret_cast<uint16_t*>(piece + kv.ScaleOffset(0));
  row[0] = coded.low;
  row[words_a_row / 2] = coded.high;
  if (lane == 0) scales[token] = coded.scale;
  for (uint32_t i = token + 1; i < end; ++i) {
    row += words_a_row;
    row[0] = 0;
    row[words_a_row / 2] = 0;
    if (lane == 0) scales[i] = 0;
  }
}

// By value, as the kernels take it: a reference costs two registers.
template <KvElement kElement>
BATON_DEVICE void Append(RopeAppendParams params) {
  simt::wait_for_previous();
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
  if (kElement == KvElement::kBf16 && !place.is_head) return;
  if (!is_v) {
    Rotate(params, params.cos_sin + size_t{position} * kv.head_dim, place.lane, x);
    low = Narrow(x.values);
    high = Narrow(x.values + kQuad);
  }

  [[maybe_unused]] CodedHead coded;
  if constexpr (kElement == KvElement::kFp8) {
    coded = CodeHead(low, high, place.lane, kv.head_dim / kVec);
    if (!place.is_head) return;
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
  if constexpr (kElement == KvElement::kFp8) {
    const size_t piece = kv.KeyOffset(blocks[position / kv.block_size], kv_head, 0, kElement);
    StoreCodes(params, place, kv.base + piece + (is_v ? kv.ValueOffset(kElement) : 0), token,
               coded);
    return;
  }
  const size_t offset = kv.KeyOffset(blocks[position / kv.block_size], kv_head, token, kElement);
  auto* slot = reinterpret_cast<Quad*>(kv.base + offset + (is_v ? kv.ValueOffset(kElement) : 0));
  slot[place.lane] = low;
  slot[quads_a_row / 2 + place.lane] = high;
  ZeroSlotsBehind(params, place, slot + quads_a_row, kv.block_size - 1 - token);
}

BATON_KERNEL(kRopeThreads) RopeAppendKernel(RopeAppendParams params) {
  Append<KvElement::kBf16>(params);
}
BATON_KERNEL(kRopeThreads) RopeAppendFp8Kernel(RopeAppendParams params) {
  Append<KvElement::kFp8>(params);
}

}  // namespace

const KernelInfo kRopeAppendInfos[2] = {{"RopeAppendKernel", kRopeThreads, 0},
                                        {"RopeAppendFp8Kernel", kRopeThreads, 0}};

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
                       .overlaps = true,
                       .stream = stream},
                      params.kv.element == KvElement::kFp8 ? RopeAppendFp8Kernel : RopeAppendKernel,
                      params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
