// Accelerator: one device with a memory of its own and one in-order stream of work. The device is a
// GPU, or the runner that executes CUDA sources on this processor (kernels/simt). The tables of
// kernels/cuda put computations into stream().
//
// Memory is the process's own, or shared with others of this host (AllocateShared, ImportShared). A
// process that shares a descriptor trusts the process that gets it, because a GPU's importer
// chooses its own access.
//
// Threading: one thread at a time; another thread gets one of its own over the same memory (Share).
// Each thread calls MakeCurrent, which any thread may, before its first other call and before it
// puts work into the stream. Work that waits for others (a collective library) goes into a stream
// of its own (DeviceStream), so that it holds up nothing else. Events (DeviceEvent) tell without
// waiting how far a stream is.
//
// Invariants
//  1. Copies and kernels happen in the order in which they were put into the stream.
//  2. Once a call returned Internal the device may be unusable: every later call may fail too, and
//     nothing that it computed since is to be trusted.
#ifndef BATON_DEVICE_ACCELERATOR_H_
#define BATON_DEVICE_ACCELERATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "src/device/device.h"
#include "src/device/step_stage.h"

namespace baton::device {

// Rows of equal size, with a fixed distance from row to row on either side.
struct CopyShape {
  size_t num_rows;
  size_t row_bytes;
  size_t device_pitch;  // bytes from one row to the next
  size_t host_pitch;
};

// See the file comment.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  virtual DeviceKind kind() const = 0;
  // Name and memory, for the log.
  virtual std::string Describe() const = 0;
  // The driver's name for the device, "NVIDIA H200"; empty when it is no product.
  virtual std::string_view product() const { return {}; }
  // Multiprocessors on which stream() runs: a part of the device's where it is divided. A device
  // that has none gives the number of an H200.
  virtual uint32_t num_sms() const { return 132; }
  // The sink that hears which stage an engine thread of this device is at; null when nobody
  // listens.
  virtual StageSink* stages() const { return nullptr; }
  // Names the order and rounding of everything that is computed here; part of numerics_id.
  virtual std::string_view arithmetic() const = 0;
  // The calling thread's work goes to this device from now on. Cheap when it does already.
  virtual void MakeCurrent() = 0;
  // A cudaStream_t, or null where the device has no streams.
  virtual void* stream() const = 0;
  // Another accelerator of the same device, for another thread: with a stream of its own, as one of
  // CreateStream. Memory of one may be used by both, and is freed by the one that allocated it.
  // Either may go first. Internal when the device refuses a stream.
  virtual absl::StatusOr<std::unique_ptr<Accelerator>> Share() = 0;
  // As Share, for a second worker on this device. Where the device can be divided, stream() of each
  // runs on processors of its own from now on. A quarter of them is the new one's, which is for
  // work that memory binds. Elsewhere the new one's work comes first, and one line of the log says
  // why. Once, before anything is in stream().
  virtual absl::StatusOr<std::unique_ptr<Accelerator>> Split() { return Share(); }

  // From now on kernels here read and write what `other`, of the same kind, allocates.
  // FailedPrecondition naming both when they cannot.
  virtual absl::Status ReachMemoryOf(Accelerator& other) {
    return FailedPrecondition("{} cannot reach the memory of {}", Describe(), other.Describe());
  }

  // `size_bytes` of device memory, aligned to 256 bytes; contents undefined. ResourceExhausted
  // with needed and available bytes. `name` appears in reports.
  virtual absl::StatusOr<std::byte*> Allocate(size_t size_bytes, std::string_view name) = 0;
  // Frees memory of Allocate or AllocateShared. No work that uses it is under way.
  virtual void Free(std::byte* begin) = 0;

  // `size_bytes` of host memory for CopyIn and CopyOut, aligned to 64 bytes; contents undefined.
  // ResourceExhausted naming the size. HostBuffer owns it.
  virtual absl::StatusOr<std::byte*> AllocateHost(size_t size_bytes, std::string_view name) = 0;
  virtual void FreeHost(std::byte* begin) = 0;
  // From now on copies to and from this memory of the process, whole pages, are as those of
  // AllocateHost: they do not wait. It lasts until UnpinHost, which comes before the memory is
  // unmapped. FailedPrecondition naming why when the device refuses; then nothing has changed.
  virtual absl::Status PinHost(std::byte* begin, size_t size_bytes) = 0;
  // No copy to or from it is under way.
  virtual void UnpinHost(std::byte* begin) = 0;

  // As Allocate, of memory that other processes of this host can map. FailedPrecondition naming
  // what the device lacks, Internal for any other error of its driver.
  virtual absl::StatusOr<std::byte*> AllocateShared(size_t size_bytes, std::string_view name) = 0;
  // A descriptor of what AllocateShared gave, to be passed to another process. The memory lives as
  // long as anybody has it mapped or has a descriptor.
  virtual absl::StatusOr<UniqueFd> ExportShared(const std::byte* begin) = 0;
  // Maps memory that another process's device of the same kind exported. It is to be read only, as
  // far as the driver can enforce that, which may be not at all. `size_bytes` is the size that it
  // was allocated with. FailedPrecondition or Internal naming what is wrong when the descriptor is
  // of anything else, or the device cannot reach that memory. The bytes may change at any time.
  virtual absl::StatusOr<const std::byte*> ImportShared(const UniqueFd& fd, size_t size_bytes) = 0;
  // Unmaps imported memory. No kernel and no copy that reads it is under way.
  virtual void ReleaseShared(const std::byte* begin) = 0;

