// The GPU body of the device primitives: PTX for sm_80 and newer, sm_90 where it says so. Included
// through device.h only; runner_body.h has the same names. Comments here say what a call orders,
// and the runner checks that.
#ifndef BATON_KERNELS_SIMT_GPU_BODY_H_
#define BATON_KERNELS_SIMT_GPU_BODY_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/simt/gpu_arithmetic.h"
#include "kernels/simt/types.h"

namespace baton::kernels::simt {
inline namespace gpu {

// Places are known to the runner only; here they cost nothing.
struct Site {};
BATON_DEVICE constexpr Site Here() { return {}; }

BATON_DEVICE uint32_t thread() { return threadIdx.x; }
BATON_DEVICE uint32_t lane() { return threadIdx.x % kWarpSize; }
BATON_DEVICE uint32_t warp() { return threadIdx.x / kWarpSize; }
BATON_DEVICE uint32_t num_threads() { return blockDim.x; }
BATON_DEVICE Dim3 block() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
BATON_DEVICE Dim3 grid() { return {gridDim.x, gridDim.y, gridDim.z}; }

// The cta's shared memory as one struct of at most LaunchConfig::shared_bytes; uninitialised.
template <typename T>
BATON_DEVICE T& shared(Site = Here()) {
  extern __shared__ __align__(1024) unsigned char raw[];
  return *reinterpret_cast<T*>(raw);
}

BATON_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// All threads of the cta, at the same line; no thread may have returned. Orders all they did.
BATON_DEVICE void sync_block(Site = Here()) { __syncthreads(); }
// All lanes of the mask, at the same line; orders what they did.
BATON_DEVICE void sync_warp(uint32_t mask = kFullMask, Site = Here()) { __syncwarp(mask); }
// The value of lane ^ lane_mask; orders nothing.
template <typename T>
BATON_DEVICE T shfl_xor(T value, uint32_t lane_mask, uint32_t mask = kFullMask, Site = Here()) {
  static_assert(sizeof(T) == 4, "a shuffle moves one register");
  return __shfl_xor_sync(mask, value, lane_mask);
}

// After it, all kernels that came before this one in the stream are done, because each thread of
// those that overlap waited in its turn. The next one may begin. A launch that does not overlap
// has nothing to wait for.
BATON_DEVICE void wait_for_previous(Site = Here()) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Sixteen bytes, both sides aligned to 16; those from valid_bytes on become zero. The caller's
// cp_async_wait<N> ends all but its N latest committed groups; other threads see them after a
// barrier that follows.
BATON_DEVICE void cp_async16(void* to_shared, const void* from, uint32_t valid_bytes = 16,
                             Site = Here()) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)),
      "l"(__cvta_generic_to_global(from)), "r"(valid_bytes)
      : "memory");
}
BATON_DEVICE void cp_async_commit(Site = Here()) {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <uint32_t kPending>
BATON_DEVICE void cp_async_wait(Site = Here()) {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Lane 8m + r names row r of matrix m: eight 16-bit elements in shared memory, aligned to 16
// bytes. All 32 lanes; orders nothing.
BATON_DEVICE Matrices ldmatrix_x4(const void* row, Site = Here()) {
  Matrices m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.regs[0]), "=r"(m.regs[1]), "=r"(m.regs[2]), "=r"(m.regs[3])
               : "r"(shared_address(row))
               : "memory");
  return m;
}
// As ldmatrix_x4, of the transposed matrices: lane's pair is rows 2 (lane % 4) and + 1 of column
// lane / 4.
BATON_DEVICE Matrices ldmatrix_x4_trans(const void* row, Site = Here()) {
  Matrices m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.regs[0]), "=r"(m.regs[1]), "=r"(m.regs[2]), "=r"(m.regs[3])
               : "r"(shared_address(row))
               : "memory");
  return m;
}
// c += a b; all 32 lanes; orders nothing.
BATON_DEVICE void mma_bf16_m16n8k16(FragmentC& c, const FragmentA& a, const FragmentB& b,
                                    Site = Here()) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c.values[0]), "+f"(c.values[1]), "+f"(c.values[2]), "+f"(c.values[3])
      : "r"(a.regs[0]), "r"(a.regs[1]), "r"(a.regs[2]), "r"(a.regs[3]), "r"(b.regs[0]),
        "r"(b.regs[1]));
}

