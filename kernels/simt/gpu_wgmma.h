// The GPU body of what Hopper alone has: tensor copies and wgmma. Included through device.h only;
// runner_body.h has the same names. Elsewhere than in code for sm_90a each of them traps.
#ifndef BATON_KERNELS_SIMT_GPU_WGMMA_H_
#define BATON_KERNELS_SIMT_GPU_WGMMA_H_

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/simt/gpu_body.h"
#include "kernels/simt/types.h"

namespace baton::simt {
inline namespace gpu {

// On the host: whether the current device is a Hopper.
bool has_wgmma();
// On the host: *map = the matrix, for copies of tiles. InvalidArgument for a shape that no map
// takes, FailedPrecondition when the driver has no tensor maps.
absl::Status make_tensor_map(const TensorShape& shape, TensorMap* map);

// A tile of the map's matrix, zero where that ends; arrives on the barrier with all of the tile's
// bytes. One thread calls; the tile is aligned to kTileAlignment.
BATON_DEVICE void tensor_copy(void* to_shared, const TensorMap& map, TileCorner corner,
                              Mbarrier* barrier, Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(shared_address(to_shared)),
      "l"(&map), "r"(corner.column), "r"(corner.row), "r"(shared_address(barrier))
      : "memory");
#else
  __trap();
#endif
}

// A tile in shared memory as an operand.
BATON_DEVICE TileDescriptor describe_tile(const void* tile, Site = Here()) {
  return DescribeTile(shared_address(tile));
}

// What the calling thread knows to be written in shared memory by threads becomes visible to wgmma
// and tensor copies that come after it in this order.
BATON_DEVICE void fence_proxy_async(Site = Here()) {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  __trap();
#endif
}

// Of the warpgroup, at the same line, before each group of products: what its threads did to sums
// comes first. The runner asks for it only where sums were the threads' own; ptxas inserts one
// elsewhere.
BATON_DEVICE void wgmma_fence(Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  __trap();
#endif
}
// Ends a group of products, as cp_async_commit does of copies.
BATON_DEVICE void wgmma_commit(Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  __trap();
#endif
}
// Until all but the latest kPending groups are done: they have read their tiles.
template <uint32_t kPending>
BATON_DEVICE void wgmma_wait(Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#else
  __trap();
#endif
}
// Until all groups are done; then `sums` may be read and written.
template <size_t kCount>
BATON_DEVICE void wgmma_finish(FragmentC (&sums)[kCount], Site = Here()) {
  wgmma_wait<0>();
  // No use of the sums may be moved before the wait.
  BATON_UNROLL
  for (size_t i = 0; i < kCount; ++i) {
    asm volatile(""
                 : "+f"(sums[i].values[0]), "+f"(sums[i].values[1]), "+f"(sums[i].values[2]),
                   "+f"(sums[i].values[3])::"memory");
  }
}

// Registers of a thread for each thread of the warpgroup: the pool of those that reg_dealloc gave
// back is what reg_alloc waits for. Multiples of 8 in [24, 256].
template <uint32_t kRegisters>
BATON_DEVICE void reg_dealloc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#else
  __trap();
#endif
}
template <uint32_t kRegisters>
BATON_DEVICE void reg_alloc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#else
  __trap();
#endif
}

#define BATON_SUMS_OF(j) \
  "+f"(sums[j].values[0]), "+f"(sums[j].values[1]), "+f"(sums[j].values[2]), "+f"(sums[j].values[3])
#define BATON_EIGHT_SUMS(j)                                                           \
  BATON_SUMS_OF(j), BATON_SUMS_OF(j + 1), BATON_SUMS_OF(j + 2), BATON_SUMS_OF(j + 3), \
      BATON_SUMS_OF(j + 4), BATON_SUMS_OF(j + 5), BATON_SUMS_OF(j + 6), BATON_SUMS_OF(j + 7)

// sums = a b^T, plus sums when `adds`: a is 64 rows, b as many as there are columns, of one step of
// 16 columns of their tiles. Asynchronous: until wgmma_finish the sums are not the caller's, and
// until a wait that covers its group neither are the tiles. The threads of a warpgroup call at the
// same line with the same operands; sums[j] is thread t's part of columns [8j, 8j + 8) of rows
// [16 (t / 32), 16 (t / 32) + 16), as FragmentC says. Orders nothing.
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[16], TileDescriptor a, TileDescriptor b,
                                    bool adds, Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0; }"
      : BATON_EIGHT_SUMS(0), BATON_EIGHT_SUMS(8)
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<uint32_t>(adds)));
#else
  __trap();
#endif
}
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[24], TileDescriptor a, TileDescriptor b,
                                    bool adds, Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
      "}, %96, %97, p, 1, 1, 0, 0; }"
      : BATON_EIGHT_SUMS(0), BATON_EIGHT_SUMS(8), BATON_EIGHT_SUMS(16)
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<uint32_t>(adds)));
#else
  __trap();
#endif
}
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[32], TileDescriptor a, TileDescriptor b,
                                    bool adds, Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127"
      "}, %128, %129, p, 1, 1, 0, 0; }"
      : BATON_EIGHT_SUMS(0), BATON_EIGHT_SUMS(8), BATON_EIGHT_SUMS(16), BATON_EIGHT_SUMS(24)
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<uint32_t>(adds)));
#else
  __trap();
#endif
}
#undef BATON_EIGHT_SUMS
#undef BATON_SUMS_OF

}  // namespace gpu
}  // namespace baton::simt

#endif  // BATON_KERNELS_SIMT_GPU_WGMMA_H_
