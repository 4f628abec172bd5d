#include "tests/kernels/gpu_check/stages.h"

#ifdef BATON_GPU_CHECK_HAS_GPU
#include <dlfcn.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "tests/kernels/gpu_check/driver_table.h"
#endif

namespace baton::kernels::gpu_check {

#ifdef BATON_GPU_CHECK_HAS_GPU
namespace {

std::string NameOf(const DriverTable& driver, CUresult result) {
  const char* name = nullptr;
  driver.cuGetErrorName(result, &name);
  return name != nullptr ? name : fmt::format("error {}", static_cast<int>(result));
}

// A fact that is asked by one call: the number, or "not run" with the driver's words.
absl::Status AddAttributes(const DriverTable& driver, CUdevice device, Report& report) {
  const std::vector<std::pair<const char*, CUdevice_attribute>> attributes = {
      {"capability_major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
      {"capability_minor", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
      {"sms", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {"clock_khz", CU_DEVICE_ATTRIBUTE_CLOCK_RATE},
      {"memory_clock_khz", CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE},
      {"memory_bus_bits", CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
      {"l2_bytes", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
      {"shared_bytes_a_cta", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
      {"cooperative_launch", CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
      {"vmm", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
      {"vmm_posix_fd", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
      {"vmm_fabric", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED},
      {"gpu_direct_rdma", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED},
      {"ipc_events", CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED},
      {"mps", CU_DEVICE_ATTRIBUTE_MPS_ENABLED}};
  Finding finding{.name = "attributes"};
  for (const auto& [name, attribute] : attributes) {
    int value = 0;
    const CUresult result = driver.cuDeviceGetAttribute(&value, attribute, device);
    if (result == CUDA_SUCCESS) {
      finding.data[name] = value;
    } else {
      finding.data[name] = NameOf(driver, result);  // an older driver does not know it
    }
  }
  finding.detail = fmt::format("sm_{}{}, {} SMs, {} kHz", finding.data["capability_major"].dump(),
                               finding.data["capability_minor"].dump(), finding.data["sms"].dump(),
                               finding.data["clock_khz"].dump());
  return report.Add(std::move(finding));
}

// The feature that several calls test. By `attribute` a device says whether it has it at all.
struct Feature {
  const char* name;
  CUdevice_attribute attribute;
  CUresult result;  // of the calls
};

// A GPU without it is no failure of ours, so it is "not run"; what it has and does not do is one.
absl::Status AddFeature(const DriverTable& driver, CUdevice device, const Feature& feature,
                        Report& report) {
  Finding finding{.name = feature.name, .detail = "works"};
  if (feature.result == CUDA_SUCCESS) return report.Add(std::move(finding));
  int has_it = 1;
  const CUresult asked = driver.cuDeviceGetAttribute(&has_it, feature.attribute, device);
  const bool is_missing =
      feature.result == CUDA_ERROR_NOT_SUPPORTED || (asked == CUDA_SUCCESS && has_it == 0);
  finding.verdict = is_missing ? Verdict::kNotRun : Verdict::kFail;
  finding.detail = NameOf(driver, feature.result);
  return report.Add(std::move(finding));
}

constexpr auto kFileDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// A piece of memory as others get it: allocated here, and its descriptor.
struct ExportedMemory {
  size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
  UniqueFd fd;
};

// `exported->handle` stays 0 where nothing could be allocated.
CUresult ExportMemory(const DriverTable& driver, CUdevice device, ExportedMemory* exported) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  properties.requestedHandleTypes = kFileDescriptor;
  CUresult result = driver.cuMemGetAllocationGranularity(&exported->bytes, &properties,
                                                         CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return result;
  result = driver.cuMemCreate(&exported->handle, exported->bytes, &properties, 0);
  if (result != CUDA_SUCCESS) {
    exported->handle = 0;
    return result;
  }
  int descriptor = -1;
  result = driver.cuMemExportToShareableHandle(&descriptor, exported->handle, kFileDescriptor, 0);
  if (result == CUDA_SUCCESS) exported->fd.reset(descriptor);
  return result;
}

// Maps the imported memory at an address of its own, where it may only be read.
CUresult MapToRead(const DriverTable& driver, CUdevice device, size_t bytes,
                   CUmemGenericAllocationHandle imported) {
  CUdeviceptr address = 0;
  CUresult result = driver.cuMemAddressReserve(&address, bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS) return result;
  result = driver.cuMemMap(address, bytes, 0, imported, 0);
  if (result == CUDA_SUCCESS) {
    CUmemAccessDesc access = {};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    result = driver.cuMemSetAccess(address, bytes, &access, 1);
    driver.cuMemUnmap(address, bytes);
  }
  driver.cuMemAddressFree(address, bytes);
  return result;
}

CUresult ImportMemory(const DriverTable& driver, CUdevice device, const ExportedMemory& exported) {
  CUmemGenericAllocationHandle imported = 0;
  // The driver takes the number for a pointer.
  const CUresult result = driver.cuMemImportFromShareableHandle(
      &imported, std::bit_cast<void*>(static_cast<intptr_t>(exported.fd.get())), kFileDescriptor);
  if (result != CUDA_SUCCESS) return result;
  const CUresult mapped = MapToRead(driver, device, exported.bytes, imported);
  driver.cuMemRelease(imported);
  return mapped;
}

// Memory for other processes: as the one that has it, and as one that reads it.
absl::Status AddSharedMemory(const DriverTable& driver, CUdevice device, Report& report) {
  ExportedMemory exported;
  const CUresult result = ExportMemory(driver, device, &exported);
  const CUresult imported =
      result == CUDA_SUCCESS ? ImportMemory(driver, device, exported) : result;
  if (exported.handle != 0) driver.cuMemRelease(exported.handle);
  constexpr auto kHas = CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
  BATON_RETURN_IF_ERROR(AddFeature(driver, device, {"VMM export as fd", kHas, result}, report));
  return AddFeature(driver, device, {"VMM import, read only", kHas, imported}, report);
}

CUresult ShareMemory(const DriverTable& driver) {
  CUdeviceptr memory = 0;
  CUresult result = driver.cuMemAlloc(&memory, 1 << 20);
  if (result != CUDA_SUCCESS) return result;
  CUipcMemHandle handle;
  result = driver.cuIpcGetMemHandle(&handle, memory);
  driver.cuMemFree(memory);
  return result;
}

CUresult AskForSms(const DriverTable& driver, CUdevice device) {
  if (driver.cuDeviceGetDevResource == nullptr || driver.cuGreenCtxCreate == nullptr) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUdevResource sms;
  return driver.cuDeviceGetDevResource(device, &sms, CU_DEV_RESOURCE_TYPE_SM);
}

absl::Status AddFeatures(const DriverTable& driver, CUdevice device, Report& report) {
  CUcontext context = nullptr;
  CUresult result = driver.cuDevicePrimaryCtxRetain(&context, device);
  if (result == CUDA_SUCCESS) result = driver.cuCtxSetCurrent(context);
  if (result != CUDA_SUCCESS) {
    return report.Add({"context", Verdict::kFail, NameOf(driver, result)});
  }
  BATON_RETURN_IF_ERROR(AddSharedMemory(driver, device, report));
  // No attribute tells of memory that others map; the attribute for events goes with it.
  BATON_RETURN_IF_ERROR(AddFeature(
      driver, device, {"IPC handle", CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, ShareMemory(driver)},
      report));
  // Every device has them; an old driver cannot say so.
  BATON_RETURN_IF_ERROR(
      AddFeature(driver, device,
                 {"SMs, which green contexts divide", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                  AskForSms(driver, device)},
                 report));
  driver.cuDevicePrimaryCtxRelease(device);
  return absl::OkStatus();
}

// Libraries that are found at run time too.
absl::Status AddLibrary(const char* name, Report& report) {
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  Finding finding{.name = name, .detail = "found"};
  if (library == nullptr) {
    finding.verdict = Verdict::kNotRun;
    finding.detail = "not on the loader's path";
  }
  return report.Add(std::move(finding));
}

absl::Status CheckGpu(Report& report) {
  const absl::StatusOr<DriverTable> driver = LoadDriver();
  if (!driver.ok()) {
    return report.Add({"driver", Verdict::kNotRun, std::string(driver.status().message())});
  }
  const CUresult started = driver->cuInit(0);
  CUdevice device = 0;
  const CUresult result = started == CUDA_SUCCESS ? driver->cuDeviceGet(&device, 0) : started;
  if (result != CUDA_SUCCESS) {
    return report.Add({"driver", Verdict::kNotRun, NameOf(*driver, result)});
  }
  Finding finding{.name = "driver"};
  int version = 0;
  int num_devices = 0;
  char name[256] = {};
  size_t bytes = 0;
  driver->cuDriverGetVersion(&version);
  driver->cuDeviceGetCount(&num_devices);
  driver->cuDeviceGetName(name, sizeof(name) - 1, device);
  driver->cuDeviceTotalMem(&bytes, device);
  finding.data["cuda_version"] = version;
  finding.data["devices"] = num_devices;
  finding.data["memory_bytes"] = bytes;
  const char* const pipe = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  finding.data["mps_pipe"] = pipe != nullptr ? pipe : "";
  finding.detail = fmt::format("CUDA {}, {} x {}, {} MiB", version, num_devices, name, bytes >> 20);
  BATON_RETURN_IF_ERROR(report.Add(std::move(finding)));
  BATON_RETURN_IF_ERROR(AddAttributes(*driver, device, report));
  BATON_RETURN_IF_ERROR(AddFeatures(*driver, device, report));
  for (const char* library : {"libnccl.so.2", "libcublasLt.so.13", "libnvidia-ml.so.1"}) {
    BATON_RETURN_IF_ERROR(AddLibrary(library, report));
  }
  return absl::OkStatus();
}

}  // namespace
#endif

absl::Status CheckMachine(const StageInput& input, Report& report) {
#ifdef BATON_GPU_CHECK_HAS_GPU
  if (input.body.is_gpu) return CheckGpu(report);
#endif
  DeviceInfo info;
  const absl::Status status = input.body.open(&info);
  return report.Add({"device", status.ok() ? Verdict::kPass : Verdict::kFail, info.description});
}

}  // namespace baton::kernels::gpu_check
