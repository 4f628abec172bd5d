// GemmBf16, GemmGated, GemmRope and GemmSum on the host: check the call and choose the kernel. The
// kernels are in gemm_rows.cu, gemm_narrow.cu, gemm_tiles.cu and gemm_wgmma.cu; all give the same
// bits, so the choice is free.
#include <string>

#include "kernels/cuda/gemm_gates.h"
#include "kernels/cuda/gemm_norm.h"
#include "kernels/cuda/gemm_rope.h"
#include "kernels/cuda/gemm_tile.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

// Rows of x that are few for every w: GemmRows32 reads weights once for them. GemmNarrow takes 64
// so, but where w alone fills the SMs tiles of many rows take as long.
constexpr uint32_t kOneGroup = 32;
static_assert(kMaxJoinedRows <= kOneGroup, "kernels of few rows alone have a tail");

// A kernel of many rows: the outputs of a tile, and its rate in percent of the fastest (wgmma: on
// an H100, by the tiles of the SM that has most, at 2048 and 8192 rows).
struct TileKernel {
  GemmPath path;
  uint32_t rows_x;
  uint32_t rows_w;
  uint32_t percent;
};
constexpr TileKernel kTile128 = {GemmPath::kTile128, 128, 128, 100};
constexpr TileKernel kWgmma128 = {GemmPath::kWgmma128, 128, 128, 76};
constexpr TileKernel kWgmma192 = {GemmPath::kWgmma192, 128, 192, 93};
constexpr TileKernel kWgmma256 = {GemmPath::kWgmma256, 128, 256, 100};

uint64_t NumTiles(const GemmParams& params, const TileKernel& kernel) {
  return ((uint64_t{params.m} - 1) / kernel.rows_x + 1) *
         ((uint64_t{params.n} - 1) / kernel.rows_w + 1);
}

// The time of the SM with the most tiles, in products of one output at a hundredth of wgmma's rate.
uint64_t CostOf(const GemmParams& params, const TileKernel& kernel) {
  const uint64_t rounds = (NumTiles(params, kernel) - 1) / params.num_sms + 1;
  return rounds * kernel.rows_x * kernel.rows_w * 100 / kernel.percent;
}

// Chooses a kernel of wgmma. wgmma makes all products of many rows: on an H100 mma.sync takes 1.5
// to 1.8 times its time at 128 rows, 2.1 to 2.7 times at 2048 and 8192.
GemmPath ChooseWgmma(const GemmParams& params) {
  const bool is_whole = GemmSegments(params.n, params.k).num_segments == 1;
  if (params.m <= kOneGroup || GemmSpreads(params.m, params.n, params.k)) return GemmPath::kNarrow;
  TileKernel best = kWgmma128;
  for (const TileKernel& kernel : {kWgmma192, kWgmma256}) {
    if (kernel.path == GemmPath::kWgmma256 && !is_whole) continue;
    if (CostOf(params, kernel) <= CostOf(params, best)) best = kernel;
  }
  return best.path;
}

// By mma.sync. Up to 32 rows weights are read once. Up to 64 they are read twice, the second time
// from L2, where the tiles of w alone would not fill the SMs (kGemmTargetTiles).
GemmPath Choose(const GemmParams& params) {
  if (params.m <= 8) return GemmPath::kRows8;
  if (params.m <= kOneGroup || GemmSpreads(params.m, params.n, params.k)) return GemmPath::kRows32;
  const bool fills = NumTiles(params, kTile128) >= params.num_sms;
  const bool fits = kGemmTile128Info.shared_bytes <= simt::max_shared_bytes();
  return fills && fits ? GemmPath::kTile128 : GemmPath::kTile64;
}

GemmPath PathOf(const GemmParams& params) {
  if (params.path != GemmPath::kAuto) return params.path;
  return params.allows_wgmma ? ChooseWgmma(params) : Choose(params);
}

