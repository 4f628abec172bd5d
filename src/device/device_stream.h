// DeviceStream, DeviceEvent: owned streams and events of an Accelerator; move-only. Their
// accelerator outlives them.
#ifndef BATON_DEVICE_DEVICE_STREAM_H_
#define BATON_DEVICE_DEVICE_STREAM_H_

#include <utility>

#include "src/device/accelerator.h"

namespace baton::device {

// See the file comment.
class DeviceStream {
 public:
  DeviceStream() = default;
  static absl::StatusOr<DeviceStream> Create(Accelerator* device) {
    absl::StatusOr<void*> stream = device->CreateStream();
    if (!stream.ok()) return stream.status();
    return DeviceStream(device, *stream);
  }
  DeviceStream(DeviceStream&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), stream_(other.stream_) {}
  DeviceStream& operator=(DeviceStream&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~DeviceStream() {
    if (device_ == nullptr) return;
    device_->MakeCurrent();
    device_->DestroyStream(stream_);
  }

  void* get() const { return stream_; }

 private:
  DeviceStream(Accelerator* device, void* stream) : device_(device), stream_(stream) {}

  Accelerator* device_ = nullptr;
  void* stream_ = nullptr;
};

// See the file comment.
class DeviceEvent {
 public:
  DeviceEvent() = default;
  static absl::StatusOr<DeviceEvent> Create(Accelerator* device) {
    absl::StatusOr<void*> event = device->CreateEvent();
    if (!event.ok()) return event.status();
    return DeviceEvent(device, *event);
  }
  DeviceEvent(DeviceEvent&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), event_(other.event_) {}
  DeviceEvent& operator=(DeviceEvent&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~DeviceEvent() {
    if (device_ == nullptr) return;
    device_->MakeCurrent();
    device_->DestroyEvent(event_);
  }

  absl::Status Record(void* stream) { return device_->Record(event_, stream); }
  absl::StatusOr<bool> Query() const { return device_->Query(event_); }
  absl::Status Wait() const { return device_->WaitFor(event_); }

 private:
  DeviceEvent(Accelerator* device, void* event) : device_(device), event_(event) {}

  Accelerator* device_ = nullptr;
  void* event_ = nullptr;
};

}  // namespace baton::device

#endif  // BATON_DEVICE_DEVICE_STREAM_H_
