// The scan of a gated delta net: every token decays and corrects the matrix of a head, and reads
// it; then the last inputs of the convolution are kept. And the zeros that states begin with.
//
// Work: one thread for a column of a head's matrix, which it keeps in registers from the first row
// of a span to the last; a warp a cta, so that few sequences reach many SMs. Columns never meet, so
// the plain recurrent form needs no barrier, and a state's bits depend on its tokens alone: not on
// chunks, neighbours, or whether a token was prefilled. q and k come by cp.async one token ahead.
// Bytes a span: 8 k_dim v_dim a head, and 4 (2 k_dim + 2 v_dim) a token. Flops: 7 k_dim v_dim a
// head and token. Limit: one row a span memory; more the latency of two chains of k_dim fmas a
// token. Reached: kernels/NOTES.md.
// Order: every sum is a chain of fma, i ascending from 0, as kernels/cpu/gated_delta.h has it.
#include "kernels/cuda/delta_inputs.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

using simt::Vec16;

constexpr uint32_t kScanThreads = simt::kWarpSize;
constexpr uint32_t kTailChannels = 4 * kScanThreads;  // of a cta that moves inputs
constexpr uint32_t kClearThreads = 256;
constexpr uint32_t kClearVectors = 4 * kClearThreads;  // of a cta

// q, then k of a head, of two tokens in turn.
template <uint32_t kKeyDim>
struct ScanShared {
  float tokens[2][2 * kKeyDim];
};

constexpr uint32_t TilesAHead(const DeltaDims& dims) { return (dims.v_dim - 1) / kScanThreads + 1; }
constexpr uint32_t NumColumnCtas(const DeltaDims& dims) {
  return dims.num_v_heads * TilesAHead(dims);
}
constexpr uint32_t CtasASpan(const DeltaDims& dims) {
  return NumColumnCtas(dims) + (dims.num_channels() - 1) / kTailChannels + 1;
}

BATON_DEVICE bool IsFinite(float x) { return x - x == 0.0f; }

// A thread's column of a head's matrix.
struct ScanColumn {
  uint32_t head;
  uint32_t column;  // of the head; v_dim or more in lanes that have none
  bool is_here;
};

// Starts the copy of q and k of the column's head in a row.
template <uint32_t kKeyDim>
BATON_DEVICE void BringToken(const DeltaParams& params, const ScanColumn& at, size_t row,
                             float* token) {
  constexpr uint32_t kVectors = kKeyDim / 4;
  const uint32_t k_head = at.head % params.dims.num_k_heads;
  const float* q = params.inputs + row * params.dims.num_channels() + k_head * kKeyDim;
  BATON_UNROLL
  for (uint32_t i = 0; i < 2 * kVectors; i += kScanThreads) {
    const uint32_t vector = i + simt::lane();
    const float* from =
        vector < kVectors ? q + 4 * vector : q + params.dims.key_size() + 4 * (vector - kVectors);
    simt::cp_async16(token + 4 * vector, from);
  }
}

template <uint32_t kKeyDim>
BATON_DEVICE void LoadColumn(const DeltaParams& params, const DeltaSequence& sequence,
                             const ScanColumn& at, float (&state)[kKeyDim]) {
  BATON_UNROLL
  for (float& element : state) element = 0.0f;
  if (!at.is_here || !simt::guard(sequence.span.position > 0)) return;
  const uint32_t row_bytes = params.dims.v_dim * 4;
  StateCursor cursor(params.state, sequence.blocks, at.head * kKeyDim * row_bytes + at.column * 4);
  BATON_UNROLL
  for (uint32_t i = 0; i < kKeyDim; ++i) {
    if (i > 0) cursor.Advance(row_bytes);
    state[i] = *cursor.at();
  }
}

// Returns whether all elements are finite.
template <uint32_t kKeyDim>
BATON_DEVICE bool StoreColumn(const DeltaParams& params, const uint32_t* blocks,
                              const ScanColumn& at, const float (&state)[kKeyDim]) {
  if (!at.is_here) return true;
  const uint32_t row_bytes = params.dims.v_dim * 4;
  StateCursor cursor(params.state, blocks, at.head * kKeyDim * row_bytes + at.column * 4);
  bool is_finite = true;
  BATON_UNROLL
  for (uint32_t i = 0; i < kKeyDim; ++i) {
    if (i > 0) cursor.Advance(row_bytes);
    *cursor.at() = state[i];
    is_finite &= IsFinite(state[i]);
  }
  return is_finite;
}

