#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/attention_reference.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/math.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/simt/host_blocks.h"

namespace baton::kernels::gpu_check {
namespace {

using cuda::Bf16;
using cuda::kPaddingRow;
using cuda::RopeAppendParams;
using simt_test::Chunk;
using simt_test::HeadShape;
using simt_test::HostBlocks;
using simt_test::RandomBf16;
using simt_test::RandomFloats;

constexpr double kRotated = 5e-6;  // of a pair's products, as in rope_append_kernel_test

struct RopeCase {
  const char* name;
  HeadShape shape;
  bool interleaved;
  bool q_norm;
  bool k_norm;
  std::vector<Chunk> chunks;
};

// The batch on the host. It owns the memory that `params` points to; q and kv.base are null.
struct RopeBatch {
  explicit RopeBatch(const RopeCase& c) : shape(c.shape), blocks(c.shape, c.chunks) {
    const size_t dim = shape.head_dim;
    for (const Chunk& chunk : c.chunks) {
      for (uint32_t i = 0; i < chunk.count; ++i) {
        sequences.push_back(chunk.sequence);
        positions.push_back(chunk.sequence == kPaddingRow ? kPaddingRow : chunk.first + i);
      }
    }
    qkv = RandomBf16(sequences.size() * NumHeads() * dim, 21);
    norms = RandomBf16(2 * dim, 22);
    const size_t num_positions = size_t{blocks.max_blocks()} * shape.block_size;
    cos_sin = RandomFloats(num_positions * dim, 23, 0.125f);
    params = {.qkv = qkv.data(),
              .q_norm = c.q_norm ? norms.data() : nullptr,
              .k_norm = c.k_norm ? norms.data() + dim : nullptr,
              .cos_sin = cos_sin.data(),
              .positions = positions.data(),
              .sequences = sequences.data(),
              .block_lists = blocks.lists().data(),
              .q = nullptr,
              .kv = blocks.kv(),
              .num_rows = static_cast<uint32_t>(sequences.size()),
              .num_heads = shape.num_heads,
              .max_blocks = blocks.max_blocks(),
              .eps = 1e-5f,
              .interleaved = c.interleaved};
  }
  RopeBatch(const RopeBatch&) = delete;
  RopeBatch& operator=(const RopeBatch&) = delete;

  // Heads of q, k and v together.
  size_t NumHeads() const { return size_t{shape.num_heads} + 2 * shape.num_kv_heads; }

