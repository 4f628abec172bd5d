#include "src/device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include "src/base/log.h"
#include "src/base/size_text.h"
#include "src/device/cuda/driver_entry.h"
#include "src/device/cuda/green_contexts.h"
#include "src/device/cuda/nvtx_stages.h"
#include "src/device/cuda/shared_memory.h"
#include "src/device/gpu_code.h"

namespace baton::device {
namespace {

// After a sticky error the device cannot be used: the caller ends the process (KvStore, engine). An
// error that is not sticky is cleared, so that the next caller does not see it.
absl::Status FromCuda(std::string_view what, cudaError_t error) {
  if (error == cudaSuccess) return OkStatus();
  (void)cudaGetLastError();
  return Internal("{}: {}, {}", what, cudaGetErrorName(error), cudaGetErrorString(error));
}

static_assert(CUDART_VERSION / 1000 * 1000 == kOldestCuda, "minor versions go together");

// The interface that green contexts are complete with.
constexpr unsigned kGreenInterface = 12050;

// A function that the driver lacks stays null, and is named when it is asked for.
GreenTable FindGreenTable() {
  GreenTable driver;
#define BATON_FIND(name) (void)FindInDriver(#name, kGreenInterface, &driver.name);
  BATON_GREEN_FUNCTIONS(BATON_FIND)
#undef BATON_FIND
  return driver;
}

cudaStream_t StreamOf(void* stream) { return static_cast<cudaStream_t>(stream); }

// The priority of the stream that computes a model: the least, and the default.
constexpr int kModelPriority = 0;

// The greatest priority of the current GPU, numerically the smallest; 0, as the least one, where
// the GPU has no priorities.
absl::StatusOr<int> GreatestPriority() {
  int least = 0;
  int greatest = 0;
  BATON_RETURN_IF_ERROR(FromCuda("cudaDeviceGetStreamPriorityRange",
                                 cudaDeviceGetStreamPriorityRange(&least, &greatest)));
  return greatest;
}

absl::StatusOr<void*> MakeStream(int priority) {
  cudaStream_t stream = nullptr;
  BATON_RETURN_IF_ERROR(
      FromCuda("cudaStreamCreateWithPriority",
               cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority)));
  return stream;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(int ordinal, CodeCheck check_code) {
  int driver_version = 0;  // stays 0 where there is none
  (void)cudaDriverGetVersion(&driver_version);
  if (driver_version == 0) return FailedPrecondition("no GPU can be used: there is no CUDA driver");
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  const absl::Status asked = FromCuda("cudaGetDeviceCount", counted);
  if (counted == cudaErrorInsufficientDriver) {
    return FailedPrecondition("no GPU can be used: the driver is for {}, older than {}",
                              CudaVersionText(driver_version), CudaVersionText(kOldestCuda));
  }
  if (counted == cudaErrorNoDevice) {
    return FailedPrecondition("no GPU can be used: {}", cudaGetErrorString(counted));
  }
  BATON_RETURN_IF_ERROR(asked);
  if (ordinal >= count) return FailedPrecondition("GPU {}: there are {}", ordinal, count);
  cudaDeviceProp properties;
  BATON_RETURN_IF_ERROR(
      FromCuda("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, ordinal)));
  BATON_RETURN_IF_ERROR(FromCuda("cudaSetDevice", cudaSetDevice(ordinal)));
  const absl::Status code = (*check_code)();
  if (absl::IsFailedPrecondition(code)) {
    return FailedPrecondition("GPU {} ({}) is sm_{}{}; this build has kernels for {}: {}", ordinal,
                              properties.name, properties.major, properties.minor, BuildGpuCode(),
                              std::string(code.message()));
  }
  BATON_RETURN_IF_ERROR(code);
  const ComputeCapability capability = {properties.major, properties.minor};
  if (!HasBeenChecked(capability)) {
    BATON_LOG_WARN(
        "GPU {} ({}) is sm_{}{}, of which none has run scripts/gpu_check.sh: the bits of its "
        "tensor cores are not known, and no other kind of GPU pairs with it",
        ordinal, properties.name, capability.major, capability.minor);
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(ordinal));
  device->product_ = properties.name;
  device->description_ = fmt::format("GPU {} ({}, {})", ordinal, properties.name,
                                     FormatSize(properties.totalGlobalMem));
  device->num_sms_ = static_cast<uint32_t>(properties.multiProcessorCount);
  device->arithmetic_ = GpuArithmetic(capability);
  device->reads_pageable_ = properties.pageableMemoryAccess != 0;
  BATON_ASSIGN_OR_RETURN(device->stream_, MakeStream(kModelPriority));
  return device;
}

CudaDevice::CudaDevice(int ordinal) : ordinal_(ordinal) {}

CudaDevice::~CudaDevice() {
  shared_.reset();
  DropStream();
}

void CudaDevice::DropStream() {
  if (stream_ == nullptr) return;
  MakeCurrent();
  if (part_ != nullptr) {
    part_->DestroyStream(StreamOf(stream_));
  } else {
    (void)cudaStreamDestroy(StreamOf(stream_));
  }
  stream_ = nullptr;
}

std::unique_ptr<CudaDevice> CudaDevice::Another() const {
  std::unique_ptr<CudaDevice> device(new CudaDevice(ordinal_));
  device->product_ = product_;
  device->description_ = description_;
  device->arithmetic_ = arithmetic_;
  device->num_sms_ = num_sms_;
  device->reads_pageable_ = reads_pageable_;
  device->MakeCurrent();
  return device;
}

absl::StatusOr<std::unique_ptr<Accelerator>> CudaDevice::Share() {
  std::unique_ptr<CudaDevice> device = Another();
  BATON_ASSIGN_OR_RETURN(device->stream_, device->CreateStream());
  return device;
}

absl::StatusOr<std::unique_ptr<Accelerator>> CudaDevice::Split() {
  std::unique_ptr<CudaDevice> device = Another();
  StatusOr<SmSplit> split = SmSplit::Create(FindGreenTable(), ordinal_);
  const Status divided = split.ok() ? Divide(&*split, device.get()) : split.status();
  if (divided.ok()) return device;
  BATON_LOG_WARN("GPU {} cannot be divided between its workers, they take turns: {}", ordinal_,
                 std::string(divided.message()));
  BATON_ASSIGN_OR_RETURN(device->stream_, device->CreateStream());
  return device;
}

absl::Status CudaDevice::ReachMemoryOf(Accelerator& other) {
  const int peer = static_cast<const CudaDevice&>(other).ordinal_;
  if (peer == ordinal_) return OkStatus();
  int can = 0;
  BATON_RETURN_IF_ERROR(
      FromCuda("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, ordinal_, peer)));
  if (can == 0) {
    return FailedPrecondition(
        "GPU {} cannot reach the memory of GPU {}: no NVLink and no PCIe path", ordinal_, peer);
  }
  MakeCurrent();
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();  // not sticky
  } else {
    BATON_RETURN_IF_ERROR(FromCuda("cudaDeviceEnablePeerAccess", error));
  }
  static_cast<CudaDevice&>(other).reached_by_.push_back(ordinal_);
  return OkStatus();
}

Status CudaDevice::Divide(SmSplit* split, CudaDevice* other) {
  BATON_ASSIGN_OR_RETURN(const CUstream mine, split->most->CreateStream());
  const StatusOr<CUstream> theirs = split->quarter->CreateStream();
  if (!theirs.ok()) {
    split->most->DestroyStream(mine);
    return theirs.status();
  }
  Status status = TryEvents(mine);
  if (status.ok()) status = TryEvents(*theirs);
  if (!status.ok()) {
    split->most->DestroyStream(mine);
    split->quarter->DestroyStream(*theirs);
    return status;
  }
  Enter(std::move(split->most), mine, split->num_sms);
  other->Enter(std::move(split->quarter), *theirs, split->num_sms);
  return OkStatus();
}

// Events are the primary context's, and the driver's manual asks for those of the stream's own.
Status CudaDevice::TryEvents(void* stream) {
  BATON_ASSIGN_OR_RETURN(void* const event, CreateEvent());
  Status status = Record(event, stream);
  if (status.ok()) status = WaitFor(event);
  DestroyEvent(event);
  return status;
}

void CudaDevice::Enter(std::unique_ptr<SmPart> part, void* stream, uint32_t num_sms) {
  DropStream();
  part_ = std::move(part);
  stream_ = stream;
  num_sms_ = part_->num_sms();
  part_text_ = fmt::format(", {} of {} multiprocessors", part_->num_sms(), num_sms);
}

StageSink* CudaDevice::stages() const { return NvtxStages(); }

void CudaDevice::MakeCurrent() { (void)cudaSetDevice(ordinal_); }

absl::StatusOr<std::byte*> CudaDevice::Allocate(size_t size_bytes, std::string_view name) {
  void* begin = nullptr;
  const cudaError_t error = cudaMalloc(&begin, size_bytes > 0 ? size_bytes : 1);
  if (error == cudaSuccess) return static_cast<std::byte*>(begin);
  if (error != cudaErrorMemoryAllocation) return FromCuda("cudaMalloc", error);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  (void)cudaMemGetInfo(&free_bytes, &total_bytes);
  (void)cudaGetLastError();  // running out of memory is not sticky
  return ResourceExhausted("{} needs {}, {} has {} free of {} ({})", name, FormatSize(size_bytes),
                           description_, FormatSize(free_bytes), FormatSize(total_bytes),
                           cudaGetErrorName(error));
}

void CudaDevice::Free(std::byte* begin) {
  if (shared_ != nullptr && shared_->Owns(begin)) return shared_->Free(begin);
  if (const cudaError_t error = cudaFree(begin); error != cudaSuccess) {
    BATON_LOG_ERROR("cudaFree: {}", cudaGetErrorName(error));
  }
}

absl::StatusOr<std::byte*> CudaDevice::AllocateHost(size_t size_bytes, std::string_view name) {
  void* begin = nullptr;
  const cudaError_t error = cudaMallocHost(&begin, size_bytes > 0 ? size_bytes : 1);
  if (error == cudaSuccess) return static_cast<std::byte*>(begin);
  if (error != cudaErrorMemoryAllocation) return FromCuda("cudaMallocHost", error);
  (void)cudaGetLastError();  // as in Allocate
  return ResourceExhausted("{} needs {} of pinned memory of the host: {}", name,
                           FormatSize(size_bytes), cudaGetErrorName(error));
}

void CudaDevice::FreeHost(std::byte* begin) {
  if (const cudaError_t error = cudaFreeHost(begin); error != cudaSuccess) {
    BATON_LOG_ERROR("cudaFreeHost: {}", cudaGetErrorName(error));
  }
}

absl::Status CudaDevice::PinHost(std::byte* begin, size_t size_bytes) {
  const cudaError_t error = cudaHostRegister(begin, size_bytes, cudaHostRegisterPortable);
  if (error == cudaSuccess) return OkStatus();
  (void)cudaGetLastError();  // as in Allocate
  return FailedPrecondition("cudaHostRegister of {}: {}", FormatSize(size_bytes),
                            cudaGetErrorName(error));
}

void CudaDevice::UnpinHost(std::byte* begin) {
  if (const cudaError_t error = cudaHostUnregister(begin); error != cudaSuccess) {
    BATON_LOG_ERROR("cudaHostUnregister: {}", cudaGetErrorName(error));
  }
}

absl::StatusOr<CudaSharedMemory*> CudaDevice::Shared() {
  if (shared_ == nullptr) {
    MakeCurrent();
    BATON_ASSIGN_OR_RETURN(const VmmTable driver, LoadVmmTable());
    BATON_ASSIGN_OR_RETURN(shared_, CudaSharedMemory::Open(driver, ordinal_));
  }
  return shared_.get();
}

absl::StatusOr<std::byte*> CudaDevice::AllocateShared(size_t size_bytes, std::string_view name) {
  BATON_ASSIGN_OR_RETURN(CudaSharedMemory* const shared, Shared());
  return shared->Allocate(size_bytes, name, reached_by_);
}

absl::StatusOr<UniqueFd> CudaDevice::ExportShared(const std::byte* begin) {
  BATON_ASSIGN_OR_RETURN(CudaSharedMemory* const shared, Shared());
  return shared->Export(begin);
}

absl::StatusOr<const std::byte*> CudaDevice::ImportShared(const UniqueFd& fd, size_t size_bytes) {
  BATON_ASSIGN_OR_RETURN(CudaSharedMemory* const shared, Shared());
  return shared->Import(fd, size_bytes);
}

void CudaDevice::ReleaseShared(const std::byte* begin) { shared_->Free(begin); }

// A GPU that reads pageable memory may still copy from or to it when the call has returned.
absl::Status CudaDevice::FinishCopy(const void* host) {
  if (!reads_pageable_) return OkStatus();
  cudaPointerAttributes attributes;
  BATON_RETURN_IF_ERROR(
      FromCuda("cudaPointerGetAttributes", cudaPointerGetAttributes(&attributes, host)));
  return attributes.type == cudaMemoryTypeUnregistered ? Wait() : OkStatus();
}

absl::Status CudaDevice::CopyIn(std::byte* to, const void* from, size_t size_bytes) {
  BATON_RETURN_IF_ERROR(
      FromCuda("copy to the GPU",
               cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyHostToDevice, StreamOf(stream_))));
  return FinishCopy(from);
}

absl::Status CudaDevice::CopyOut(void* to, const std::byte* from, size_t size_bytes) {
  BATON_RETURN_IF_ERROR(
      FromCuda("copy from the GPU",
               cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToHost, StreamOf(stream_))));
  return FinishCopy(to);
}

absl::Status CudaDevice::CopyRowsIn(std::byte* to, const std::byte* from, const CopyShape& shape) {
  BATON_RETURN_IF_ERROR(
      FromCuda("copy to the GPU",
               cudaMemcpy2DAsync(to, shape.device_pitch, from, shape.host_pitch, shape.row_bytes,
                                 shape.num_rows, cudaMemcpyHostToDevice, StreamOf(stream_))));
  return FinishCopy(from);
}

absl::Status CudaDevice::CopyRowsOut(std::byte* to, const std::byte* from, const CopyShape& shape) {
  BATON_RETURN_IF_ERROR(
      FromCuda("copy from the GPU",
               cudaMemcpy2DAsync(to, shape.host_pitch, from, shape.device_pitch, shape.row_bytes,
                                 shape.num_rows, cudaMemcpyDeviceToHost, StreamOf(stream_))));
  return FinishCopy(to);
}

absl::Status CudaDevice::CopyWithin(std::byte* to, const std::byte* from, size_t size_bytes) {
  return FromCuda("copy on the GPU", cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice,
                                                     StreamOf(stream_)));
}

absl::Status CudaDevice::Wait() {
  return FromCuda("the GPU's stream", cudaStreamSynchronize(StreamOf(stream_)));
}

absl::Status CudaDevice::BeginRecording() {
  // Relaxed: a kernel is loaded at its first launch, which may be one that is recorded.
  return FromCuda("cudaStreamBeginCapture",
                  cudaStreamBeginCapture(StreamOf(stream_), cudaStreamCaptureModeRelaxed));
}

absl::StatusOr<void*> CudaDevice::EndRecording() {
  cudaGraph_t recorded = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(StreamOf(stream_), &recorded);
  if (ended != cudaSuccess) return FromCuda("cudaStreamEndCapture", ended);
  cudaGraphExec_t graph = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&graph, recorded, 0);
  (void)cudaGraphDestroy(recorded);
  if (made != cudaSuccess) return FromCuda("cudaGraphInstantiate", made);
  // Or the first launch would do it.
  if (const cudaError_t error = cudaGraphUpload(graph, StreamOf(stream_)); error != cudaSuccess) {
    (void)cudaGraphExecDestroy(graph);
    return FromCuda("cudaGraphUpload", error);
  }
  return graph;
}

absl::Status CudaDevice::LaunchGraph(void* graph) {
  return FromCuda("cudaGraphLaunch",
                  cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), StreamOf(stream_)));
}

