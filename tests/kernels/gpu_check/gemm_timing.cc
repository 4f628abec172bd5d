#include "tests/kernels/gpu_check/gemm_timing.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "src/base/status.h"

namespace baton::kernels::gpu_check {
namespace {

// Like a layer's: sums of some thousand products stay of the size of x.
constexpr float kWeightSpread = 0.02f;

size_t BytesOf(const ProductShape& shape) { return size_t{2} * shape.n * shape.k; }

// Bytes of the matrix in a packed format, rounded up to the next piece of a RandomMemory.
size_t PackedPieceBytes(cuda::PackedFormat format, const ProductShape& shape) {
  constexpr size_t kPiece = 256;
  return (cuda::PackedBytes(format, shape.n, shape.k) + kPiece - 1) / kPiece * kPiece;
}

}  // namespace

GemmTiming::GemmTiming(const StageInput& input, const ProductShape& shape, uint32_t max_rows)
    : input_(input),
      shape_(shape),
      w_(input, BytesOf(shape), kWeightSpread),
      x_(input, size_t{2} * max_rows * shape.k, 1.0f),
      y_(input.body, size_t{max_rows} * shape.n),
      unpacked_(input.body, shape.is_output ? 0 : size_t{shape.n} * shape.k),
      partials_(input.body, cuda::kGemmMaxPartialBytes),
      counters_(input.body, std::vector<uint32_t>(cuda::kGemmCounters)),
      squares_(input.body, std::vector<float>(
                               size_t{cuda::kMaxNormedRows} * std::max(shape.n, shape.k) / 8, 1)) {
  status_.Update(FirstFailure(w_, x_, y_, unpacked_, partials_, counters_, squares_));
}

cuda::GemmParams GemmTiming::ParamsOf(uint32_t m, cuda::GemmPath path) {
  return {.x = reinterpret_cast<const cuda::Bf16*>(x_.Piece(0, 0)),
          .w = nullptr,
          .y_bf16 = y_.data(),
          .m = m,
          .n = shape_.n,
          .k = shape_.k,
          .partials = partials_.data(),
          .counters = counters_.data(),
          .partial_bytes = cuda::kGemmMaxPartialBytes,
          .path = path,
          .allows_wgmma = input_.major == 9};
}

absl::StatusOr<double> GemmTiming::Add(const TimedCase& named, uint32_t m, cuda::GemmPath path,
                                       Report& report) {
  TimedCase timed = named;
  const size_t bytes = BytesOf(shape_);
  timed.bytes = static_cast<double>(bytes) + 2.0 * m * (shape_.n + shape_.k);
  timed.flops = 2.0 * m * shape_.n * shape_.k;
  const cuda::GemmParams params = ParamsOf(m, path);
  timed.work = WorkOf(input_, w_.NumPieces(bytes), [this, params, bytes](void* stream, uint32_t i) {
    cuda::GemmParams launch = params;
    launch.w = reinterpret_cast<const cuda::Bf16*>(w_.Piece(bytes, i));
    return input_.body.kernels().gemm_bf16(launch, stream);
  });
  return AddTimed(input_, timed, report);
}

cuda::NormedRows GemmTiming::NormOf(uint32_t m) {
  const bool has_kernel = m <= cuda::kMaxNormedRows && shape_.k <= cuda::kMaxNormedDim;
  if (!has_kernel || input_.major != 9) return {};
  return {reinterpret_cast<const cuda::Bf16*>(x_.Piece(0, 0)), squares_.data(), 1e-5f};
}

absl::Status GemmTiming::AddSum(const TimedCase& named, uint32_t m, Report& report) {
  TimedCase timed = named;
  const size_t bytes = BytesOf(shape_);
  timed.bytes = static_cast<double>(bytes) + 2.0 * m * (2 * shape_.n + shape_.k);
  timed.flops = 2.0 * m * shape_.n * shape_.k;
  const cuda::GemmParams params = ParamsOf(m, cuda::GemmPath::kNarrow);
  timed.work = WorkOf(input_, w_.NumPieces(bytes), [this, params, bytes](void* stream, uint32_t i) {
    cuda::GemmParams launch = params;
    launch.w = reinterpret_cast<const cuda::Bf16*>(w_.Piece(bytes, i));
    return input_.body.kernels().gemm_sum({launch, squares_.data()}, stream);
  });
  return AddTimed(input_, timed, report).status();
}

absl::Status GemmTiming::AddGated(const TimedCase& named, uint32_t m, Report& report) {
  TimedCase timed = named;
  const size_t bytes = BytesOf(shape_);
  timed.bytes = static_cast<double>(bytes) + 2.0 * m * (shape_.n / 2 + shape_.k);
  timed.flops = 2.0 * m * shape_.n * shape_.k;
  const cuda::GemmParams params = ParamsOf(m, cuda::GemmPath::kAuto);
  timed.work = WorkOf(input_, w_.NumPieces(bytes), [this, params, bytes](void* stream, uint32_t i) {
    cuda::GemmParams launch = params;
    launch.w = reinterpret_cast<const cuda::Bf16*>(w_.Piece(bytes, i));
    return input_.body.kernels().gemm_gated({launch, cuda::GateKind::kSilu, NormOf(launch.m)},
                                            stream);
  });
  return AddTimed(input_, timed, report).status();
}

absl::Status GemmTiming::AddRoped(const TimedCase& named, uint32_t m, Report& report) {
  const ModelShape& model = ShapeFor(input_.is_tiny);
  const DeviceBody& body = input_.body;
  cuda::KvBlocks kv = {nullptr, 0, model.num_kv_heads, model.head_dim, kShapeBlockSize};
  kv.block_stride_bytes = 2 * kv.ValueOffset();
  std::vector<uint32_t> numbers(m);  // of the sequences, and of the block of each
  std::iota(numbers.begin(), numbers.end(), 0u);
  DeviceArray<uint32_t> sequences(body, numbers);
  DeviceArray<uint32_t> positions(body, std::vector<uint32_t>(m, kShapeBlockSize - 1));
  DeviceArray<float> cos_sin(body,
                             std::vector<float>(size_t{kShapeBlockSize} * model.head_dim, 0.5f));
  DeviceArray<std::byte> blocks(body, m * kv.block_stride_bytes);
  DeviceArray<cuda::Bf16> q(body, size_t{m} * model.num_heads * model.head_dim);
  DeviceArray<uint32_t> arrivals(
      body, std::vector<uint32_t>(cuda::RopeArrivals(model.num_heads, model.num_kv_heads)));
  BATON_RETURN_IF_ERROR(FirstFailure(sequences, positions, cos_sin, blocks, q, arrivals));
  kv.base = blocks.data();
  const cuda::RopeAppendParams rope = {.qkv = y_.data(),
                                       .q_norm = nullptr,
                                       .k_norm = nullptr,
                                       .cos_sin = cos_sin.data(),
                                       .positions = positions.data(),
                                       .sequences = sequences.data(),
                                       .block_lists = sequences.data(),
                                       .q = q.data(),
                                       .kv = kv,
                                       .num_rows = m,
                                       .num_heads = model.num_heads,
                                       .max_blocks = 1,
                                       .eps = 1e-5f,
                                       .interleaved = false};
  TimedCase timed = named;
  const size_t bytes = BytesOf(shape_);
  timed.bytes = static_cast<double>(bytes) + 2.0 * m * (shape_.n + shape_.k);
  timed.flops = 2.0 * m * shape_.n * shape_.k;
  const cuda::GemmParams params = ParamsOf(m, cuda::GemmPath::kAuto);
  timed.work = WorkOf(input_, w_.NumPieces(bytes), [&](void* stream, uint32_t i) {
    cuda::GemmParams launch = params;
    launch.w = reinterpret_cast<const cuda::Bf16*>(w_.Piece(bytes, i));
    return body.kernels().gemm_rope({launch, rope, arrivals.data(), NormOf(m)}, stream);
  });
  return AddTimed(input_, timed, report).status();
}

absl::Status GemmTiming::AddPacked(const TimedCase& named, uint32_t m, cuda::PackedFormat format,
                                   Report& report) {
  TimedCase timed = named;
  const size_t bytes = PackedPieceBytes(format, shape_);
  timed.bytes = static_cast<double>(bytes) + 2.0 * m * (shape_.n + shape_.k);
  timed.flops = 2.0 * m * shape_.n * shape_.k;
  const cuda::GemmParams params = ParamsOf(m, cuda::GemmPath::kAuto);
  timed.work =
      WorkOf(input_, w_.NumPieces(bytes), [this, params, bytes, format](void* stream, uint32_t i) {
        return input_.body.kernels().gemm_packed({params, {w_.Piece(bytes, i), format}}, stream);
      });
  return AddTimed(input_, timed, report).status();
}

absl::Status GemmTiming::AddUnpack(const TimedCase& named, cuda::PackedFormat format,
                                   Report& report) {
  TimedCase timed = named;
  const size_t bytes = PackedPieceBytes(format, shape_);
  timed.bytes = static_cast<double>(bytes + BytesOf(shape_));
  timed.is_copy = true;
  timed.work = WorkOf(input_, w_.NumPieces(bytes), [this, bytes, format](void* stream, uint32_t i) {
    return input_.body.kernels().unpack(
        {.w = {w_.Piece(bytes, i), format}, .out = unpacked_.data(), .n = shape_.n, .k = shape_.k},
        stream);
  });
  return AddTimed(input_, timed, report).status();
}

}  // namespace baton::kernels::gpu_check
