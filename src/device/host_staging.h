// HostStaging: copies from a device to any memory of the host, by way of a HostBuffer. No copy
// waits, and one Finish waits for all. For small results that are read at once.
//
// Owned by the thread that uses the device.
#ifndef BATON_DEVICE_HOST_STAGING_H_
#define BATON_DEVICE_HOST_STAGING_H_

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/device/host_buffer.h"

namespace baton::device {

// See the file comment.
class HostStaging {
 public:
  // Copies that wait for one Finish at most; a logit row each, and the tokens.
  static constexpr size_t kMaxCopies = 256;

  // `device` outlives it. Errors as Accelerator::AllocateHost.
  static absl::StatusOr<std::unique_ptr<HostStaging>> Create(Accelerator* device, size_t size_bytes,
                                                             std::string_view name);

  // Puts the copy into the stream; the bytes are in `to` after Finish. Where the buffer or the list
  // is full it finishes first, and what is larger than the buffer crosses in pieces. Allocates
  // nothing. Errors as Accelerator::CopyOut; then no copy is left to be finished.
  Status CopyOut(void* to, const std::byte* from, size_t size_bytes);
  // Waits for the stream and moves the bytes to where they belong. Errors as Accelerator::Wait.
  Status Finish();

 private:
  // A copy of the bytes at the next place of the buffer, and where they go.
  struct Copy {
    std::byte* to = nullptr;
    size_t size_bytes = 0;
  };

  HostStaging(Accelerator* device, HostBuffer buffer)
      : device_(device), buffer_(std::move(buffer)) {
    copies_.reserve(kMaxCopies);
  }

  Accelerator* const device_;
  const HostBuffer buffer_;
  size_t used_bytes_ = 0;
  std::vector<Copy> copies_;  // one after the other
};

}  // namespace baton::device

#endif  // BATON_DEVICE_HOST_STAGING_H_
