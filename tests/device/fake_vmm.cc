#include "tests/device/fake_vmm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdint>

#include "src/base/memory_file.h"

namespace baton::device {
namespace {

void* At(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

std::pair<dev_t, ino_t> IdOf(int fd) {
  struct stat found {};
  if (fstat(fd, &found) != 0) return {};
  return {found.st_dev, found.st_ino};
}

}  // namespace

CUresult FakeVmm::Create(size_t size, const CUmemAllocationProp& properties,
                         CUmemGenericAllocationHandle* handle) {
  const bool is_valid = size > 0 && size % kGranularity == 0 &&
                        properties.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
                        properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!is_valid) return CUDA_ERROR_INVALID_VALUE;
  if (size > kFreeBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  StatusOr<UniqueFd> file = CreateMemoryFile("fake-gpu", size);
  if (!file.ok()) return CUDA_ERROR_OPERATING_SYSTEM;
  const FileId id = IdOf(file->get());
  memories_[id] = {size, properties};
  memories_[id].properties.location.type = location;
  *handle = next_handle_++;
  handles_[*handle] = {*std::move(file), id};
  return CUDA_SUCCESS;
}

CUresult FakeVmm::Export(CUmemGenericAllocationHandle handle, int* fd) {
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return CUDA_ERROR_INVALID_HANDLE;
  *fd = fcntl(found->second.file.get(), F_DUPFD_CLOEXEC, 0);
  return *fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult FakeVmm::Import(int fd, CUmemGenericAllocationHandle* handle) {
  const FileId id = IdOf(fd);
  if (!memories_.contains(id)) return CUDA_ERROR_INVALID_VALUE;
  *handle = next_handle_++;
  handles_[*handle] = {UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)), id};
  return CUDA_SUCCESS;
}

CUresult FakeVmm::Reserve(size_t size, CUdeviceptr* address) {
  if (size == 0 || size % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  void* const begin = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(begin);
  reservations_[*address] = size;
  return CUDA_SUCCESS;
}

CUresult FakeVmm::FreeAddress(CUdeviceptr address, size_t size) {
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != size || mappings_.contains(address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap(At(address), size);
  reservations_.erase(found);
  return CUDA_SUCCESS;
}

CUresult FakeVmm::Map(CUdeviceptr address, size_t size, CUmemGenericAllocationHandle handle) {
  const auto place = reservations_.find(address);
  const auto memory = handles_.find(handle);
  if (place == reservations_.end() || memory == handles_.end() || mappings_.contains(address) ||
      place->second < size || memories_[memory->second.id].size_bytes < size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  mmap(At(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->second.file.get(), 0);
  mappings_[address] = {.size_bytes = size};
  return CUDA_SUCCESS;
}

CUresult FakeVmm::SetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc& access) {
  const auto found = mappings_.find(address);
  if (found == mappings_.end() || found->second.size_bytes != size ||
      access.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool writes = access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (refuses_read_only && !writes) return CUDA_ERROR_NOT_SUPPORTED;
  mprotect(At(address), size, PROT_READ | (writes ? PROT_WRITE : 0));
  found->second.access[access.location.id] = access.flags;
  return CUDA_SUCCESS;
}

CUresult FakeVmm::Unmap(CUdeviceptr address, size_t size) {
  const auto found = mappings_.find(address);
  if (found == mappings_.end() || found->second.size_bytes != size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  mmap(At(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  mappings_.erase(found);
  return CUDA_SUCCESS;
}

void FakeVmm::AddQuestions(VmmTable* table) {
  table->cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute, CUdevice) {
    return Call("cuDeviceGetAttribute", [=](FakeVmm* fake) {
      *value = fake->lacks.contains(attribute) ? 0 : 1;
      return CUDA_SUCCESS;
    });
  };
  table->cuGetErrorName = [](CUresult result, const char** name) {
    static const std::map<CUresult, const char*> kNames = {
        {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"}};
    const auto found = kNames.find(result);
    *name = found == kNames.end() ? nullptr : found->second;
    return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  };
  table->cuMemGetAllocationGranularity = [](size_t* bytes, const CUmemAllocationProp*,
                                            CUmemAllocationGranularity_flags) {
    return Call("cuMemGetAllocationGranularity", [=](FakeVmm*) {
      *bytes = kGranularity;
      return CUDA_SUCCESS;
    });
  };
  table->cuMemGetInfo = [](size_t* free, size_t* total) {
    return Call("cuMemGetInfo", [=](FakeVmm*) {
      *free = kFreeBytes;
      *total = 2 * kFreeBytes;
      return CUDA_SUCCESS;
    });
  };
}

void FakeVmm::AddMemory(VmmTable* table) {
  table->cuMemCreate = [](CUmemGenericAllocationHandle* handle, size_t size,
                          const CUmemAllocationProp* properties, unsigned long long) {
    return Call("cuMemCreate",
                [=](FakeVmm* fake) { return fake->Create(size, *properties, handle); });
  };
  table->cuMemRelease = [](CUmemGenericAllocationHandle handle) {
    return Call("cuMemRelease", [=](FakeVmm* fake) {
      return fake->handles_.erase(handle) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
  };
  table->cuMemExportToShareableHandle = [](void* fd, CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType, unsigned long long) {
    return Call("cuMemExportToShareableHandle",
                [=](FakeVmm* fake) { return fake->Export(handle, static_cast<int*>(fd)); });
  };
  table->cuMemImportFromShareableHandle = [](CUmemGenericAllocationHandle* handle, void* fd,
                                             CUmemAllocationHandleType) {
    return Call("cuMemImportFromShareableHandle", [=](FakeVmm* fake) {
      return fake->Import(static_cast<int>(reinterpret_cast<intptr_t>(fd)), handle);
    });
  };
  table->cuMemGetAllocationPropertiesFromHandle = [](CUmemAllocationProp* properties,
                                                     CUmemGenericAllocationHandle handle) {
    return Call("cuMemGetAllocationPropertiesFromHandle", [=](FakeVmm* fake) {
      *properties = fake->memories_.at(fake->handles_.at(handle).id).properties;
      return CUDA_SUCCESS;
    });
  };
}

void FakeVmm::AddAddresses(VmmTable* table) {
  table->cuMemAddressReserve = [](CUdeviceptr* address, size_t size, size_t, CUdeviceptr,
                                  unsigned long long) {
    return Call("cuMemAddressReserve", [=](FakeVmm* fake) { return fake->Reserve(size, address); });
  };
  table->cuMemAddressFree = [](CUdeviceptr address, size_t size) {
    return Call("cuMemAddressFree",
                [=](FakeVmm* fake) { return fake->FreeAddress(address, size); });
  };
  table->cuMemMap = [](CUdeviceptr address, size_t size, size_t,
                       CUmemGenericAllocationHandle handle, unsigned long long) {
    return Call("cuMemMap", [=](FakeVmm* fake) { return fake->Map(address, size, handle); });
  };
  table->cuMemSetAccess = [](CUdeviceptr address, size_t size, const CUmemAccessDesc* access,
                             size_t count) {
    return Call("cuMemSetAccess", [=](FakeVmm* fake) {
      CUresult result = CUDA_SUCCESS;
      for (size_t i = 0; i < count && result == CUDA_SUCCESS; ++i) {
        result = fake->SetAccess(address, size, access[i]);
      }
      return result;
    });
  };
  table->cuMemUnmap = [](CUdeviceptr address, size_t size) {
    return Call("cuMemUnmap", [=](FakeVmm* fake) { return fake->Unmap(address, size); });
  };
}

}  // namespace baton::device
