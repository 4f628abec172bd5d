// The GPU body of what Hopper alone has: tensor copies and the order of wgmma, whose products are
// in gpu_wgmma_products.h. Included through device.h only; runner_body.h has the same names.
// Elsewhere than in code for sm_90a each of them traps.
#ifndef BATON_KERNELS_SIMT_GPU_WGMMA_H_
#define BATON_KERNELS_SIMT_GPU_WGMMA_H_

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/simt/gpu_body.h"
#include "kernels/simt/types.h"

namespace baton::kernels::simt {
inline namespace gpu {

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

BATON_DEVICE ColumnsDescriptor describe_columns(const void* tile, uint32_t tile_bytes,
                                                Site = Here()) {
  return DescribeColumns(shared_address(tile), tile_bytes);
}

// Makes writes of threads to shared memory visible to the wgmma and tensor copies that come after
// this call. The calling thread must know of those writes.
BATON_DEVICE void fence_proxy_async(Site = Here()) {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  __trap();
#endif
}

// The threads of the warpgroup call this at the same line, before each group of products. The
// changes that they made to sums then come first. The runner asks for it only where sums were the
// threads' own; ptxas inserts one elsewhere.
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

// As above, for products whose first operands are registers. The products own those registers until
// then.
template <size_t kCount, size_t kSteps>
BATON_DEVICE void wgmma_finish(FragmentC (&sums)[kCount], const FragmentA (&a)[kSteps],
                               Site = Here()) {
  wgmma_finish(sums);
  BATON_UNROLL
  for (size_t i = 0; i < kSteps; ++i) {
    asm volatile("" ::"r"(a[i].regs[0]), "r"(a[i].regs[1]), "r"(a[i].regs[2]), "r"(a[i].regs[3]));
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

}  // namespace gpu
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_GPU_WGMMA_H_
