// HostBuffer: an owned piece of host memory that a device copies to or from while the host goes on.
// With a GPU it is pinned. A copy to any other host memory returns only when the bytes are there,
// after all that was in the stream before it (CUDA, "API synchronization behavior"). A copy from
// any other host memory is staged first, on some machines after all that too.
#ifndef BATON_DEVICE_HOST_BUFFER_H_
#define BATON_DEVICE_HOST_BUFFER_H_

#include <cstddef>
#include <string_view>
#include <utility>

#include "src/base/status.h"
#include "src/device/accelerator.h"

namespace baton::device {

// See the file comment. Move-only; its accelerator outlives it, and no copy to or from it is under
// way when it is destroyed.
class HostBuffer {
 public:
  HostBuffer() = default;
  // Errors as Accelerator::AllocateHost.
  static absl::StatusOr<HostBuffer> Create(Accelerator* device, size_t size_bytes,
                                           std::string_view name) {
    absl::StatusOr<std::byte*> begin = device->AllocateHost(size_bytes, name);
    if (!begin.ok()) return begin.status();
    return HostBuffer(device, *begin, size_bytes);
  }
  HostBuffer(HostBuffer&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), begin_(other.begin_), size_(other.size_) {}
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(begin_, other.begin_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~HostBuffer() {
    if (device_ == nullptr) return;
    device_->MakeCurrent();
    device_->FreeHost(begin_);
  }

  std::byte* data() const { return begin_; }
  size_t size_bytes() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(begin_);
  }

 private:
  HostBuffer(Accelerator* device, std::byte* begin, size_t size)
      : device_(device), begin_(begin), size_(size) {}

  Accelerator* device_ = nullptr;
  std::byte* begin_ = nullptr;
  size_t size_ = 0;
};

}  // namespace baton::device

#endif  // BATON_DEVICE_HOST_BUFFER_H_
