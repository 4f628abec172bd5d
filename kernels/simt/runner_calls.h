// The functions that the runner body of the primitives calls. A simulated thread calls each of them
// inside a launch, on the operating-system thread that called Run. runner_body.h is the only
// caller.
#ifndef BATON_KERNELS_SIMT_RUNNER_CALLS_H_
#define BATON_KERNELS_SIMT_RUNNER_CALLS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/simt/site.h"
#include "kernels/simt/types.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace calls {

// The change that an atomic makes to its word.
enum class AtomicOp : uint8_t { kAdd, kMax, kExchange, kCompareSwap };

// One read-modify-write; `expected` is for kCompareSwap.
struct AtomicRequest {
  AtomicOp op;
  uint32_t value;
  uint32_t expected;
};

// A tile of a map's matrix.
struct TensorTile {
  const TensorMap* map;
  TileCorner corner;
};

// One wgmma as each of its threads asks for it: sums[j] are of columns [8j, 8j + 8).
struct TileProduct {
  FragmentC* sums;
  uint32_t num_columns;
  TileDescriptor a;  // unless the threads have it in registers
  TileDescriptor b;
  bool adds;
  const FragmentA* own_a = nullptr;
  bool b_has_columns = false;  // then b is a ColumnsDescriptor
};

uint32_t Thread();
uint32_t NumThreads();
Dim3 Block();
Dim3 Grid();
void* Shared(size_t bytes, Site site);

void SyncBlock(Site site);
void SyncWarp(uint32_t mask, Site site);
void WaitForPrevious(Site site);
void Prefetch(const void* address, Site site);
uint32_t ShuffleXor(uint32_t value, uint32_t lane_mask, uint32_t mask, Site site);

void CopyAsync16(void* to_shared, const void* from, uint32_t valid_bytes, Site site);
void CommitCopies(Site site);
void WaitCopies(uint32_t max_pending, Site site);

Matrices LoadMatrices(const void* row, bool transposed, Site site);
FragmentC MultiplyBf16(const FragmentA& a, const FragmentB& b, const FragmentC& c, Site site);

void InitBarrier(Mbarrier* barrier, uint32_t num_arrivals, Site site);
void FenceBarrierInit(Site site);
void ArriveBarrier(Mbarrier* barrier, uint32_t expect_bytes, Site site);
void WaitBarrier(Mbarrier* barrier, uint32_t parity, Site site);
void BulkCopy(void* to_shared, const void* from, uint32_t bytes, Mbarrier* barrier, Site site);

// A matrix as a tensor copy sees it; and a tile of it into shared memory.
absl::Status MakeTensorMap(const TensorShape& shape, TensorMap* map);
void TensorCopy(const TensorTile& tile, void* to_shared, Mbarrier* barrier, Site site);

TileDescriptor DescribeTileAt(const void* tile, Site site);
ColumnsDescriptor DescribeColumnsAt(const void* tile, uint32_t tile_bytes, Site site);
void FenceProxyAsync(Site site);
void FenceProducts(Site site);
void StartProduct(const TileProduct& product, Site site);
void CommitProducts(Site site);
void WaitProducts(uint32_t max_pending, Site site);

uint32_t AtomicUpdate(const AtomicRequest& request, uint32_t* word, Site site);
void AtomicAdd64(uint64_t* word, uint64_t value, Site site);
uint32_t LoadAcquire(const uint32_t* word, Site site);
void StoreRelease(uint32_t* word, uint32_t value, Site site);
void Fence(Site site);
void SpinPause(Site site);
bool Guard(bool condition, Site site);

// A kernel with its parameters, which its threads may read.
struct KernelCall {
  const void* data;
  size_t size;
  void (*body)(const void* data);
};

// Calls the kernel as every thread of the grid, or keeps the launch (KernelGraph). OK, or what went
// wrong: InvalidArgument for a launch that no GPU would take; Internal, "deadlock:", "race:",
// "bounds:" or "misuse:", with places.
absl::Status Run(const LaunchConfig& config, const KernelCall& call);

// The properties of the device that launches of this thread find.
bool HasWgmma();
uint32_t MaxSharedBytes();

}  // namespace calls
}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_RUNNER_CALLS_H_