// A barrier of num_arrivals arrivals a phase. Others may use it after a sync_block, bulk copies
// after mbar_fence_init by the thread that initialised it.
BATON_DEVICE void mbar_init(Mbarrier* barrier, uint32_t num_arrivals, Site = Here()) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(num_arrivals)
               : "memory");
}
BATON_DEVICE void mbar_fence_init(Site = Here()) {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// Publishes what the caller did to those who wait for the phase.
BATON_DEVICE void mbar_arrive(Mbarrier* barrier, Site = Here()) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier))
      : "memory");
}
// Also has the phase wait for so many bytes of bulk copies. sm_90.
BATON_DEVICE void mbar_arrive_expect(Mbarrier* barrier, uint32_t bytes, Site = Here()) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
#else
  __trap();
#endif
}
// Until the phase of this parity is over; phases count 0, 1, 0, ... and the one before the first
// counts as over.
BATON_DEVICE void mbar_wait(Mbarrier* barrier, uint32_t parity, Site = Here()) {
  uint32_t done = 0;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity & 1)
        : "memory");
#else
    __trap();
#endif
  } while (done == 0);
}
// Bytes, addresses: multiples of 16. Arrives on the barrier with its bytes; one thread calls.
// sm_90.
BATON_DEVICE void bulk_copy(void* to_shared, const void* from, uint32_t bytes, Mbarrier* barrier,
                            Site = Here()) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to_shared)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#else
  __trap();
#endif
}

// Relaxed atomics on a word of global or shared memory, at the scope of the device; each returns
// the value before. They order only together with fence().
BATON_DEVICE uint32_t atomic_add(uint32_t* word, uint32_t value, Site = Here()) {
  return atomicAdd(word, value);
}
// A word of global or shared memory; orders nothing, fences included.
BATON_DEVICE void atomic_add64(uint64_t* word, uint64_t value, Site = Here()) {
  atomicAdd(reinterpret_cast<unsigned long long*>(word), value);
}
BATON_DEVICE uint32_t atomic_max(uint32_t* word, uint32_t value, Site = Here()) {
  return atomicMax(word, value);
}
BATON_DEVICE uint32_t atomic_exchange(uint32_t* word, uint32_t value, Site = Here()) {
  return atomicExch(word, value);
}
BATON_DEVICE uint32_t atomic_cas(uint32_t* word, uint32_t expected, uint32_t desired,
                                 Site = Here()) {
  return atomicCAS(word, expected, desired);
}
BATON_DEVICE uint32_t load_acquire(const uint32_t* word, Site = Here()) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(word))
               : "memory");
  return value;
}
BATON_DEVICE void store_release(uint32_t* word, uint32_t value, Site = Here()) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(word)),
               "r"(value)
               : "memory");
}
// Acquire and release, as above, between threads of several GPUs of this host.
BATON_DEVICE uint32_t load_acquire_system(const uint32_t* word, Site = Here()) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(word))
               : "memory");
  return value;
}
BATON_DEVICE void store_release_system(uint32_t* word, uint32_t value, Site = Here()) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(word)),
               "r"(value)
               : "memory");
}
BATON_DEVICE void fence(Site = Here()) { __threadfence(); }
BATON_DEVICE void spin_pause(Site = Here()) { __nanosleep(20); }
// Ends the launch with an error: what a thread waits for never comes.
BATON_DEVICE void give_up(Site = Here()) { __trap(); }

BATON_DEVICE bool guard(bool condition, Site = Here()) { return condition; }

// Asks for the line of 128 bytes at an address of a buffer to be brought to L2. Reads nothing, so
// it may come before wait_for_previous.
BATON_DEVICE void prefetch(const void* address, Site = Here()) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(address)));
}

// Sixteen bytes that nobody writes during the kernel and that are read once.
BATON_DEVICE Vec16 load_once(const Vec16* from) {
  Vec16 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(__cvta_generic_to_global(from)));
  return v;
}

}  // namespace gpu
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_GPU_BODY_H_
