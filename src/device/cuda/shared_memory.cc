#include "src/device/cuda/shared_memory.h"

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "fmt/format.h"

#include "src/base/log.h"
#include "src/base/size_text.h"

namespace baton::device {
namespace {

constexpr auto kFileDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUdeviceptr AddressOf(const std::byte* begin) { return reinterpret_cast<CUdeviceptr>(begin); }

}  // namespace

absl::StatusOr<std::unique_ptr<CudaSharedMemory>> CudaSharedMemory::Open(const VmmTable& driver,
                                                                         int ordinal) {
  std::unique_ptr<CudaSharedMemory> memory(new CudaSharedMemory(driver, ordinal));
  BATON_RETURN_IF_ERROR(memory->Prepare());
  return memory;
}

Status CudaSharedMemory::Prepare() {
  // A CUdevice is the ordinal of the GPU.
  for (const CUdevice_attribute needed :
       {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    int has = 0;
    BATON_RETURN_IF_ERROR(
        FromDriver("cuDeviceGetAttribute", driver_.cuDeviceGetAttribute(&has, needed, ordinal_)));
    if (has == 0) {
      return FailedPrecondition(
          "GPU {} has no memory that another process can map by a file descriptor (attribute {})",
          ordinal_, static_cast<int>(needed));
    }
  }
  const CUmemAllocationProp properties = Properties();
  return FromDriver("cuMemGetAllocationGranularity",
                    driver_.cuMemGetAllocationGranularity(&granularity_, &properties,
                                                          CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

CudaSharedMemory::~CudaSharedMemory() {
  while (!regions_.empty()) Free(regions_.begin()->first);
}

CUmemAllocationProp CudaSharedMemory::Properties() const {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kFileDescriptor;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal_;
  return properties;
}

Status CudaSharedMemory::FromDriver(std::string_view what, CUresult result) const {
  if (result == CUDA_SUCCESS) return OkStatus();
  const char* name = nullptr;
  (void)driver_.cuGetErrorName(result, &name);
  // A function that this driver or GPU does not have is not a fault.
  const std::string text = fmt::format("{}: {}", what, name == nullptr ? "unknown" : name);
  return result == CUDA_ERROR_NOT_SUPPORTED ? FailedPrecondition("{}", text) : Internal("{}", text);
}

size_t CudaSharedMemory::Rounded(size_t size_bytes) const {
  return (size_bytes + granularity_ - 1) / granularity_ * granularity_;
}

absl::StatusOr<std::byte*> CudaSharedMemory::Map(const Region& region, CUmemAccess_flags access,
                                                 std::span<const int> others) {
  CUdeviceptr address = 0;
  Status status = FromDriver("cuMemAddressReserve",
                             driver_.cuMemAddressReserve(&address, region.size_bytes, 0, 0, 0));
  if (!status.ok()) {
    (void)driver_.cuMemRelease(region.handle);
    return status;
  }
  status =
      FromDriver("cuMemMap", driver_.cuMemMap(address, region.size_bytes, 0, region.handle, 0));
  if (!status.ok()) {
    (void)driver_.cuMemAddressFree(address, region.size_bytes);
    (void)driver_.cuMemRelease(region.handle);
    return status;
  }
  auto* const begin = std::bit_cast<std::byte*>(address);
  regions_[begin] = region;
  std::vector<CUmemAccessDesc> descriptions(1 + others.size());
  for (size_t i = 0; i < descriptions.size(); ++i) {
    descriptions[i].location = Properties().location;
    if (i > 0) descriptions[i].location.id = others[i - 1];
    descriptions[i].flags = access;
  }
  const auto set_access = [&] {
    return FromDriver("cuMemSetAccess",
                      driver_.cuMemSetAccess(address, region.size_bytes, descriptions.data(),
                                             descriptions.size()));
  };
  status = set_access();
  // A driver may know no memory of a GPU that is readable only.
  if (!status.ok() && access == CU_MEM_ACCESS_FLAGS_PROT_READ) {
    const Status refused = status;
    for (CUmemAccessDesc& one : descriptions) one.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    status = set_access();
    if (status.ok()) {
      BATON_LOG_WARN("GPU {} maps another process's memory for writing too, not only reading: {}",
                     ordinal_, std::string(refused.message()));
    }
  }
  if (!status.ok()) {
    Free(begin);
    return status;
  }
  return begin;
}

absl::StatusOr<std::byte*> CudaSharedMemory::Allocate(size_t size_bytes, std::string_view name,
                                                      std::span<const int> reached_by) {
  const CUmemAllocationProp properties = Properties();
  Region region{.size_bytes = Rounded(size_bytes)};
  const CUresult result = driver_.cuMemCreate(&region.handle, region.size_bytes, &properties, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    (void)driver_.cuMemGetInfo(&free_bytes, &total_bytes);
    return ResourceExhausted("{} needs {}, GPU {} has {} free of {}", name, FormatSize(size_bytes),
                             ordinal_, FormatSize(free_bytes), FormatSize(total_bytes));
  }
  BATON_RETURN_IF_ERROR(FromDriver("cuMemCreate", result));
  return Map(region, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, reached_by);
}

absl::StatusOr<UniqueFd> CudaSharedMemory::Export(const std::byte* begin) const {
  const auto region = regions_.find(begin);
  if (region == regions_.end()) return InvalidArgument("no shared memory begins there");
  int fd = -1;
  BATON_RETURN_IF_ERROR(FromDriver(
      "cuMemExportToShareableHandle",
      driver_.cuMemExportToShareableHandle(&fd, region->second.handle, kFileDescriptor, 0)));
  return UniqueFd(fd);
}

absl::StatusOr<const std::byte*> CudaSharedMemory::Import(const UniqueFd& fd, size_t size_bytes) {
  // The driver takes the number for a pointer.
  auto* const handle_of_system = std::bit_cast<void*>(static_cast<intptr_t>(fd.get()));
  Region region{.size_bytes = Rounded(size_bytes)};
  BATON_RETURN_IF_ERROR(FromDriver(
      "cuMemImportFromShareableHandle",
      driver_.cuMemImportFromShareableHandle(&region.handle, handle_of_system, kFileDescriptor)));
  CUmemAllocationProp properties{};
  Status status =
      FromDriver("cuMemGetAllocationPropertiesFromHandle",
                 driver_.cuMemGetAllocationPropertiesFromHandle(&properties, region.handle));
  if (status.ok() && properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    status = FailedPrecondition("the memory of another process is not a GPU's");
  }
  if (!status.ok()) {
    (void)driver_.cuMemRelease(region.handle);
    return status;
  }
  // A size beyond what was allocated there is refused here.
  BATON_ASSIGN_OR_RETURN(std::byte* const begin, Map(region, CU_MEM_ACCESS_FLAGS_PROT_READ));
  return begin;
}

void CudaSharedMemory::Free(const std::byte* begin) {
  const auto entry = regions_.find(begin);
  const Region region = entry->second;
  regions_.erase(entry);
  const CUdeviceptr address = AddressOf(begin);
  for (const Status& status :
       {FromDriver("cuMemUnmap", driver_.cuMemUnmap(address, region.size_bytes)),
        FromDriver("cuMemAddressFree", driver_.cuMemAddressFree(address, region.size_bytes)),
        FromDriver("cuMemRelease", driver_.cuMemRelease(region.handle))}) {
    if (!status.ok()) BATON_LOG_ERROR("{}", status.ToString());
  }
}

}  // namespace baton::device