BATON_DEVICE const uint32_t* CopyOf(const DeltaParams& params, const DeltaSpan& span) {
  return params.copies + size_t{span.copy} * params.num_state_blocks;
}

// The numbers of a row that a column needs besides q and k.
struct ScanToken {
  float v;
  float beta;
  float decay;
};

BATON_DEVICE ScanToken TokenOf(const DeltaParams& params, const ScanColumn& at, size_t row) {
  const DeltaDims& dims = params.dims;
  const float* gates = params.gates + row * 2 * dims.num_v_heads + at.head;
  const size_t v = row * dims.num_channels() + 2 * dims.key_size() + at.head * dims.v_dim;
  return {at.is_here ? params.inputs[v + at.column] : 0.0f, gates[0], gates[dims.num_v_heads]};
}

// Moves the column on by one token, and returns what q reads.
template <uint32_t kKeyDim>
BATON_DEVICE float StepColumn(const ScanToken& token, const float* q, float (&state)[kKeyDim]) {
  const float* k = q + kKeyDim;
  float known = 0.0f;
  BATON_UNROLL
  for (uint32_t i = 0; i < kKeyDim; ++i) known = simt::fma(state[i], k[i], known);
  const float delta = (token.v - token.decay * known) * token.beta;
  // The compiler would keep all of k for the second pass, and spill 144 bytes of the state.
  simt::sync_warp();  // k is read again
  float read = 0.0f;
  BATON_UNROLL
  for (uint32_t i = 0; i < kKeyDim; ++i) {
    state[i] = simt::fma(k[i], delta, state[i] * token.decay);
    read = simt::fma(state[i], q[i], read);
  }
  return read;
}

template <uint32_t kKeyDim>
BATON_DEVICE void ScanSpan(const DeltaParams& params, uint32_t span_idx, const ScanColumn& at) {
  auto& memory = simt::shared<ScanShared<kKeyDim>>();
  const DeltaSequence sequence = SequenceOf(params, span_idx);
  const DeltaSpan& span = sequence.span;
  const uint32_t end = span.first_row + span.num_rows;
  BringToken<kKeyDim>(params, at, span.first_row, memory.tokens[0]);
  simt::cp_async_commit();
  float state[kKeyDim];
  LoadColumn<kKeyDim>(params, sequence, at, state);
  ScanToken next = TokenOf(params, at, span.first_row);
  for (uint32_t row = span.first_row; row < end; ++row) {
    const ScanToken token = next;
    const uint32_t slot = (row - span.first_row) % 2;
    if (row + 1 < end) {
      BringToken<kKeyDim>(params, at, row + 1, memory.tokens[1 - slot]);
      next = TokenOf(params, at, row + 1);
    }
    simt::cp_async_commit();
    simt::cp_async_wait<1>();
    simt::sync_warp();  // the token is here, of all lanes' copies
    const float read = StepColumn<kKeyDim>(token, memory.tokens[slot], state);
    const size_t v = size_t{row} * params.dims.num_channels() + 2 * params.dims.key_size() +
                     at.head * params.dims.v_dim;
    if (at.is_here) params.inputs[v + at.column] = read;
    if (simt::guard(row + 1 == span.first_row + span.copy_rows)) {
      const bool is_finite = StoreColumn<kKeyDim>(params, CopyOf(params, span), at, state);
      if (!simt::guard(is_finite)) simt::atomic_max(params.broken + span_idx, 1);
    }
    simt::sync_warp();  // all lanes have read it: the next but one may come
  }
  StoreColumn<kKeyDim>(params, sequence.blocks, at, state);
}

