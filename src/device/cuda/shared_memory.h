// CudaSharedMemory: a GPU's memory that other processes of this host can map, by the driver's
// virtual memory management: an allocation becomes a file descriptor, and whoever gets it maps the
// same bytes (CUDA driver API, "Virtual Memory Management").
//
// Owned by a CudaDevice; one thread at a time, in which the GPU is current.
//
// Invariants
//  1. Each mapping has addresses of its own, a multiple of granularity() long.
//  2. An imported mapping is readable only where the driver can have it so; else one line of the
//     log says that it is not. That is a guard rail: who has the descriptor could map it for
//     writing, so processes that share one trust each other.
#ifndef BATON_DEVICE_CUDA_SHARED_MEMORY_H_
#define BATON_DEVICE_CUDA_SHARED_MEMORY_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "absl/container/flat_hash_map.h"

#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "src/device/cuda/vmm_table.h"

namespace baton::device {

// See the file comment.
class CudaSharedMemory {
 public:
  // FailedPrecondition when the GPU `ordinal` has no memory with file descriptors. Any other error
  // of the driver, here and below, is Internal.
  static absl::StatusOr<std::unique_ptr<CudaSharedMemory>> Open(const VmmTable& driver,
                                                                int ordinal);
  ~CudaSharedMemory();
  CudaSharedMemory(const CudaSharedMemory&) = delete;
  CudaSharedMemory& operator=(const CudaSharedMemory&) = delete;

  // As Accelerator's AllocateShared, ExportShared and ImportShared. The GPUs `reached_by` read and
  // write it too.
  absl::StatusOr<std::byte*> Allocate(size_t size_bytes, std::string_view name,
                                      std::span<const int> reached_by = {});
  absl::StatusOr<UniqueFd> Export(const std::byte* begin) const;
  absl::StatusOr<const std::byte*> Import(const UniqueFd& fd, size_t size_bytes);
  bool Owns(const std::byte* begin) const { return regions_.contains(begin); }
  // Unmaps what Allocate or Import gave. Nothing on the GPU uses it any more.
  void Free(const std::byte* begin);

 private:
  // The memory that is mapped at one address.
  struct Region {
    size_t size_bytes = 0;  // mapped
    CUmemGenericAllocationHandle handle = 0;
  };

  CudaSharedMemory(const VmmTable& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status Prepare();
  CUmemAllocationProp Properties() const;
  Status FromDriver(std::string_view what, CUresult result) const;
  size_t Rounded(size_t size_bytes) const;
  // Takes `handle`; the region's address. `others` are GPUs beside this one. Memory that cannot be
  // readable only is writable.
  absl::StatusOr<std::byte*> Map(const Region& region, CUmemAccess_flags access,
                                 std::span<const int> others = {});

  const VmmTable driver_;
  const int ordinal_;
  size_t granularity_ = 0;
  absl::flat_hash_map<const std::byte*, Region> regions_;
};

}  // namespace baton::device

#endif  // BATON_DEVICE_CUDA_SHARED_MEMORY_H_
