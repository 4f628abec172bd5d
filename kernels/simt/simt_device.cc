#include "kernels/simt/simt_device.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "src/base/errno_text.h"

namespace baton::kernels::simt {
inline namespace runner {

SimtDevice::~SimtDevice() {
  if (DeviceMemory::IsBound(memory_.get())) DeviceMemory::Bind(nullptr);
  if (recorded_ != nullptr) KernelGraph::RecordInto(nullptr);
}

std::string SimtDevice::Describe() const {
  return "CUDA sources on this processor (" + simt::Describe(options_) + ")";
}

std::string_view SimtDevice::arithmetic() const {
  static constexpr std::string_view kNames[] = {"bf16.hopper.1", "bf16.ampere.1", "bf16.float.1"};
  return kNames[static_cast<size_t>(options_.tensor_math)];
}

void SimtDevice::MakeCurrent() {
  if (DeviceMemory::IsBound(memory_.get())) return;
  DeviceMemory::Bind(memory_.get());
  SetRunOptions(options_);
}

absl::StatusOr<std::byte*> SimtDevice::Allocate(size_t size_bytes, std::string_view name) {
  const FairMutexLock lock(LaunchMutex());
  return memory_->arena.Allocate(size_bytes, std::string(name));
}

void SimtDevice::Free(std::byte* begin) {
  const FairMutexLock lock(LaunchMutex());
  memory_->arena.Free(begin);
}

absl::StatusOr<std::byte*> SimtDevice::AllocateShared(size_t size_bytes, std::string_view name) {
  const FairMutexLock lock(LaunchMutex());
  return memory_->arena.AllocateFile(size_bytes, std::string(name));
}

absl::StatusOr<UniqueFd> SimtDevice::ExportShared(const std::byte* begin) {
  const FairMutexLock lock(LaunchMutex());
  const int file = memory_->arena.FileOf(begin);
  if (file < 0) return InvalidArgument("no shared memory begins there");
  UniqueFd copy(fcntl(file, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return ResourceExhausted("a descriptor: {}", ErrnoText(errno));
  return copy;
}

absl::StatusOr<const std::byte*> SimtDevice::ImportShared(const UniqueFd& fd, size_t size_bytes) {
  const FairMutexLock lock(LaunchMutex());
  return memory_->arena.Import(fd.get(), size_bytes, "memory of another process");
}

void SimtDevice::ReleaseShared(const std::byte* begin) {
  const FairMutexLock lock(LaunchMutex());
  memory_->arena.Free(const_cast<std::byte*>(begin));
}

absl::Status SimtDevice::CopyIn(std::byte* to, const void* from, size_t size_bytes) {
  BATON_RETURN_IF_ERROR(CheckIdle());
  memory_->host.NoteCopyFrom(from, size_bytes);
  if (size_bytes > 0) std::memcpy(to, from, size_bytes);
  return absl::OkStatus();
}

absl::Status SimtDevice::CopyOut(void* to, const std::byte* from, size_t size_bytes) {
  BATON_RETURN_IF_ERROR(CheckIdle());
  memory_->host.NoteCopy(to, size_bytes);
  if (size_bytes > 0) std::memcpy(to, from, size_bytes);
  return absl::OkStatus();
}

absl::Status SimtDevice::CopyWithin(std::byte* to, const std::byte* from, size_t size_bytes) {
  BATON_RETURN_IF_ERROR(CheckIdle());
  if (size_bytes > 0) std::memcpy(to, from, size_bytes);
  return absl::OkStatus();
}

absl::Status SimtDevice::Wait() {
  BATON_RETURN_IF_ERROR(CheckIdle());
  const FairMutexLock lock(LaunchMutex());
  memory_->arena.NoteWait();
  return absl::OkStatus();
}

absl::Status SimtDevice::CheckIdle() const {
  if (recorded_ == nullptr) return absl::OkStatus();
  return Internal("a graph is being recorded, which holds kernels only");
}

absl::Status SimtDevice::BeginRecording() {
  BATON_RETURN_IF_ERROR(CheckIdle());
  if (KernelGraph::Recording() != nullptr) {
    return Unimplemented("the runner records one device at a time");
  }
  recorded_ = std::make_unique<KernelGraph>();
  KernelGraph::RecordInto(recorded_.get());
  return absl::OkStatus();
}

absl::StatusOr<void*> SimtDevice::EndRecording() {
  if (recorded_ == nullptr) return Internal("nothing is being recorded");
  KernelGraph::RecordInto(nullptr);
  return recorded_.release();
}

}  // namespace runner
}  // namespace baton::kernels::simt