// Keeps the last inputs of a channel: those before row `num_rows` of the span. Returns whether all
// are finite. With the span's own blocks it moves them, the oldest first, so that each is read
// before it is overwritten.
BATON_DEVICE bool KeepInputs(const DeltaParams& params, const DeltaSequence& sequence,
                             uint32_t num_rows, const uint32_t* to, uint32_t channel) {
  const uint32_t num_kept = params.dims.num_taps - 1;
  bool is_finite = true;
  for (uint32_t j = 0; j < num_kept; ++j) {
    const int32_t idx = static_cast<int32_t>(num_rows + j) - static_cast<int32_t>(num_kept);
    const float input = InputAt(params, sequence, idx, channel);
    *TailAt(params, to, j, channel) = input;
    is_finite &= IsFinite(input);
  }
  return is_finite;
}

BATON_DEVICE void KeepTail(const DeltaParams& params, uint32_t span_idx, uint32_t part) {
  const DeltaSequence sequence = SequenceOf(params, span_idx);
  const DeltaSpan& span = sequence.span;
  for (uint32_t i = simt::lane(); i < kTailChannels; i += kScanThreads) {
    const uint32_t channel = part * kTailChannels + i;
    if (!simt::guard(channel < params.dims.num_channels())) return;
    if (simt::guard(span.copy_rows > 0)) {
      const bool is_finite =
          KeepInputs(params, sequence, span.copy_rows, CopyOf(params, span), channel);
      if (!simt::guard(is_finite)) simt::atomic_max(params.broken + span_idx, 1);
    }
    KeepInputs(params, sequence, span.num_rows, sequence.blocks, channel);
  }
}

template <uint32_t kKeyDim>
BATON_DEVICE void Scan(const DeltaParams& params) {
  simt::wait_for_previous();
  const uint32_t ctas_a_span = CtasASpan(params.dims);
  const uint32_t span_idx = simt::block().x / ctas_a_span;
  const uint32_t part = simt::block().x % ctas_a_span;
  if (!simt::guard(params.spans[span_idx].num_rows > 0)) return;
  const uint32_t num_column_ctas = NumColumnCtas(params.dims);
  if (part >= num_column_ctas) return KeepTail(params, span_idx, part - num_column_ctas);
  const uint32_t tiles = TilesAHead(params.dims);
  const uint32_t column = part % tiles * kScanThreads + simt::lane();
  ScanSpan<kKeyDim>(params, span_idx,
                    {part / tiles, column, simt::guard(column < params.dims.v_dim)});
}

BATON_KERNEL(kScanThreads) DeltaScan64Kernel(DeltaParams params) { Scan<64>(params); }
BATON_KERNEL(kScanThreads) DeltaScan128Kernel(DeltaParams params) { Scan<128>(params); }

BATON_KERNEL(kClearThreads) ClearBlocksKernel(ClearBlocksParams params) {
  simt::wait_for_previous();
  const auto vectors = static_cast<uint32_t>(params.block_bytes / sizeof(Vec16));
  const uint32_t parts = (vectors - 1) / kClearVectors + 1;
  const uint32_t block = params.blocks[simt::block().x / parts];
  auto* to = reinterpret_cast<Vec16*>(params.base + block * params.block_stride_bytes);
  const uint32_t first = simt::block().x % parts * kClearVectors + simt::thread();
  for (uint32_t i = 0; i < kClearVectors; i += kClearThreads) {
    if (simt::guard(first + i < vectors)) to[first + i] = {};
  }
}

absl::Status Refuse(const char* kernel, const std::string& why) {
  return absl::InvalidArgumentError(std::string(kernel) + ": " + why);
}

absl::Status CheckBlocks(const char* kernel, const DeltaParams& params) {
  const DeltaStateBlocks& state = params.state;
  if (state.slice_bytes % 64 != 0 || state.slice_bytes < params.dims.v_dim * sizeof(float)) {
    return Refuse(kernel, "slices of " + std::to_string(state.slice_bytes) +
                              " bytes are no multiple of 64 that holds a row of a state");
  }
  if (state.offset % 64 != 0 || state.block_stride_bytes % 16 != 0) {
    return Refuse(kernel, "an offset of " + std::to_string(state.offset) +
                              " and a block stride of " + std::to_string(state.block_stride_bytes) +
                              " bytes are no multiples of 64 and 16");
  }
  const uint64_t room = uint64_t{params.num_state_blocks} * state.slice_bytes;
  const uint64_t end = uint64_t{state.offset} + params.dims.state_bytes();
  if (room >= end && end <= UINT32_MAX) return absl::OkStatus();
  return Refuse(kernel, "a state that ends at byte " + std::to_string(end) + " does not fit in " +
                            std::to_string(params.num_state_blocks) + " blocks");
}

}  // namespace

