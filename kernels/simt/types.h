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
// A kernel for at most `threads` threads a cta. One parameter: a struct, passed by value.
#define BATON_KERNEL(threads) __global__ void __launch_bounds__(threads)
#define BATON_DEVICE __device__ __forceinline__
#define BATON_UNROLL _Pragma("unroll")
// So many times; a constant that may depend on a template's parameter.
#define BATON_UNROLL_BY(times) BATON_PRAGMA(unroll times)
#define BATON_PRAGMA(text) _Pragma(#text)
#else
#define BATON_BODY runner
#define BATON_KERNEL(threads) static void
#define BATON_DEVICE inline
#define BATON_UNROLL
#define BATON_UNROLL_BY(times)
#endif

namespace baton::simt {

inline constexpr uint32_t kWarpSize = 32;
inline constexpr uint32_t kFullMask = 0xFFFFFFFFu;
inline constexpr uint32_t kMaxThreads = 1024;

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

// An object in shared memory on which threads and bulk copies arrive; opaque.
struct Mbarrier {
  uint64_t opaque;
};

// How a kernel is started. `name` appears in reports. Threads are one-dimensional, at most
// kMaxThreads. A cooperative launch needs every cta resident at once (grid barriers). One that
// overlaps may begin while the kernel before it in the stream runs (programmatic dependent launch):
// each of its threads calls wait_for_previous() on every path, and before only reads memory that no
// kernel writes.
struct LaunchConfig {
  const char* name = "kernel";
  Dim3 grid;
  uint32_t num_threads = kWarpSize;
  uint32_t shared_bytes = 0;
  bool cooperative = false;
  bool overlaps = false;
  void* stream = nullptr;
};

}  // namespace baton::simt

#endif  // BATON_KERNELS_SIMT_TYPES_H_
