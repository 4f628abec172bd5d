// CudaDevice: one GPU as an Accelerator, through the CUDA runtime (linked statically; the driver is
// found at run time). Only in builds with BATON_CUDA; the only place outside kernels and transports
// that knows CUDA's names.
//
// One in-order stream. Host memory of AllocateHost is pinned; copies from and to any other are
// staged by the driver, and those to it wait.
#ifndef BATON_DEVICE_CUDA_CUDA_DEVICE_H_
#define BATON_DEVICE_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/device/accelerator.h"

namespace baton::device {

class CudaSharedMemory;
class SmPart;
struct SmSplit;

// See the file comment.
class CudaDevice final : public Accelerator {
 public:
  // Whether this build has kernels for the current device (cuda::KernelTable::check_code).
  using CodeCheck = absl::Status (*)();
  // FailedPrecondition in one line saying what is missing: a driver, a GPU, or code for it.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int ordinal, CodeCheck check_code);
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string Describe() const override { return description_ + part_text_; }
  std::string_view product() const override { return product_; }
  std::string_view arithmetic() const override { return arithmetic_; }
  uint32_t num_sms() const override { return num_sms_; }
  StageSink* stages() const override;
  void MakeCurrent() override;
  void* stream() const override { return stream_; }
  absl::StatusOr<std::unique_ptr<Accelerator>> Share() override;
  absl::StatusOr<std::unique_ptr<Accelerator>> Split() override;
  absl::Status ReachMemoryOf(Accelerator& other) override;
  absl::StatusOr<std::byte*> Allocate(size_t size_bytes, std::string_view name) override;
  void Free(std::byte* begin) override;
  absl::StatusOr<std::byte*> AllocateHost(size_t size_bytes, std::string_view name) override;
  void FreeHost(std::byte* begin) override;
  absl::Status PinHost(std::byte* begin, size_t size_bytes) override;
  void UnpinHost(std::byte* begin) override;
  absl::StatusOr<std::byte*> AllocateShared(size_t size_bytes, std::string_view name) override;
  absl::StatusOr<UniqueFd> ExportShared(const std::byte* begin) override;
  absl::StatusOr<const std::byte*> ImportShared(const UniqueFd& fd, size_t size_bytes) override;
  void ReleaseShared(const std::byte* begin) override;
  absl::Status CopyIn(std::byte* to, const void* from, size_t size_bytes) override;
  absl::Status CopyOut(void* to, const std::byte* from, size_t size_bytes) override;
  absl::Status CopyRowsIn(std::byte* to, const std::byte* from, const CopyShape& shape) override;
  absl::Status CopyRowsOut(std::byte* to, const std::byte* from, const CopyShape& shape) override;
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t size_bytes) override;
  absl::Status Wait() override;
  absl::Status BeginRecording() override;
  absl::StatusOr<void*> EndRecording() override;
  absl::Status LaunchGraph(void* graph) override;
  void DestroyGraph(void* graph) override;
  absl::StatusOr<void*> CreateStream() override;
  void DestroyStream(void* stream) override;
  absl::StatusOr<void*> CreateEvent() override;
  void DestroyEvent(void* event) override;
  absl::Status Record(void* event, void* stream) override;
  absl::StatusOr<bool> Query(void* event) override;
  absl::Status WaitFor(void* event) override;

 private:
  explicit CudaDevice(int ordinal);
  // Another one of the same GPU, without a stream.
  std::unique_ptr<CudaDevice> Another() const;
  // Each of the two gets its part; nothing is changed when one is refused a stream, or its stream
  // an event.
  Status Divide(SmSplit* split, CudaDevice* other);
  // Whether an event can be recorded in that stream and waited for.
  Status TryEvents(void* stream);
  // After a copy from or to `host`, which the caller may free if it is pageable.
  absl::Status FinishCopy(const void* host);
  // From now on this device's stream is `stream` of `part`, which has `num_sms` in all.
  void Enter(std::unique_ptr<SmPart> part, void* stream, uint32_t num_sms);
  void DropStream();
  // Opens it at its first use.
  absl::StatusOr<CudaSharedMemory*> Shared();

  const int ordinal_;
  std::string product_;
  std::string description_;
  uint32_t num_sms_ = 0;
  bool reads_pageable_ = false;  // by itself, at any time (HMM, Grace)
  std::string part_text_;        // ", 32 of 132 multiprocessors"; empty = all of them
  std::string arithmetic_;
  std::unique_ptr<SmPart> part_;  // of the GPU, that stream_ is bound to; null = all of it
  void* stream_ = nullptr;
  std::vector<int> reached_by_;  // GPUs whose kernels use what is allocated here
  std::unique_ptr<CudaSharedMemory> shared_;
};

}  // namespace baton::device

#endif  // BATON_DEVICE_CUDA_CUDA_DEVICE_H_