  HeadShape shape;
  HostBlocks blocks;
  std::vector<Bf16> qkv;
  std::vector<Bf16> norms;
  std::vector<float> cos_sin;
  std::vector<uint32_t> positions;
  std::vector<uint32_t> sequences;
  RopeAppendParams params;
};

// The results of the kernel: q [num_rows][num_heads][head_dim] and all blocks.
struct RopeResult {
  std::vector<Bf16> q;
  std::vector<std::byte> blocks;
};

// launch(params, qkv) of the batch on the device.
template <typename Launch>
absl::StatusOr<RopeResult> RunWith(const DeviceBody& body, const RopeBatch& batch,
                                   const Launch& launch) {
  RopeAppendParams params = batch.params;
  const size_t dim = batch.shape.head_dim;
  DeviceArray<Bf16> qkv(body, batch.qkv);
  DeviceArray<Bf16> norms(body, batch.norms);
  DeviceArray<float> cos_sin(body, batch.cos_sin);
  DeviceArray<uint32_t> positions(body, batch.positions);
  DeviceArray<uint32_t> sequences(body, batch.sequences);
  DeviceArray<uint32_t> lists(body, batch.blocks.lists());
  DeviceArray<std::byte> blocks(body, batch.blocks.bytes());
  DeviceArray<Bf16> q(body, size_t{params.num_rows} * params.num_heads * dim);
  BATON_RETURN_IF_ERROR(FirstFailure(qkv, norms, cos_sin, positions, sequences, lists, blocks, q));
  params.qkv = qkv.data();
  if (params.q_norm != nullptr) params.q_norm = norms.data();
  if (params.k_norm != nullptr) params.k_norm = norms.data() + dim;
  params.cos_sin = cos_sin.data();
  params.positions = positions.data();
  params.sequences = sequences.data();
  params.block_lists = lists.data();
  params.q = q.data();
  params.kv.base = blocks.data() + batch.blocks.LayerOffset();
  BATON_RETURN_IF_ERROR(launch(params, qkv.data()));
  RopeResult result = {q.Values(), blocks.Values()};
  BATON_RETURN_IF_ERROR(FirstFailure(q, blocks));
  return result;
}

absl::StatusOr<RopeResult> RunRope(const DeviceBody& body, const RopeBatch& batch) {
  return RunWith(body, batch, [&body](const RopeAppendParams& params, Bf16*) {
    return body.kernels().rope_append(params, nullptr);
  });
}

// Element i of a head that has no norm, with the kernel's roundings. `table` is of its position.
Bf16 RotatedBits(const RopeAppendParams& params, const Bf16* x, const float* table, uint32_t i) {
  const uint32_t half = params.kv.head_dim / 2;
  const uint32_t pair = params.interleaved ? i / 2 : i % half;
  const bool is_second = params.interleaved ? i % 2 == 1 : i >= half;
  const float x0 = FloatFromBf16(x[params.interleaved ? 2 * pair : pair].bits);
  const float x1 = FloatFromBf16(x[params.interleaved ? 2 * pair + 1 : pair + half].bits);
  const float cos = table[2 * pair];
  const float sin = table[2 * pair + 1];
  return {Bf16FromFloat(is_second ? std::fma(x1, cos, x0 * sin) : std::fma(x0, cos, -(x1 * sin)))};
}

// A head of q or k of one row.
struct HeadPlace {
  uint32_t row;
  uint32_t head;
};

// Internal unless they are the kernel's bits where there is no norm, else roundings of the exact
// values.
absl::Status HeadFollows(const RopeBatch& batch, const cuda::RotatedRows& exact, const Bf16* got,
                         const HeadPlace& place) {
  const auto [row, head] = place;
  const RopeAppendParams& params = batch.params;
  const uint32_t dim = batch.shape.head_dim;
  const Bf16* x = params.qkv + (row * batch.NumHeads() + head) * dim;
  const float* table = params.cos_sin + size_t{params.positions[row]} * dim;
  const bool has_norm = (head < params.num_heads ? params.q_norm : params.k_norm) != nullptr;
  const size_t at = (size_t{row} * (params.num_heads + batch.shape.num_kv_heads) + head) * dim;
  Differences differences(fmt::format("row {}, head {} of q and k", row, head));
  for (uint32_t i = 0; i < dim; ++i) {
    const cuda::Tolerance tolerance = {0, kRotated * exact.magnitudes[at + i]};
    const Bf16 bits = RotatedBits(params, x, table, i);
    if (has_norm) {
      if (cuda::IsRoundingOf(got[i], exact.values[at + i], tolerance)) continue;
      differences.Note(i, got[i], exact.values[at + i]);
    } else if (got[i].bits != bits.bits) {
      differences.Note(i, got[i], bits);
    }
  }
  if (!differences.empty()) {
    differences.Add("operands",
                    {{"x", HexOfElements(x, dim)}, {"cos_sin", HexOfElements(table, dim)}});
  }
  return differences.Result(dim);
}

// Checks K of a row and writes the bytes that its slots must hold into `expected`: the kernel's K,
// the V of the input, and zeros after the last row of a sequence.
absl::Status SlotsFollow(const RopeBatch& batch, const cuda::RotatedRows& exact,
                         const RopeResult& got, uint32_t row, std::vector<std::byte>& expected) {
  const RopeAppendParams& params = batch.params;
  const HeadShape& shape = batch.shape;
  const size_t row_bytes = params.kv.RowBytes();
  const uint32_t sequence = params.sequences[row];
  const uint32_t position = params.positions[row];
  const bool is_last = row + 1 == params.num_rows || params.sequences[row + 1] != sequence;
  const uint32_t behind = shape.block_size - 1 - position % shape.block_size;
  for (uint32_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    const size_t k_at = batch.blocks.KeyOffset(sequence, kv_head, position);
    const uint32_t head = shape.num_heads + kv_head;
    const auto* k = reinterpret_cast<const Bf16*>(got.blocks.data() + k_at);
    BATON_RETURN_IF_ERROR(HeadFollows(batch, exact, k, {row, head}));
    const Bf16* v =
        params.qkv + (row * batch.NumHeads() + head + shape.num_kv_heads) * size_t{shape.head_dim};
    std::byte* const at = expected.data() + k_at;
    std::memcpy(at, k, row_bytes);
    std::memcpy(at + params.kv.ValueOffset(), v, row_bytes);
    if (!is_last) continue;
    std::memset(at + row_bytes, 0, behind * row_bytes);
    std::memset(at + params.kv.ValueOffset() + row_bytes, 0, behind * row_bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckRope(const DeviceBody& body, const RopeCase& c) {
  const RopeBatch batch(c);
  BATON_ASSIGN_OR_RETURN(const RopeResult got, RunRope(body, batch));
  const cuda::RotatedRows exact = cuda::ReferenceRotate(batch.params);
  std::vector<std::byte> expected = batch.blocks.bytes();
  for (uint32_t row = 0; row < batch.params.num_rows; ++row) {
    const bool is_padding = batch.sequences[row] == kPaddingRow;
    for (uint32_t head = 0; head < c.shape.num_heads; ++head) {
      const Bf16* q =
          got.q.data() + (size_t{row} * c.shape.num_heads + head) * size_t{c.shape.head_dim};
      if (!is_padding) {
        BATON_RETURN_IF_ERROR(HeadFollows(batch, exact, q, {row, head}));
      } else if (q[0].bits != 0xFFFF || q[c.shape.head_dim - 1].bits != 0xFFFF) {
        return Internal("q of row {} head {} is written, and the row is padding", row, head);
      }
    }
    if (!is_padding) BATON_RETURN_IF_ERROR(SlotsFollow(batch, exact, got, row, expected));
  }
  return ExpectSameBits("blocks", got.blocks, expected);
}

// The bytes that one row's slots hold in fp8. `wide` has the blocks of the same case in bf16.
void ExpectCodes(const RopeBatch& wide, const std::vector<std::byte>& wide_blocks,
                 const RopeBatch& coded, uint32_t row, std::vector<std::byte>& expected) {
  const RopeAppendParams& params = coded.params;
  const cuda::KvBlocks& kv = params.kv;
  const uint32_t sequence = params.sequences[row];
  const uint32_t position = params.positions[row];
  const uint32_t token = position % kv.block_size;
  const bool is_last = row + 1 == params.num_rows || params.sequences[row + 1] != sequence;
  const size_t behind = is_last ? kv.block_size - 1 - token : 0;
  for (uint32_t i = 0; i < 2 * kv.num_kv_heads; ++i) {
    const auto* from = reinterpret_cast<const Bf16*>(wide_blocks.data() +
                                                     wide.blocks.KeyOffset(sequence, i, position));
    std::byte* const piece = expected.data() + coded.blocks.PieceOffset(sequence, i, position);
    cuda::ReferenceStoreRow(kv, from, piece, token);
    std::memset(piece + (token + 1) * kv.RowBytes(), 0, behind * kv.RowBytes());
    std::memset(piece + kv.ScaleOffset(token + 1), 0, behind * cuda::kKvScaleBytes);
  }
}

// Fp8 stores what the bf16 of the same case becomes, byte for byte.
absl::Status CheckRopeCodes(const DeviceBody& body, RopeCase c) {
  const RopeBatch wide(c);
  c.shape.element = cuda::KvElement::kFp8;
  const RopeBatch coded(c);
  BATON_ASSIGN_OR_RETURN(const RopeResult from, RunRope(body, wide));
  BATON_ASSIGN_OR_RETURN(const RopeResult got, RunRope(body, coded));
  std::vector<std::byte> expected = coded.blocks.bytes();
  for (uint32_t row = 0; row < coded.params.num_rows; ++row) {
    if (coded.sequences[row] != kPaddingRow) ExpectCodes(wide, from.blocks, coded, row, expected);
  }
  BATON_RETURN_IF_ERROR(ExpectSameBits("q in fp8", got.q, from.q));
  return ExpectSameBits("blocks in fp8", got.blocks, expected);
}

// Q, k and v of products that end with rope_append, of k values a row.
struct JoinedCase {
  const char* name;
  cuda::GemmPath path;
  uint32_t k;
  RopeCase rope;
};

// In one launch, by the bits of two.
absl::Status CheckJoinedRope(const DeviceBody& body, const JoinedCase& c) {
  const RopeBatch batch(c.rope);
  const auto m = static_cast<uint32_t>(batch.sequences.size());
  const auto n = static_cast<uint32_t>(batch.NumHeads() * batch.shape.head_dim);
  DeviceArray<Bf16> x(body, RandomBf16(size_t{m} * c.k, 24));
  DeviceArray<Bf16> w(body, RandomBf16(size_t{n} * c.k, 25));
  DeviceArray<std::byte> partials(body, cuda::GemmPartialBytes(m, n, c.k));
  DeviceArray<uint32_t> counters(body, std::vector<uint32_t>(cuda::kGemmCounters));
  DeviceArray<uint32_t> arrivals(body, std::vector<uint32_t>(cuda::RopeArrivals(
                                           c.rope.shape.num_heads, c.rope.shape.num_kv_heads)));
  BATON_RETURN_IF_ERROR(FirstFailure(x, w, partials, counters, arrivals));
  cuda::GemmParams product = {.x = x.data(),
                              .w = w.data(),
                              .m = m,
                              .n = n,
                              .k = c.k,
                              .partials = partials.data(),
                              .counters = counters.data(),
                              .partial_bytes = cuda::GemmPartialBytes(m, n, c.k)};
  BATON_ASSIGN_OR_RETURN(
      const RopeResult expected,
      RunWith(body, batch, [&](const RopeAppendParams& params, Bf16* qkv) -> absl::Status {
        product.y_bf16 = qkv;
        BATON_RETURN_IF_ERROR(body.kernels().gemm_bf16(product, nullptr));
        return body.kernels().rope_append(params, nullptr);
      }));
  product.path = c.path;
  BATON_ASSIGN_OR_RETURN(
      const RopeResult got, RunWith(body, batch, [&](const RopeAppendParams& params, Bf16* qkv) {
        product.y_bf16 = qkv;
        return body.kernels().gemm_rope({product, params, arrivals.data()}, nullptr);
      }));
  const std::vector<uint32_t> after = arrivals.Values();
  BATON_RETURN_IF_ERROR(arrivals.status());
  if (std::any_of(after.begin(), after.end(), [](uint32_t count) { return count != 0; })) {
    return Internal("an arrival is not set back");
  }
  BATON_RETURN_IF_ERROR(ExpectSameBits("q, by two launches", got.q, expected.q));
  return ExpectSameBits("blocks, by two launches", got.blocks, expected.blocks);
}

}  // namespace

absl::Status CheckJoinedRopes(const StageInput& input, Report& report) {
  const RopeCase small = {"", {128, 2, 1, 16}, true, true, true, {{1, 14, 3}, {kPaddingRow, 0, 2}}};
  const RopeCase few = {"", {128, 32, 8, 64}, false, false, false, {{0, 1000, 1}, {1, 63, 2}}};
  const RopeCase many = {
      "", {256, 8, 2, 32}, true, true, true, {{0, 1000, 17}, {kPaddingRow, 0, 3}, {1, 31, 12}}};
  const std::vector<JoinedCase> tiny = {{"gemm narrow rope", cuda::GemmPath::kNarrow, 264, small},
                                        {"gemm rows8 rope", cuda::GemmPath::kRows8, 264, small}};
  const std::vector<JoinedCase> full = {
      {"gemm rows8 rope", cuda::GemmPath::kRows8, 4096, few},
      {"gemm rows32 rope", cuda::GemmPath::kRows32, 4096, many},
      {"gemm narrow8 rope", cuda::GemmPath::kNarrow, 4096, few},
      {"gemm narrow32 rope", cuda::GemmPath::kNarrow, 4096, many}};
  for (JoinedCase c : input.is_tiny ? tiny : full) {
    if (!report.Begin(c.name)) continue;
    if (c.path == cuda::GemmPath::kNarrow && input.major != 9) {
      BATON_RETURN_IF_ERROR(report.Add({c.name, Verdict::kNotRun, "needs sm_90"}));
      continue;
    }
    absl::Status status = CheckJoinedRope(input.body, c);
    c.rope.shape.element = cuda::KvElement::kFp8;
    if (status.ok()) status = CheckJoinedRope(input.body, c);
    status = OfCase(std::move(status),
                    {{"head_dim", c.rope.shape.head_dim},
                     {"k", c.k},
                     {"inputs", "RopeBatch of rope_checks.cc, x and w of seeds 24 and 25"}});
    BATON_RETURN_IF_ERROR(report.Add(OutcomeOf(
        c.name, status,
        fmt::format("heads of {} dims from {}, bf16 and fp8", c.rope.shape.head_dim, c.k))));
  }
  return absl::OkStatus();
}

absl::Status CheckRopeAppend(const StageInput& input, Report& report) {
  const std::vector<RopeCase> tiny = {
      {"rope_append 64", {64, 2, 1, 16}, false, false, false, {{1, 14, 3}, {kPaddingRow, 0, 2}}},
      {"rope_append 128", {128, 9, 3, 32}, true, true, true, {{0, 30, 4}, {1, 5, 1}}},
      {"rope_append 256", {256, 2, 2, 64}, false, false, true, {{kPaddingRow, 0, 1}, {0, 63, 2}}}};
  const std::vector<RopeCase> full = {
      {"rope_append 64", {64, 9, 3, 16}, true, true, false, {{2, 100, 300}, {0, 4095, 1}}},
      {"rope_append 128",
       {128, 32, 8, 32},
       false,
       false,
       false,
       {{0, 1000, 257}, {1, 0, 33}, {kPaddingRow, 0, 5}}},
      {"rope_append 256", {256, 16, 4, 64}, false, true, true, {{1, 63, 65}, {0, 999, 1}}}};
  for (const RopeCase& c : input.is_tiny ? tiny : full) {
    if (!report.Begin(c.name)) continue;
    absl::Status status = CheckRope(input.body, c);
    if (status.ok()) status = CheckRopeCodes(input.body, c);
    auto chunks = nlohmann::json::array();
    for (const Chunk& chunk : c.chunks) {
      chunks.push_back({chunk.sequence, chunk.first, chunk.count});
    }
    status = OfCase(std::move(status),
                    {{"head_dim", c.shape.head_dim},
                     {"num_heads", c.shape.num_heads},
                     {"num_kv_heads", c.shape.num_kv_heads},
                     {"block_size", c.shape.block_size},
                     {"chunks", std::move(chunks)},
                     {"inputs", "RopeBatch of rope_checks.cc: RandomBf16, seeds 21 to 23"}});
    BATON_RETURN_IF_ERROR(report.Add(
        OutcomeOf(c.name, status,
                  fmt::format("{} heads on {}, blocks of {}, bf16 and fp8", c.shape.num_heads,
                              c.shape.num_kv_heads, c.shape.block_size))));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