absl::Status CheckDelta(const char* kernel, const DeltaParams& params) {
  const DeltaDims& dims = params.dims;
  if (dims.k_dim != kDeltaKeyDims[0] && dims.k_dim != kDeltaKeyDims[1]) {
    return Refuse(kernel, "k_dim " + std::to_string(dims.k_dim) + " is not 64 or 128");
  }
  constexpr uint32_t kMaxSize = 1u << 20;  // of all heads of v
  if (dims.v_dim == 0 || dims.v_dim % 16 != 0 || dims.v_dim > kMaxSize) {
    return Refuse(kernel, "v_dim " + std::to_string(dims.v_dim) + " is no multiple of 16");
  }
  const bool divides = dims.num_k_heads > 0 && dims.num_v_heads > 0 &&
                       dims.num_v_heads % dims.num_k_heads == 0 &&
                       dims.num_v_heads <= kMaxSize / dims.v_dim;
  if (!divides) {
    return Refuse(kernel, std::to_string(dims.num_v_heads) + " heads of v for " +
                              std::to_string(dims.num_k_heads) + " of k");
  }
  if (dims.num_taps < 2 || dims.num_taps > kMaxDeltaTaps) {
    return Refuse(kernel, std::to_string(dims.num_taps) + " taps are not in [2, 16]");
  }
  return CheckBlocks(kernel, params);
}

const KernelInfo kDeltaScanInfos[2] = {
    {"DeltaScan64Kernel", kScanThreads, sizeof(ScanShared<64>)},
    {"DeltaScan128Kernel", kScanThreads, sizeof(ScanShared<128>)}};
const KernelInfo kClearBlocksInfo = {"ClearBlocksKernel", kClearThreads, 0};

absl::Status DeltaScan(const DeltaParams& params, void* stream) {
  if (absl::Status status = CheckDelta("DeltaScan", params); !status.ok()) return status;
  if (params.num_spans == 0) return absl::OkStatus();
  const uint64_t ctas = uint64_t{CtasASpan(params.dims)} * params.num_spans;
  if (ctas > kMaxGridX) return Refuse("DeltaScan", "too many spans for one grid");
  const bool is_small = params.dims.k_dim == kDeltaKeyDims[0];
  return simt::launch({.name = "DeltaScan",
                       .grid = {static_cast<uint32_t>(ctas), 1, 1},
                       .num_threads = kScanThreads,
                       .shared_bytes = kDeltaScanInfos[is_small ? 0 : 1].shared_bytes,
                       .overlaps = true,
                       .stream = stream},
                      is_small ? DeltaScan64Kernel : DeltaScan128Kernel, params);
}

absl::Status ClearBlocks(const ClearBlocksParams& params, void* stream) {
  if (params.block_bytes == 0 || params.block_bytes % sizeof(Vec16) != 0 ||
      params.block_stride_bytes % sizeof(Vec16) != 0 || params.block_bytes > UINT32_MAX) {
    return Refuse("ClearBlocks", "blocks of " + std::to_string(params.block_bytes) + " bytes, " +
                                     std::to_string(params.block_stride_bytes) +
                                     " apart, are no multiples of 16");
  }
  if (params.num_blocks == 0) return absl::OkStatus();
  const uint64_t vectors = params.block_bytes / sizeof(Vec16);
  const uint64_t ctas = ((vectors - 1) / kClearVectors + 1) * params.num_blocks;
  if (ctas > kMaxGridX) return Refuse("ClearBlocks", "too many blocks for one grid");
  return simt::launch({.name = "ClearBlocks",
                       .grid = {static_cast<uint32_t>(ctas), 1, 1},
                       .num_threads = kClearThreads,
                       .overlaps = true,
                       .stream = stream},
                      ClearBlocksKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
