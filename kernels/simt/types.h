// Plain types and macros that both bodies of the device primitives share. A kernel source includes
// kernels/simt/device.h, never this file or a body.
//
// nvcc defines __CUDACC__ and gets the body `gpu`; any other compiler gets the body `runner`. Both
// are inline namespaces, so a program can link the two builds of one kernel source.
#ifndef BATON_KERNELS_SIMT_TYPES_H_
#define BATON_KERNELS_SIMT_TYPES_H_

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define BATON_BODY gpu
// A kernel of at most so many threads; then ctas an SM has registers for. One struct, by value.
#define BATON_KERNEL(...) __global__ void __launch_bounds__(__VA_ARGS__)
// Before a kernel's parameter that holds a TensorMap: copies are given its address.
#define BATON_MAP_PARAM const __grid_constant__
#define BATON_DEVICE __device__ __forceinline__
#define BATON_UNROLL _Pragma("unroll")
// So many times; a constant that may depend on a template's parameter.
#define BATON_UNROLL_BY(times) BATON_PRAGMA(unroll times)
#define BATON_PRAGMA(text) _Pragma(#text)
#else
#define BATON_BODY runner
#define BATON_KERNEL(...) static void
#define BATON_MAP_PARAM const
#define BATON_DEVICE inline
#define BATON_UNROLL
#define BATON_UNROLL_BY(times)
#endif

namespace baton::kernels::simt {

inline constexpr uint32_t kWarpSize = 32;
inline constexpr uint32_t kFullMask = 0xFFFFFFFFu;
inline constexpr uint32_t kMaxThreads = 1024;
// Shared memory that a cta can have on every GPU from sm_80 on (8.6, 8.9 and 12.0 have no more).
inline constexpr uint32_t kLeastSharedBytes = 99 * 1024;

// Sizes of a grid, or a position in it.
struct Dim3 {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
};

// A bfloat16 as stored: the upper half of an fp32.
struct Bf16 {
  uint16_t bits;
};

// Sixteen bytes that one thread moves in one access.
struct alignas(16) Vec16 {
  uint32_t words[4];
};

// Operands of the m16n8k16 product of one warp, as PTX lays them over the lanes (PTX ISA, "Matrix
// fragments for mma.m16n8k16 with floating point type"). g = lane / 4, t = lane % 4; a pair is two
// bf16 of consecutive k, the lower one in the lower half.
//   A [16][16]: regs 0..3 = pairs at (row g, k 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
//   B [k 16][n 8]: regs 0..1 = pairs at (k 2t, n g), (k 2t + 8, n g)
//   C [16][8]: values 0..3 at (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
struct FragmentA {
  uint32_t regs[4];
};
// See FragmentA.
struct FragmentB {
  uint32_t regs[2];
};
// See FragmentA.
struct FragmentC {
  float values[4];
};

// Four 8 x 8 matrices of 16-bit elements: lane's pair (row lane / 4, columns 2 (lane % 4) and + 1)
// of each.
struct Matrices {
  uint32_t regs[4];
};

// Threads whose products one wgmma makes: four warps, the first a multiple of four.
inline constexpr uint32_t kWarpgroupSize = 128;
// bf16 in a row of a tile that tensor_copy writes and wgmma reads: 128 bytes, the span of the
// swizzle. Chunk c of 16 bytes of row r lies at chunk c ^ (r % 8) of that row. So a tile begins at
// a multiple of 1024 bytes, eight rows.
inline constexpr uint32_t kTileColumns = 64;
inline constexpr uint32_t kTileAlignment = 1024;
inline constexpr uint32_t kMaxTileRows = 256;

// A matrix in global memory as a tensor copy sees it, opaque: made on the host by make_tensor_map,
// read in a kernel's parameters (BATON_MAP_PARAM).
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// The first element of a tile in its matrix.
struct TileCorner {
  uint32_t column;
  uint32_t row;
};

// The matrix that a TensorMap is made of: row-major bf16, aligned to 16 bytes; row_elements is a
// multiple of 8.
struct TensorShape {
  const Bf16* data;  // [num_rows][row_elements]
  uint32_t num_rows;
  uint32_t row_elements;
  uint32_t tile_rows;  // that one copy brings, each kTileColumns long; at most kMaxTileRows
};

// An operand of wgmma in shared memory: K-major rows of a tile, swizzled in spans of 128 bytes (PTX
// ISA, "Matrix Descriptor Format"): [layout 2 = 1][0 16][bytes between groups of eight rows / 16:
// 14][0 2][unused with this swizzle: 14][0 2][shared address / 16: 14].
struct TileDescriptor {
  uint64_t bits;
};

// The descriptor of the tile at a shared address.
constexpr TileDescriptor DescribeTile(uint32_t shared_address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupBytes = uint64_t{kTileAlignment / 16} << 32;
  constexpr uint64_t kUnused = uint64_t{1} << 16;
  return {kSwizzle128 | kGroupBytes | kUnused | (shared_address & 0x3FFFF) >> 4};
}

// The descriptor from column 16 * step on: the swizzle is of the address, so the start alone moves.
constexpr TileDescriptor TileStep(TileDescriptor tile, uint32_t step) {
  constexpr uint32_t kStepBytes = 32;
  return {tile.bits + static_cast<uint64_t>(step * (kStepBytes / 16))};
}

// The second operand of wgmma with the columns of the product along the rows of tiles ("MN-major"),
// as V lies: row k of a tile holds element k of 64 columns, and the tile of the next 64 lies
// tile_bytes behind: [layout 2 = 1][0 16][bytes between groups of eight rows / 16: 14][0
// 2][tile_bytes / 16: 14][0 2][shared address / 16: 14].
struct ColumnsDescriptor {
  uint64_t bits;
};

// The descriptor of the first of those tiles, at a shared address.
constexpr ColumnsDescriptor DescribeColumns(uint32_t shared_address, uint32_t tile_bytes) {
  constexpr uint64_t kUnused = uint64_t{1} << 16;
  const uint64_t between = uint64_t{tile_bytes / 16} << 16;
  return {(DescribeTile(shared_address).bits & ~kUnused) | between};
}

// The descriptor from row 16 * step on.
constexpr ColumnsDescriptor ColumnsStep(ColumnsDescriptor columns, uint32_t step) {
  constexpr uint32_t kStepBytes = 16 * 128;
  return {columns.bits + static_cast<uint64_t>(step * (kStepBytes / 16))};
}

// An object in shared memory on which threads and bulk copies arrive; opaque.
struct Mbarrier {
  uint64_t opaque;
};

// How a kernel is started. `name` appears in reports. Threads are one-dimensional, at most
// kMaxThreads. A cooperative launch needs every cta resident at once (grid barriers). One that
// overlaps may begin while the kernel before it in the stream runs (programmatic dependent launch):
// each of its threads calls wait_for_previous() on every path, and before only reads memory that no
// kernel under way writes.
struct LaunchConfig {
  const char* name = "kernel";
  Dim3 grid;
  uint32_t num_threads = kWarpSize;
  uint32_t shared_bytes = 0;
  bool cooperative = false;
  bool overlaps = false;
  void* stream = nullptr;
};

}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_TYPES_H_
