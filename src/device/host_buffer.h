// HostBuffer: an owned piece of host memory that a device copies to or from while the host goes on.
// With a GPU it is pinned. A copy to any other host memory returns only when the bytes are there,
// after all that was in the stream before it (CUDA, "API synchronization behavior"). A copy from
// any other host memory is staged first, on some machines after all that too.
#ifndef BATON_DEVICE_HOST_BUFFER_H_
#define BATON_DEVICE_HOST_BUFFER_H_

#include <cstddef>
#include <string_view>

#include "src/base/status.h"
#include "src/device/accelerator.h"

namespace baton::device {

// See the file comment. Move-only; its accelerator outlives it, and no copy to or from it is under
// way when it is destroyed.
class HostBuffer : public OwnedMemory<&Accelerator::FreeHost> {
 public:
  HostBuffer() = default;
  // Errors as Accelerator::AllocateHost.
  static absl::StatusOr<HostBuffer> Create(Accelerator* device, size_t size_bytes,
                                           std::string_view name) {
    BATON_ASSIGN_OR_RETURN(std::byte* const begin, device->AllocateHost(size_bytes, name));
    return HostBuffer(device, begin, size_bytes);
  }

 private:
  HostBuffer(Accelerator* device, std::byte* begin, size_t size)
      : OwnedMemory(device, begin, size) {}
};

}  // namespace baton::device

#endif  // BATON_DEVICE_HOST_BUFFER_H_
