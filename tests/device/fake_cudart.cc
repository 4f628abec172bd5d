#include "tests/device/fake_cudart.h"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "src/base/check.h"

namespace baton::device {
namespace {

FakeCudart* machine = nullptr;

// Handles are objects, so that one given back twice, or never, is found by AddressSanitizer.
template <typename Handle>
cudaError_t Make(Handle* handle, int& count) {
  *handle = reinterpret_cast<Handle>(new int);
  ++count;
  return cudaSuccess;
}
template <typename Handle>
cudaError_t Drop(Handle handle, int& count) {
  delete reinterpret_cast<int*>(handle);
  --count;
  return cudaSuccess;
}

using Allocations = std::map<void*, size_t>;

cudaError_t Allocate(Allocations& from, void** begin, size_t size_bytes) {
  *begin = std::malloc(size_bytes);
  from[*begin] = size_bytes;
  return cudaSuccess;
}

cudaError_t Release(Allocations& from, void* begin) {
  if (from.erase(begin) == 0) return machine->Give(cudaErrorInvalidValue);
  std::free(begin);
  return cudaSuccess;
}

}  // namespace

FakeCudart::FakeCudart() {
  BATON_CHECK(machine == nullptr, "there is one machine at a time");
  machine = this;
}

FakeCudart::~FakeCudart() { machine = nullptr; }

size_t FakeCudart::allocated_bytes() const {
  size_t total = 0;
  for (const auto& [begin, size_bytes] : allocated) total += size_bytes;
  return total;
}

}  // namespace baton::device

using baton::device::Allocate;
using baton::device::Drop;
using baton::device::machine;
using baton::device::Make;
using baton::device::Release;

// NOLINTBEGIN: the runtime's names and types
extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorDevicesUnavailable:
      return "cudaErrorDevicesUnavailable";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorTooManyPeers:
      return "cudaErrorTooManyPeers";
    default:
      return "another error";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "what it means";
}
cudaError_t cudaGetLastError() { return std::exchange(machine->last_error, cudaSuccess); }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = machine->driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const auto found = machine->driver.find(name);
  const bool is_there = found != machine->driver.end();
  *function = is_there ? found->second : nullptr;
  *result = is_there ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine->count_error == cudaSuccess ? machine->num_gpus : 0;
  return machine->Give(machine->count_error);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "Fake");
  properties->major = machine->major;
  properties->totalGlobalMem = machine->memory_bytes;
  properties->multiProcessorCount = 132;
  properties->pageableMemoryAccess = machine->reads_pageable ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int ordinal) {
  if (machine->set_device_error == cudaSuccess) machine->current = ordinal;
  return machine->Give(machine->set_device_error);
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = machine->peers_reach ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int) {
  if (machine->enable_peer_error == cudaSuccess)
    machine->reached.emplace_back(machine->current, peer);
  return machine->Give(machine->enable_peer_error);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** begin, size_t size_bytes) {
  if (machine->malloc_error != cudaSuccess) return machine->Give(machine->malloc_error);
  if (size_bytes > machine->memory_bytes - machine->allocated_bytes()) {
    return machine->Give(cudaErrorMemoryAllocation);
  }
  return Allocate(machine->allocated, begin, size_bytes);
}
cudaError_t cudaFree(void* begin) { return Release(machine->allocated, begin); }
cudaError_t cudaMallocHost(void** begin, size_t size_bytes) {
  if (machine->malloc_error != cudaSuccess) return machine->Give(machine->malloc_error);
  if (size_bytes > machine->max_host_bytes) return machine->Give(cudaErrorMemoryAllocation);
  return Allocate(machine->pinned, begin, size_bytes);
}
cudaError_t cudaFreeHost(void* begin) { return Release(machine->pinned, begin); }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = machine->memory_bytes - machine->allocated_bytes();
  *total_bytes = machine->memory_bytes;
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, size_t, unsigned int) {
  if (machine->pin_error == cudaSuccess) ++machine->num_registered;
  return machine->Give(machine->pin_error);
}
cudaError_t cudaHostUnregister(void*) {
  --machine->num_registered;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind,
                            cudaStream_t) {
  if (machine->work_error == cudaSuccess) std::memcpy(to, from, size_bytes);
  return machine->Give(machine->work_error);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t row_bytes, size_t num_rows, cudaMemcpyKind, cudaStream_t) {
  for (size_t row = 0; machine->work_error == cudaSuccess && row < num_rows; ++row) {
    std::memcpy(static_cast<char*>(to) + row * to_pitch,
                static_cast<const char*>(from) + row * from_pitch, row_bytes);
  }
  return machine->Give(machine->work_error);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  return Make(stream, machine->num_streams);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return Drop(stream, machine->num_streams); }
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  ++machine->num_waits;
  return machine->Give(machine->work_error);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* begin) {
  *attributes = {};
  const auto pinned = machine->pinned.upper_bound(const_cast<void*>(begin));
  const bool is_pinned =
      pinned != machine->pinned.begin() &&
      static_cast<const char*>(begin) <
          static_cast<char*>(std::prev(pinned)->first) + std::prev(pinned)->second;
  attributes->type = is_pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  return Make(event, machine->num_events);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return Drop(event, machine->num_events); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  const cudaError_t error = machine->record_error;
  return machine->Give(error != cudaSuccess ? error : machine->work_error);
}
cudaError_t cudaEventQuery(cudaEvent_t) { return machine->Give(machine->work_error); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return machine->Give(machine->work_error); }

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  if (machine->end_capture_error != cudaSuccess) return machine->Give(machine->end_capture_error);
  return Make(graph, machine->num_graphs);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return Drop(graph, machine->num_graphs); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long) {
  if (machine->instantiate_error != cudaSuccess) return machine->Give(machine->instantiate_error);
  return Make(graph, machine->num_graphs);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return machine->Give(machine->upload_error);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
  return machine->Give(machine->work_error);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return Drop(graph, machine->num_graphs); }

}  // extern "C"
// NOLINTEND
