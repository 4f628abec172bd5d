#include "src/device/host_staging.h"

#include <algorithm>
#include <cstring>

namespace baton::device {

absl::StatusOr<std::unique_ptr<HostStaging>> HostStaging::Create(Accelerator* device,
                                                                 size_t size_bytes,
                                                                 std::string_view name) {
  BATON_ASSIGN_OR_RETURN(HostBuffer buffer, HostBuffer::Create(device, size_bytes, name));
  return std::unique_ptr<HostStaging>(new HostStaging(device, std::move(buffer)));
}

Status HostStaging::CopyOut(void* to, const std::byte* from, size_t size_bytes) {
  auto* place = static_cast<std::byte*>(to);
  while (size_bytes > 0) {
    if (used_bytes_ == buffer_.size_bytes() || copies_.size() == kMaxCopies) {
      BATON_RETURN_IF_ERROR(Finish());
    }
    const size_t piece = std::min(size_bytes, buffer_.size_bytes() - used_bytes_);
    if (Status status = device_->CopyOut(buffer_.data() + used_bytes_, from, piece); !status.ok()) {
      copies_.clear();
      used_bytes_ = 0;
      return status;
    }
    copies_.push_back({place, piece});
    used_bytes_ += piece;
    place += piece;
    from += piece;
    size_bytes -= piece;
  }
  return OkStatus();
}

Status HostStaging::Finish() {
  Status status = device_->Wait();
  const std::byte* from = buffer_.data();
  for (const Copy& copy : copies_) {
    if (status.ok()) std::memcpy(copy.to, from, copy.size_bytes);
    from += copy.size_bytes;
  }
  copies_.clear();
  used_bytes_ = 0;
  return status;
}

}  // namespace baton::device
