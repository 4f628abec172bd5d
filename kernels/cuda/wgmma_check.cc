#include "kernels/cuda/wgmma_check.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/base/split_mix.h"
#include "src/device/host_buffer.h"

namespace baton::kernels::cuda {

using device::Accelerator;
using device::DeviceBuffer;
using device::HostBuffer;

namespace {

constexpr uint32_t kRows = 256;        // of x: two tiles
constexpr uint32_t kTileRows = 128;    // both warpgroups of one
constexpr uint32_t kColumns = 256;     // of w: the widest tile
constexpr uint32_t kDepth = 520;       // three segments, the last of them ragged
constexpr uint32_t kWholeDepth = 256;  // the first elements of the same memory: one segment
static_assert(GemmSegments(kColumns, kDepth).num_segments == 3);
static_assert(GemmSegments(kColumns, kWholeDepth).num_segments == 1);

// A kernel of wgmma, and the product that it is asked for. The kernels of many rows have more than
// one tile on one SM, and more stages than slots in their rings (4 to 6). So slots and sums are
// used again. The kernel of few rows has each of its three bodies.
struct AskedKernel {
  GemmPath path;
  uint32_t num_rows;
  uint32_t depth;
};
constexpr AskedKernel kAsked[] = {{GemmPath::kNarrow, 8, kDepth},
                                  {GemmPath::kNarrow, 32, kDepth},
                                  {GemmPath::kNarrow, kGemmMaxSpreadRows, kDepth},
                                  {GemmPath::kWgmma128, kTileRows, kDepth},
                                  {GemmPath::kWgmma192, kTileRows, kDepth},
                                  {GemmPath::kWgmma256, kRows, kWholeDepth}};

// Exponent fields of bf16 from which the rows of an operand are drawn, by row % 6. The products of
// two tiny ones have exponents of [-154, -132]. All of these are below the -126 of a subnormal C,
// and most are below the -133 of a C that is zero (simt/tensor_core.h). So a segment's first step
// shows what starting from zero is to either instruction. (In 98304 outputs, 728 would differ if
// mma.sync let a zero count -126.) Products of the huge ones reach infinity.
struct Exponents {
  uint32_t first;
  uint32_t count;
};
constexpr Exponents kKinds[] = {{124, 4}, {107, 40}, {50, 12}, {184, 8}, {120, 8}, {0, 130}};
constexpr uint32_t kCancelling = 4;  // the kind whose neighbours in K nearly cancel

// Rows of all kinds. Where both operands cancel, a pair's products differ in the last bit at most;
// `flips_sign` is for one of the two.
std::vector<Bf16> DrawRows(uint32_t num_rows, uint64_t seed, bool flips_sign) {
  std::vector<Bf16> values(size_t{num_rows} * kDepth);
  uint64_t state = seed;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bits = SplitMix(state += kSplitMixStep);
    const size_t kind = i / kDepth % std::size(kKinds);
    const auto exponent =
        static_cast<uint32_t>(kKinds[kind].first + (bits >> 32) % kKinds[kind].count);
    values[i].bits = static_cast<uint16_t>(exponent << 7 | (bits & 0x807F));
    if (kind != kCancelling || i % 2 == 0) continue;
    const uint16_t before = values[i - 1].bits;
    values[i].bits = static_cast<uint16_t>(flips_sign ? before ^ 0x8000 : before ^ (bits & 1));
  }
  return values;
}

bool IsNan(uint32_t bits) { return (bits & 0x7FFFFFFF) > 0x7F800000; }

// Which NaN a NaN is does not count.
uint32_t NumDifferent(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  uint32_t num_different = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    num_different += a[i] != b[i] && !(IsNan(a[i]) && IsNan(b[i])) ? 1 : 0;
  }
  return num_different;
}

// The operands on the device, and room for an answer on the host.
struct Operands {
  DeviceBuffer x;
  DeviceBuffer w;
  DeviceBuffer y;
  HostBuffer y_host;
  DeviceBuffer partials;
  DeviceBuffer counters;
};
constexpr size_t kPartialBytes = GemmPartialBytes(kGemmMaxSpreadRows, kColumns, kDepth);