  // Copies to the device, in stream order. `from` may be changed when the call returns. If `from`
  // is of AllocateHost or pinned, a GPU reads it later, and it may be changed once the copy is
  // done.
  virtual absl::Status CopyIn(std::byte* to, const void* from, size_t size_bytes) = 0;
  // Copies from the device, in stream order. The bytes are there after Wait, or once an event says
  // so. When `to` is neither of AllocateHost nor pinned, a GPU waits for the stream and copies
  // before the call returns.
  virtual absl::Status CopyOut(void* to, const std::byte* from, size_t size_bytes) = 0;
  // As CopyIn and CopyOut, of rows.
  virtual absl::Status CopyRowsIn(std::byte* to, const std::byte* from, const CopyShape& shape) {
    absl::Status status;
    for (size_t row = 0; row < shape.num_rows && status.ok(); ++row) {
      status =
          CopyIn(to + row * shape.device_pitch, from + row * shape.host_pitch, shape.row_bytes);
    }
    return status;
  }
  virtual absl::Status CopyRowsOut(std::byte* to, const std::byte* from, const CopyShape& shape) {
    absl::Status status;
    for (size_t row = 0; row < shape.num_rows && status.ok(); ++row) {
      status =
          CopyOut(to + row * shape.host_pitch, from + row * shape.device_pitch, shape.row_bytes);
    }
    return status;
  }
  // Copies from one place of the device to another, which do not overlap, in stream order.
  virtual absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t size_bytes) = 0;
  // Waits until all that is in the stream is done. Internal with what a kernel did wrong.
  virtual absl::Status Wait() = 0;

  // Work that is put into stream() from BeginRecording to EndRecording is not done but kept, in
  // order, as a graph. The graph can be put into the stream again and again, as one piece of work.
  // Kernels only, each with its parameters as they were given. So memory that they point to stays,
  // and its contents may change. Unimplemented where a device records nothing; then nothing began.
  // EndRecording follows each BeginRecording, whatever failed between them. A failure leaves the
  // device as it was, unless Wait says otherwise.
  virtual absl::Status BeginRecording() {
    return Unimplemented("device {} records nothing", DeviceKindName(kind()));
  }
  virtual absl::StatusOr<void*> EndRecording() { return Internal("nothing is being recorded"); }
  virtual absl::Status LaunchGraph(void* /*graph*/) { return Internal("there are no graphs"); }
  // The graph is not under way.
  virtual void DestroyGraph(void* /*graph*/) {}

  // One more in-order stream: a cudaStream_t, or a HostStream* where the device has no streams.
  // Nothing orders it with stream(). Its kernels get free processors before those of stream().
  // Nothing may be under way in it when it is destroyed.
  virtual absl::StatusOr<void*> CreateStream() = 0;
  virtual void DestroyStream(void* stream) = 0;
  // A mark that can be put after the work that is in a stream.
  virtual absl::StatusOr<void*> CreateEvent() = 0;
  virtual void DestroyEvent(void* event) = 0;
  // The event now stands after all that is in `stream`: one of CreateStream, or stream().
  virtual absl::Status Record(void* event, void* stream) = 0;
  // Whether all that stands before the event is done, kernels and copies; true before the first
  // Record. Never waits. Internal as for Wait.
  virtual absl::StatusOr<bool> Query(void* event) = 0;
  // Waits until all that stands before an event in stream() is done; what was put there later may
  // be under way. Errors as Wait.
  virtual absl::Status WaitFor(void* event) = 0;
};

// A thing that an accelerator made and takes back by `kTakeBack`; move-only. The accelerator
// outlives it.
template <typename Handle, void (Accelerator::*kTakeBack)(Handle)>
class OwnedByDevice {
 public:
  OwnedByDevice() = default;
  OwnedByDevice(Accelerator* device, Handle handle) : device_(device), handle_(handle) {}
  OwnedByDevice(OwnedByDevice&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), handle_(other.handle_) {}
  OwnedByDevice& operator=(OwnedByDevice&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~OwnedByDevice() {
    if (device_ == nullptr) return;
    device_->MakeCurrent();
    (device_->*kTakeBack)(handle_);
  }

  Accelerator* device() const { return device_; }
  Handle get() const { return handle_; }

 private:
  Accelerator* device_ = nullptr;
  Handle handle_ = nullptr;
};

// An owned piece of memory that an accelerator gives by `kAllocate`; move-only. The accelerator
// outlives it.
template <absl::StatusOr<std::byte*> (Accelerator::*kAllocate)(size_t, std::string_view),
          void (Accelerator::*kTakeBack)(std::byte*)>
class OwnedMemory {
 public:
  OwnedMemory() = default;
  // Errors as `allocate`, which is kAllocate or gives memory of the same kind.
  static absl::StatusOr<OwnedMemory> Create(Accelerator* device, size_t size_bytes,
                                            std::string_view name,
                                            decltype(kAllocate) allocate = kAllocate) {
    BATON_ASSIGN_OR_RETURN(std::byte* const begin, (device->*allocate)(size_bytes, name));
    return OwnedMemory(device, begin, size_bytes);
  }

  std::byte* data() const { return begin_.get(); }
  size_t size_bytes() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }

 private:
  OwnedMemory(Accelerator* device, std::byte* begin, size_t size)
      : begin_(device, begin), size_(size) {}

  OwnedByDevice<std::byte*, kTakeBack> begin_;
  size_t size_ = 0;
};

// An owned piece of device memory.
using DeviceBuffer = OwnedMemory<&Accelerator::Allocate, &Accelerator::Free>;

// A buffer of memory that Accelerator::ExportShared takes.
inline absl::StatusOr<DeviceBuffer> CreateSharedBuffer(Accelerator* device, size_t size_bytes,
                                                       std::string_view name) {
  return DeviceBuffer::Create(device, size_bytes, name, &Accelerator::AllocateShared);
}

}  // namespace baton::device

#endif  // BATON_DEVICE_ACCELERATOR_H_