void CudaDevice::DestroyGraph(void* graph) {
  (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

// Work in such a stream takes microseconds, and a peer or a client waits for it. Among streams of
// equal priority its ctas would queue after all ctas of a prompt's products.
absl::StatusOr<void*> CudaDevice::CreateStream() {
  BATON_ASSIGN_OR_RETURN(const int greatest, GreatestPriority());
  return MakeStream(greatest);
}

void CudaDevice::DestroyStream(void* stream) { (void)cudaStreamDestroy(StreamOf(stream)); }

absl::StatusOr<void*> CudaDevice::CreateEvent() {
  cudaEvent_t event = nullptr;
  BATON_RETURN_IF_ERROR(FromCuda("cudaEventCreateWithFlags",
                                 cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
  return event;
}

void CudaDevice::DestroyEvent(void* event) {
  (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

absl::Status CudaDevice::Record(void* event, void* stream) {
  return FromCuda("cudaEventRecord",
                  cudaEventRecord(static_cast<cudaEvent_t>(event), StreamOf(stream)));
}

absl::StatusOr<bool> CudaDevice::Query(void* event) {
  const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  BATON_RETURN_IF_ERROR(FromCuda("the GPU's stream", error));
  return true;
}

absl::Status CudaDevice::WaitFor(void* event) {
  return FromCuda("the GPU's stream", cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
}

}  // namespace baton::device
