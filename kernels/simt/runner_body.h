// The runner body of the device primitives: thin calls into the runner (runner_calls.h). Included
// through device.h only; gpu_body.h has the same names, and says what each promises.
#ifndef BATON_KERNELS_SIMT_RUNNER_BODY_H_
#define BATON_KERNELS_SIMT_RUNNER_BODY_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"

#include "kernels/math.h"
#include "kernels/simt/runner_calls.h"
#include "kernels/simt/site.h"
#include "kernels/simt/types.h"

namespace baton::kernels::simt {
inline namespace runner {

// Position.
inline uint32_t thread() { return calls::Thread(); }
inline uint32_t lane() { return calls::Thread() % kWarpSize; }
inline uint32_t warp() { return calls::Thread() / kWarpSize; }
inline uint32_t num_threads() { return calls::NumThreads(); }
inline Dim3 block() { return calls::Block(); }
inline Dim3 grid() { return calls::Grid(); }

// The cta's shared memory as one struct, aligned to 128 bytes. It starts as NaN.
template <typename T>
T& shared(Site site = Here()) {
  static_assert(std::is_trivially_default_constructible_v<T>, "no constructor runs");
  return *static_cast<T*>(calls::Shared(sizeof(T), site));
}

// Synchronisation.
inline void sync_block(Site site = Here()) { calls::SyncBlock(site); }
inline void sync_warp(uint32_t mask = kFullMask, Site site = Here()) {
  calls::SyncWarp(mask, site);
}

template <typename T>
T shfl_xor(T value, uint32_t lane_mask, uint32_t mask = kFullMask, Site site = Here()) {
  static_assert(sizeof(T) == 4, "a shuffle moves one register");
  return std::bit_cast<T>(calls::ShuffleXor(std::bit_cast<uint32_t>(value), lane_mask, mask, site));
}

inline void prefetch(const void* address, Site site = Here()) { calls::Prefetch(address, site); }
inline void wait_for_previous(Site site = Here()) { calls::WaitForPrevious(site); }

// Asynchronous copies of the calling thread.
inline void cp_async16(void* to_shared, const void* from, uint32_t valid_bytes = 16,
                       Site site = Here()) {
  calls::CopyAsync16(to_shared, from, valid_bytes, site);
}
inline void cp_async_commit(Site site = Here()) { calls::CommitCopies(site); }
template <uint32_t kPending>
void cp_async_wait(Site site = Here()) {
  calls::WaitCopies(kPending, site);
}

// Matrices.
inline Matrices ldmatrix_x4(const void* row, Site site = Here()) {
  return calls::LoadMatrices(row, /*transposed=*/false, site);
}
inline Matrices ldmatrix_x4_trans(const void* row, Site site = Here()) {
  return calls::LoadMatrices(row, /*transposed=*/true, site);
}
inline void mma_bf16_m16n8k16(FragmentC& c, const FragmentA& a, const FragmentB& b,
                              Site site = Here()) {
  c = calls::MultiplyBf16(a, b, c, site);
}

// Barriers in shared memory.
inline void mbar_init(Mbarrier* barrier, uint32_t num_arrivals, Site site = Here()) {
  calls::InitBarrier(barrier, num_arrivals, site);
}
inline void mbar_fence_init(Site site = Here()) { calls::FenceBarrierInit(site); }
inline void mbar_arrive(Mbarrier* barrier, Site site = Here()) {
  calls::ArriveBarrier(barrier, 0, site);
}
inline void mbar_arrive_expect(Mbarrier* barrier, uint32_t bytes, Site site = Here()) {
  calls::ArriveBarrier(barrier, bytes, site);
}
inline void mbar_wait(Mbarrier* barrier, uint32_t parity, Site site = Here()) {
  calls::WaitBarrier(barrier, parity, site);
}
inline void bulk_copy(void* to_shared, const void* from, uint32_t bytes, Mbarrier* barrier,
                      Site site = Here()) {
  calls::BulkCopy(to_shared, from, bytes, barrier, site);
}

// The questions that the host asks. The options of this thread describe the runner (RunOptions).
inline bool has_wgmma() { return calls::HasWgmma(); }
inline uint32_t max_shared_bytes() { return calls::MaxSharedBytes(); }
template <typename P>
absl::Status check_code(void (*)(P)) {
  return absl::OkStatus();
}

// The primitives that Hopper alone has: tensor copies and wgmma.
inline absl::Status make_tensor_map(const TensorShape& shape, TensorMap* map) {
  return calls::MakeTensorMap(shape, map);
}
inline void tensor_copy(void* to_shared, const TensorMap& map, TileCorner corner, Mbarrier* barrier,
                        Site site = Here()) {
  calls::TensorCopy({&map, corner}, to_shared, barrier, site);
}
inline TileDescriptor describe_tile(const void* tile, Site site = Here()) {
  return calls::DescribeTileAt(tile, site);
}
inline ColumnsDescriptor describe_columns(const void* tile, uint32_t tile_bytes,
                                          Site site = Here()) {
  return calls::DescribeColumnsAt(tile, tile_bytes, site);
}
inline void fence_proxy_async(Site site = Here()) { calls::FenceProxyAsync(site); }
inline void wgmma_fence(Site site = Here()) { calls::FenceProducts(site); }
inline void wgmma_commit(Site site = Here()) { calls::CommitProducts(site); }
template <uint32_t kPending>
void wgmma_wait(Site site = Here()) {
  calls::WaitProducts(kPending, site);
}
template <size_t kCount>
void wgmma_finish(FragmentC (&)[kCount], Site site = Here()) {
  calls::WaitProducts(0, site);
}
template <size_t kCount, size_t kSteps>
void wgmma_finish(FragmentC (&)[kCount], const FragmentA (&)[kSteps], Site site = Here()) {
  calls::WaitProducts(0, site);
}
template <size_t kCount>
void wgmma_bf16_m64k16(FragmentC (&sums)[kCount], TileDescriptor a, TileDescriptor b, bool adds,
                       Site site = Here()) {
  static_assert(
      kCount == 1 || kCount == 4 || kCount == 8 || kCount == 16 || kCount == 24 || kCount == 32,
      "8, 32, 64, 128, 192 or 256 columns");
  calls::StartProduct({sums, uint32_t{8} * kCount, a, b, adds}, site);
}
template <size_t kCount>
void wgmma_bf16_m64k16(FragmentC (&sums)[kCount], const FragmentA& a, ColumnsDescriptor b,
                       Site site = Here()) {
  static_assert(kCount == 8 || kCount == 16 || kCount == 32, "64, 128 or 256 columns");
  calls::StartProduct({sums, uint32_t{8} * kCount, {}, {b.bits}, true, &a, true}, site);
}
template <uint32_t kRegisters>
void reg_dealloc() {}
template <uint32_t kRegisters>
void reg_alloc() {}

// Words in global memory that several ctas use.
inline uint32_t atomic_add(uint32_t* word, uint32_t value, Site site = Here()) {
  return calls::AtomicUpdate({calls::AtomicOp::kAdd, value, 0}, word, site);
}
inline void atomic_add64(uint64_t* word, uint64_t value, Site site = Here()) {
  calls::AtomicAdd64(word, value, site);
}
inline uint32_t atomic_max(uint32_t* word, uint32_t value, Site site = Here()) {
  return calls::AtomicUpdate({calls::AtomicOp::kMax, value, 0}, word, site);
}
inline uint32_t atomic_exchange(uint32_t* word, uint32_t value, Site site = Here()) {
  return calls::AtomicUpdate({calls::AtomicOp::kExchange, value, 0}, word, site);
}
inline uint32_t atomic_cas(uint32_t* word, uint32_t expected, uint32_t desired,
                           Site site = Here()) {
  return calls::AtomicUpdate({calls::AtomicOp::kCompareSwap, desired, expected}, word, site);
}
inline uint32_t load_acquire(const uint32_t* word, Site site = Here()) {
  return calls::LoadAcquire(word, site);
}
inline void store_release(uint32_t* word, uint32_t value, Site site = Here()) {
  calls::StoreRelease(word, value, site);
}
inline uint32_t load_acquire_system(const uint32_t* word, Site site = Here()) {
  return calls::LoadAcquire(word, site);
}
inline void store_release_system(uint32_t* word, uint32_t value, Site site = Here()) {
  calls::StoreRelease(word, value, site);
}
inline void fence(Site site = Here()) { calls::Fence(site); }
inline void spin_pause(Site site = Here()) { calls::SpinPause(site); }
// Found as a deadlock at the latest.
inline void give_up(Site site = Here()) {
  for (;;) calls::SpinPause(site);
}

// A condition that mutation may fix to true or false.
inline bool guard(bool condition, Site site = Here()) { return calls::Guard(condition, site); }

// Arithmetic that has an instruction of its own.
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float square_root(float x) { return __builtin_sqrtf(x); }
inline float from_bf16(Bf16 value) { return FloatFromBf16(value.bits); }
inline Bf16 to_bf16(float value) { return {Bf16FromFloat(value)}; }

inline uint32_t pack_bf16(float low, float high) {
  return Bf16FromFloat(low) | uint32_t{Bf16FromFloat(high)} << 16;
}
inline float larger_or_nan(float a, float b) { return a > b || a != a ? a : b; }
inline float smaller(float a, float b) { return a < b || b != b ? a : b; }
inline uint32_t and_or(uint32_t value, uint32_t mask, uint32_t bits) {
  return (value & mask) | bits;
}
inline float from_half(uint16_t bits) { return FloatFromHalf(bits); }
inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t pair = 0;
  for (uint32_t shift = 0; shift < 32; shift += 16) {
    const float product = FloatFromBf16(static_cast<uint16_t>(a >> shift)) *
                          FloatFromBf16(static_cast<uint16_t>(b >> shift));
    pair |= (product != product ? 0x7FFFu : uint32_t{Bf16FromFloat(product)}) << shift;
  }
  return pair;
}
inline uint32_t to_e4m3x2(float low, float high) {
  return E4m3FromFloat(low) | uint32_t{E4m3FromFloat(high)} << 8;
}

// Sixteen bytes that are read once: on a GPU they bypass L1.
inline Vec16 load_once(const Vec16* from) { return *from; }

// Runs the kernel to its end under the options of this thread (RunOptions); Internal with the
// fault's name and place otherwise.
template <typename P>
absl::Status launch(const LaunchConfig& config, void (*kernel)(P),
                    const std::type_identity_t<P>& params) {
  struct Call {
    void (*kernel)(P);
    P params;
  };
  static_assert(std::is_trivially_copyable_v<P>, "parameters are copied as bytes");
  const Call call{kernel, params};
  return calls::Run(config, {&call, sizeof(call), [](const void* data) {
                               const auto* bound = static_cast<const Call*>(data);
                               bound->kernel(bound->params);
                             }});
}

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_RUNNER_BODY_H_
