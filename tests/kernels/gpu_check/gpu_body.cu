#include <cuda_runtime.h>

#include <string>

#include "tests/kernels/gpu_check/device_body.h"

namespace baton::gpu_check {
namespace {

absl::Status FromCuda(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(std::string(what) + ": " + cudaGetErrorName(error) + ", " +
                             cudaGetErrorString(error));
}

absl::Status Open(DeviceInfo* info) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return absl::UnavailableError(std::string("no GPU: ") + cudaGetErrorName(error) + ", " +
                                  cudaGetErrorString(error));
  }
  cudaDeviceProp properties;
  const absl::Status status =
      FromCuda("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, 0));
  if (!status.ok()) return status;
  *info = {std::string(properties.name) + ", sm_" + std::to_string(properties.major) +
               std::to_string(properties.minor),
           properties.name, properties.major};
  return absl::OkStatus();
}

// What the runtime's own stream was given may be under way when the call returns, a copy from
// memory that is not pinned too, and streams of an Accelerator do not wait for it.
absl::Status Settle() {
  return FromCuda("the GPU's own stream", cudaStreamSynchronize(cudaStreamLegacy));
}

absl::Status Allocate(size_t bytes, void** memory) {
  absl::Status status = FromCuda("cudaMalloc", cudaMalloc(memory, bytes > 0 ? bytes : 1));
  if (status.ok()) status = FromCuda("cudaMemset", cudaMemset(*memory, 0xFF, bytes));
  if (status.ok()) status = Settle();
  return status;
}

void Release(void* memory) { cudaFree(memory); }

absl::Status CopyIn(void* to_device, const void* from, size_t bytes) {
  const absl::Status status =
      FromCuda("copy to the GPU", cudaMemcpy(to_device, from, bytes, cudaMemcpyHostToDevice));
  return status.ok() ? Settle() : status;
}

absl::Status CopyOut(void* to, const void* from_device, size_t bytes) {
  const absl::Status status = FromCuda("kernel", cudaDeviceSynchronize());
  if (!status.ok()) return status;
  return FromCuda("copy from the GPU", cudaMemcpy(to, from_device, bytes, cudaMemcpyDeviceToHost));
}

// A recorded sample that can be replayed; its parts are given back whatever happened.
class RecordedSample {
 public:
  ~RecordedSample() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    for (cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // The first launch happens outside of the graph: it loads the kernel.
  absl::Status Record(const TimedWork& work) {
    absl::Status status = FromCuda("work before", cudaDeviceSynchronize());
    if (status.ok()) {
      status =
          FromCuda("cudaStreamCreate", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    if (status.ok()) status = work.launch(stream_, 0);
    if (status.ok()) status = FromCuda("first launch", cudaStreamSynchronize(stream_));
    for (cudaEvent_t& event : events_) {
      if (status.ok()) status = FromCuda("cudaEventCreate", cudaEventCreate(&event));
    }
    if (status.ok()) {
      status = FromCuda("cudaStreamBeginCapture",
                        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    }
    if (!status.ok()) return status;
    for (uint32_t i = 0; i < work.num_launches && status.ok(); ++i) {
      status = work.launch(stream_, i);
    }
    const absl::Status ended =
        FromCuda("cudaStreamEndCapture", cudaStreamEndCapture(stream_, &graph_));
    if (!status.ok()) return status;
    if (!ended.ok()) return ended;
    return FromCuda("cudaGraphInstantiate", cudaGraphInstantiate(&executable_, graph_, 0));
  }

  absl::Status Replay(float* milliseconds) {
    absl::Status status = FromCuda("cudaEventRecord", cudaEventRecord(events_[0], stream_));
    if (status.ok()) status = FromCuda("cudaGraphLaunch", cudaGraphLaunch(executable_, stream_));
    if (status.ok()) status = FromCuda("cudaEventRecord", cudaEventRecord(events_[1], stream_));
    if (status.ok()) status = FromCuda("timed work", cudaStreamSynchronize(stream_));
    if (!status.ok()) return status;
    return FromCuda("cudaEventElapsedTime",
                    cudaEventElapsedTime(milliseconds, events_[0], events_[1]));
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[2] = {};
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

absl::Status Time(const TimedWork& work, std::vector<double>* us) {
  constexpr uint32_t kWarmUp = 3;
  RecordedSample sample;
  absl::Status status = sample.Record(work);
  us->clear();
  for (uint32_t i = 0; i < kWarmUp + work.num_samples && status.ok(); ++i) {
    float milliseconds = 0;
    status = sample.Replay(&milliseconds);
    if (i >= kWarmUp) us->push_back(milliseconds * 1e3 / work.num_launches);
  }
  return status;
}

constexpr DeviceBody kBody = {.name = "gpu",
                              .is_gpu = true,
                              .open = Open,
                              .allocate = Allocate,
                              .release = Release,
                              .copy_in = CopyIn,
                              .copy_out = CopyOut,
                              .time = Time,
                              .primitives = gpu::AllPrimitives,
                              .loops = gpu::Loops,
                              .kernels = cuda::gpu::Kernels};

}  // namespace

const DeviceBody* GpuBody() { return &kBody; }

}  // namespace baton::gpu_check