// Errors in a call of `kernel`, a product that ends with the work of another kernel.
absl::Status CheckJoined(const char* kernel, const GemmParams& params) {
  const bool is_few = params.path == GemmPath::kAuto || params.path == GemmPath::kRows8 ||
                      params.path == GemmPath::kRows32 || params.path == GemmPath::kNarrow;
  if (params.m <= kMaxJoinedRows && is_few) return CheckSpread(kernel, params);
  return absl::InvalidArgumentError(std::string(kernel) + ": " + std::to_string(params.m) +
                                    " rows, or a path of many; it takes " +
                                    std::to_string(kMaxJoinedRows));
}

// Errors in a call of `kernel` that has a part of a norm of `dim` columns.
absl::Status CheckNormed(const char* kernel, const GemmParams& params, uint32_t dim,
                         const float* squares) {
  if (squares == nullptr) {
    return absl::InvalidArgumentError(std::string(kernel) + ": a norm without its squares");
  }
  const bool is_narrow = PathOf(params) == GemmPath::kNarrow;
  if (params.m <= kMaxNormedRows && dim % kVec == 0 && dim <= kMaxNormedDim && is_narrow) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(std::string(kernel) + ": a norm of " +
                                    std::to_string(params.m) + " x " + std::to_string(dim) +
                                    ", or a path without wgmma; it takes 8 x 4096");
}

}  // namespace

absl::Status CheckGemm(const char* kernel, const GemmParams& params) {
  constexpr uint32_t kMaxK = 1u << 20;
  if (absl::Status status = CheckDim(kernel, params.k, kMaxK); !status.ok()) return status;
  if (params.m == 0 || params.n == 0) return absl::OkStatus();
  if ((params.y_float == nullptr) == (params.y_bf16 == nullptr)) {
    return absl::InvalidArgumentError(std::string(kernel) +
                                      ": exactly one of y_float and y_bf16 is given");
  }
  if (params.num_sms == 0) {
    return absl::InvalidArgumentError(std::string(kernel) + ": num_sms is 0");
  }
  if (params.bias_float != nullptr && params.bias_bf16 != nullptr) {
    return absl::InvalidArgumentError(std::string(kernel) +
                                      ": at most one of bias_float and bias_bf16 is given");
  }
  return absl::OkStatus();
}