absl::StatusOr<Operands> MakeOperands(Accelerator& device) {
  Operands made;
  const std::vector<Bf16> x = DrawRows(kRows, 1, true);
  const std::vector<Bf16> w = DrawRows(kColumns, 2, false);
  const auto put = [&](const std::vector<Bf16>& values) -> absl::StatusOr<DeviceBuffer> {
    const size_t bytes = values.size() * sizeof(Bf16);
    BATON_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                           DeviceBuffer::Create(&device, bytes, "check of wgmma"));
    BATON_RETURN_IF_ERROR(device.CopyIn(buffer.data(), values.data(), bytes));
    return buffer;
  };
  BATON_ASSIGN_OR_RETURN(made.x, put(x));
  BATON_ASSIGN_OR_RETURN(made.w, put(w));
  constexpr size_t kBytes = sizeof(float) * kRows * kColumns;
  BATON_ASSIGN_OR_RETURN(made.y, DeviceBuffer::Create(&device, kBytes, "check of wgmma"));
  BATON_ASSIGN_OR_RETURN(made.y_host, HostBuffer::Create(&device, kBytes, "check of wgmma"));
  BATON_ASSIGN_OR_RETURN(made.partials,
                         DeviceBuffer::Create(&device, kPartialBytes, "check of wgmma"));
  const std::vector<uint32_t> counters(kGemmCounters);
  const size_t counter_bytes = counters.size() * sizeof(uint32_t);
  BATON_ASSIGN_OR_RETURN(made.counters,
                         DeviceBuffer::Create(&device, counter_bytes, "check of wgmma"));
  BATON_RETURN_IF_ERROR(device.CopyIn(made.counters.data(), counters.data(), counter_bytes));
  BATON_RETURN_IF_ERROR(device.Wait());
  return made;
}

absl::Status Multiply(const KernelTable& kernels, Accelerator& device, const Operands& operands,
                      const AskedKernel& kernel, std::vector<uint32_t>* y) {
  // NaN, so that an output which is not written shows.
  const size_t bytes = operands.y.size_bytes();
  std::memset(operands.y_host.data(), 0xFF, bytes);
  BATON_RETURN_IF_ERROR(device.CopyIn(operands.y.data(), operands.y_host.data(), bytes));
  BATON_RETURN_IF_ERROR(kernels.gemm_bf16({.x = operands.x.as<Bf16>(),
                                           .w = operands.w.as<Bf16>(),
                                           .y_float = operands.y.as<float>(),
                                           .m = kernel.num_rows,
                                           .n = kColumns,
                                           .k = kernel.depth,
                                           .partials = operands.partials.data(),
                                           .counters = operands.counters.as<uint32_t>(),
                                           .partial_bytes = kPartialBytes,
                                           .path = kernel.path,
                                           .num_sms = 1},
                                          device.stream()));
  BATON_RETURN_IF_ERROR(device.CopyOut(operands.y_host.data(), operands.y.data(), bytes));
  BATON_RETURN_IF_ERROR(device.Wait());
  y->resize(size_t{kernel.num_rows} * kColumns);
  std::memcpy(y->data(), operands.y_host.data(), y->size() * sizeof(uint32_t));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> CheckWgmma(const KernelTable& kernels, Accelerator& device) {
  if (!kernels.has_wgmma()) return false;
  BATON_ASSIGN_OR_RETURN(const Operands operands, MakeOperands(device));
  for (const AskedKernel& kernel : kAsked) {
    std::vector<uint32_t> expected;
    std::vector<uint32_t> got;
    BATON_RETURN_IF_ERROR(Multiply(kernels, device, operands,
                                   {GemmPath::kTile64, kernel.num_rows, kernel.depth}, &expected));
    const absl::Status status = Multiply(kernels, device, operands, kernel, &got);
    if (status.code() == absl::StatusCode::kFailedPrecondition) {
      BATON_LOG_WARN("{} multiplies by mma.sync: {}", device.Describe(),
                     std::string(status.message()));
      return false;
    }
    BATON_RETURN_IF_ERROR(status);
    const uint32_t num_different = NumDifferent(expected, got);
    if (num_different == 0) continue;
    BATON_LOG_WARN("{} multiplies by mma.sync: wgmma gives {} of {} outputs other bits",
                   device.Describe(), num_different, expected.size());
    return false;
  }
  return true;
}

}  // namespace baton::kernels::cuda
