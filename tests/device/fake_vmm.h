// A CUDA driver's virtual memory management without a GPU, as far as CudaSharedMemory uses it: what
// is allocated is a memory file, a descriptor is one of that file, and addresses are this
// process's, to be touched only as far as access was given. It refuses what a driver refuses,
// counts what is alive, and fails where it is told to.
#ifndef BATON_TESTS_DEVICE_FAKE_VMM_H_
#define BATON_TESTS_DEVICE_FAKE_VMM_H_

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/base/unique_fd.h"
#include "src/device/cuda/vmm_table.h"

namespace baton::device {

// See the file comment. One at a time, and one thread.
class FakeVmm {
 public:
  static constexpr size_t kGranularity = size_t{64} << 10;
  static constexpr size_t kFreeBytes = size_t{1} << 30;

  FakeVmm() { current_ = this; }
  ~FakeVmm() { current_ = nullptr; }
  FakeVmm(const FakeVmm&) = delete;
  FakeVmm& operator=(const FakeVmm&) = delete;

  // Faults: what a call gives instead of doing anything; attributes that the GPU has not.
  std::map<std::string, CUresult> fails;
  std::set<int> lacks;
  bool refuses_read_only = false;  // access for reading only
  // Where the next allocation is.
  CUmemLocationType location = CU_MEM_LOCATION_TYPE_DEVICE;

  // Every call by name, in order.
  std::vector<std::string> calls;

  // The objects that are alive.
  struct Alive {
    size_t handles = 0;
    size_t reservations = 0;
    size_t mappings = 0;
    friend bool operator==(const Alive&, const Alive&) = default;
  };
  Alive alive() const { return {handles_.size(), reservations_.size(), mappings_.size()}; }
  // The access that a GPU was allowed at an address that is mapped.
  CUmemAccess_flags AccessAt(const void* address, int gpu = 0) const {
    const auto& access = mappings_.at(reinterpret_cast<CUdeviceptr>(address)).access;
    const auto found = access.find(gpu);
    return found == access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : found->second;
  }

  static VmmTable Table() {
    VmmTable table;
    AddQuestions(&table);
    AddMemory(&table);
    AddAddresses(&table);
    return table;
  }

 private:
  using FileId = std::pair<dev_t, ino_t>;
  // Memory that exists as long as anybody holds its file.
  struct Memory {
    size_t size_bytes = 0;
    CUmemAllocationProp properties{};
  };
  struct Handle {
    UniqueFd file;
    FileId id;
  };
  struct Mapping {
    size_t size_bytes = 0;
    std::map<int, CUmemAccess_flags> access;  // by GPU
  };

  // Notes the call, and does it unless it is to fail.
  template <typename Body>
  static CUresult Call(const char* name, const Body& body) {
    current_->calls.emplace_back(name);
    const auto fault = current_->fails.find(name);
    return fault == current_->fails.end() ? body(current_) : fault->second;
  }

  CUresult Create(size_t size, const CUmemAllocationProp& properties,
                  CUmemGenericAllocationHandle* handle);
  CUresult Export(CUmemGenericAllocationHandle handle, int* fd);
  CUresult Import(int fd, CUmemGenericAllocationHandle* handle);
  CUresult Reserve(size_t size, CUdeviceptr* address);
  CUresult FreeAddress(CUdeviceptr address, size_t size);
  CUresult Map(CUdeviceptr address, size_t size, CUmemGenericAllocationHandle handle);
  CUresult SetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc& access);
  CUresult Unmap(CUdeviceptr address, size_t size);

  static void AddQuestions(VmmTable* table);
  static void AddMemory(VmmTable* table);
  static void AddAddresses(VmmTable* table);

  static inline FakeVmm* current_ = nullptr;
  std::map<FileId, Memory> memories_;  // ever allocated
  CUmemGenericAllocationHandle next_handle_ = 100;
  std::map<CUmemGenericAllocationHandle, Handle> handles_;
  std::map<CUdeviceptr, size_t> reservations_;
  std::map<CUdeviceptr, Mapping> mappings_;
};

}  // namespace baton::device

#endif  // BATON_TESTS_DEVICE_FAKE_VMM_H_