absl::Status CheckPacked(const char* kernel, const PackedMatrixView& w, uint32_t k) {
  constexpr uint32_t kGroup = 32;
  if (w.format != PackedFormat::kBf16 && w.data != nullptr && k % kGroup == 0 && k > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(std::string(kernel) + ": no packed matrix of rows of " +
                                    std::to_string(k));
}

absl::Status CheckSpread(const char* kernel, const GemmParams& params) {
  if (params.m > kGemmMaxSpreadRows) {
    return absl::InvalidArgumentError(std::string(kernel) + ": " + std::to_string(params.m) +
                                      " rows, the kernels of few rows take 64");
  }
  const size_t bytes = GemmPartialBytes(params.m, params.n, params.k);
  if (bytes == 0) return absl::OkStatus();
  if (params.partials == nullptr || params.partial_bytes < bytes) {
    return absl::InvalidArgumentError(
        std::string(kernel) + ": " + std::to_string(params.partial_bytes) +
        " bytes for partial sums, " + std::to_string(bytes) + " are needed");
  }
  if (params.counters != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(kernel) + ": no counters for partial sums");
}

absl::Status GemmBf16(const GemmParams& params, void* stream) {
  if (absl::Status status = CheckGemm("GemmBf16", params); !status.ok()) return status;
  if (params.m == 0 || params.n == 0) return absl::OkStatus();
  const GemmPath path = PathOf(params);
  const GemmLaunch launch = {params, GemmSegments(params.n, params.k)};
  if (path == GemmPath::kTile64 || path == GemmPath::kTile128) {
    return LaunchGemmTiles(launch, path, stream);
  }
  if (path == GemmPath::kWgmma128 || path == GemmPath::kWgmma192 || path == GemmPath::kWgmma256) {
    return LaunchGemmWgmma(launch, path, stream);
  }
  if (absl::Status status = CheckSpread("GemmBf16", params); !status.ok()) return status;
  return path == GemmPath::kNarrow ? LaunchGemmNarrow(launch, stream)
                                   : LaunchGemmRows(launch, path, stream);
}

absl::Status GemmGated(const GatedGemmParams& params, void* stream) {
  const GemmParams& product = params.product;
  if (absl::Status status = CheckGemm("GemmGated", product); !status.ok()) return status;
  if (product.m == 0 || product.n == 0) return absl::OkStatus();
  if (!IsPlain(product) || product.n % 2 != 0) {
    return absl::InvalidArgumentError("GemmGated: " + std::to_string(product.n) +
                                      " rows of w; they are even, y is bf16 and has no bias");
  }
  if (absl::Status status = CheckJoined("GemmGated", product); !status.ok()) return status;
  if (params.norm.weight != nullptr) {
    absl::Status status = CheckNormed("GemmGated", product, product.k, params.norm.squares);
    if (!status.ok()) return status;
  }
  const GemmPath path = PathOf(product);
  const GatedLaunch launch = {{product, GemmSegments(product.n, product.k)}, {params.gate}};
  return path == GemmPath::kNarrow ? LaunchGatedNarrow(launch, params.norm, stream)
                                   : LaunchGatedRows(launch, path, stream);
}

absl::Status GemmRope(const RopeGemmParams& params, void* stream) {
  const GemmParams& product = params.product;
  const RopeAppendParams& rope = params.rope;
  if (absl::Status status = CheckGemm("GemmRope", product); !status.ok()) return status;
  if (absl::Status status = CheckKvShape("GemmRope", rope.kv, rope.num_heads); !status.ok()) {
    return status;
  }
  const uint64_t columns = (rope.num_heads + uint64_t{2} * rope.kv.num_kv_heads) * rope.kv.head_dim;
  if (product.m != rope.num_rows || product.n != columns || product.y_bf16 != rope.qkv ||
      (rope.qkv == nullptr && product.m > 0)) {
    return absl::InvalidArgumentError("GemmRope: " + std::to_string(product.m) + " x " +
                                      std::to_string(product.n) + " is not what " +
                                      std::to_string(rope.num_rows) + " rows of " +
                                      std::to_string(columns) + " are read from");
  }
  if (product.m == 0) return absl::OkStatus();
  if (params.arrivals == nullptr && rope.kv.head_dim > kGemmRowTile) {
    return absl::InvalidArgumentError("GemmRope: no arrivals for heads of several tiles");
  }
  if (absl::Status status = CheckJoined("GemmRope", product); !status.ok()) return status;
  if (params.norm.weight != nullptr) {
    absl::Status status = CheckNormed("GemmRope", product, product.k, params.norm.squares);
    if (!status.ok()) return status;
  }
  const GemmPath path = PathOf(product);
  const RopedLaunch launch = {{product, GemmSegments(product.n, product.k)},
                              {rope, params.arrivals}};
  return path == GemmPath::kNarrow ? LaunchRopedNarrow(launch, params.norm, stream)
                                   : LaunchRopedRows(launch, path, stream);
}

absl::Status GemmSum(const SumGemmParams& params, void* stream) {
  const GemmParams& product = params.product;
  if (absl::Status status = CheckGemm("GemmSum", product); !status.ok()) return status;
  if (product.m == 0 || product.n == 0) return absl::OkStatus();
  if (!IsPlain(product)) {
    return absl::InvalidArgumentError("GemmSum: the residual is bf16, and there is no bias");
  }
  if (absl::Status status = CheckJoined("GemmSum", product); !status.ok()) return status;
  absl::Status status = CheckNormed("GemmSum", product, product.n, params.squares);
  if (!status.ok()) return status;
  return LaunchSumNarrow({{product, GemmSegments(product.n, product.k)}, {params.squares}}, stream);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
