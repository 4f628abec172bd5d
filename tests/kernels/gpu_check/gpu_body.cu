#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "tests/kernels/gpu_check/device_body.h"

namespace baton::kernels::gpu_check {
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

// An error of a launch is told once and forgotten, one of a kernel that ran stays.
absl::Status Ask() {
  cudaGetLastError();
  return FromCuda("the GPU is lost to this process", cudaDeviceSynchronize());
}

// Waits for the runtime's own stream. Its work may be under way when a call returns: this is so for
// a copy from memory that is not pinned, too. Streams of an Accelerator do not wait for it.
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

// A sample of work as a graph, which can be run again and again; its parts are given back whatever
// happened.
class RecordedSample {
 public:
  explicit RecordedSample(const TimedWork& work) : work_(work) {}
  ~RecordedSample() {
    Forget();
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  RecordedSample(const RecordedSample&) = delete;
  RecordedSample& operator=(const RecordedSample&) = delete;

  // The first launch happens outside of any graph: it loads the kernel.
  absl::Status Prepare() {
    absl::Status status = FromCuda("work before", cudaDeviceSynchronize());
    if (status.ok()) {
      status =
          FromCuda("cudaStreamCreate", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    if (status.ok()) status = work_.launch(stream_, 0);
    if (status.ok()) status = FromCuda("first launch", cudaStreamSynchronize(stream_));
    return status;
  }

  // So many launches, in place of what was recorded before.
  absl::Status Record(uint32_t num_launches) {
    Forget();
    absl::Status status = FromCuda("cudaStreamBeginCapture",
                                   cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    if (!status.ok()) return status;
    for (uint32_t i = 0; i < num_launches && status.ok(); ++i) status = work_.launch(stream_, i);
    const absl::Status ended =
        FromCuda("cudaStreamEndCapture", cudaStreamEndCapture(stream_, &graph_));
    if (!status.ok()) return status;
    if (!ended.ok()) return ended;
    return FromCuda("cudaGraphInstantiate", cudaGraphInstantiate(&executable_, graph_, 0));
  }

  // Milliseconds of each of `count` runs, one after the other, with an event between two. The run
  // before the first event is not timed: while it computes, the host puts the rest into the stream,
  // so that none of its time lies between two events.
  absl::Status Replay(uint32_t count, std::vector<float>* milliseconds) {
    while (events_.size() < count + 1) {
      cudaEvent_t event = nullptr;
      const absl::Status made = FromCuda("cudaEventCreate", cudaEventCreate(&event));
      if (!made.ok()) return made;
      events_.push_back(event);
    }
    absl::Status status;
    for (uint32_t i = 0; i <= count && status.ok(); ++i) {
      status = FromCuda("cudaGraphLaunch", cudaGraphLaunch(executable_, stream_));
      if (status.ok()) status = FromCuda("cudaEventRecord", cudaEventRecord(events_[i], stream_));
    }
    const absl::Status ended = FromCuda("timed work", cudaStreamSynchronize(stream_));
    if (status.ok()) status = ended;
    milliseconds->assign(count, 0);
    for (uint32_t i = 0; i < count && status.ok(); ++i) {
      status = FromCuda("cudaEventElapsedTime",
                        cudaEventElapsedTime(&(*milliseconds)[i], events_[i], events_[i + 1]));
    }
    return status;
  }

 private:
  void Forget() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    executable_ = nullptr;
    graph_ = nullptr;
  }

  const TimedWork& work_;
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> events_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

absl::Status Time(const TimedWork& work, std::vector<double>* us) {
  us->clear();
  RecordedSample sample(work);
  std::vector<float> milliseconds;
  uint32_t num_launches = work.num_launches;
  absl::Status status = sample.Prepare();
  if (status.ok()) status = sample.Record(num_launches);
  if (status.ok()) status = sample.Replay(1, &milliseconds);
  if (!status.ok()) return status;
  const uint32_t num_repeats = RepeatsFor(milliseconds[0], num_launches);
  if (num_repeats > 1) {
    num_launches *= num_repeats;
    status = sample.Record(num_launches);
  }
  if (status.ok()) status = sample.Replay(work.num_samples, &milliseconds);
  if (!status.ok()) return status;
  for (const float sample_ms : milliseconds) us->push_back(sample_ms * 1e3 / num_launches);
  return absl::OkStatus();
}

constexpr DeviceBody kBody = {.name = "gpu",
                              .is_gpu = true,
                              .open = Open,
                              .ask = Ask,
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

}  // namespace baton::kernels::gpu_check
