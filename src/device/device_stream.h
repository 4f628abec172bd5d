// DeviceStream, DeviceEvent: owned streams and events of an Accelerator; move-only. Their
// accelerator outlives them.
#ifndef BATON_DEVICE_DEVICE_STREAM_H_
#define BATON_DEVICE_DEVICE_STREAM_H_

#include "src/device/accelerator.h"

namespace baton::device {

// See the file comment.
class DeviceStream : public OwnedByDevice<void*, &Accelerator::DestroyStream> {
 public:
  DeviceStream() = default;
  static absl::StatusOr<DeviceStream> Create(Accelerator* device) {
    BATON_ASSIGN_OR_RETURN(void* const stream, device->CreateStream());
    return DeviceStream(device, stream);
  }

 private:
  DeviceStream(Accelerator* device, void* stream) : OwnedByDevice(device, stream) {}
};

// See the file comment.
class DeviceEvent : private OwnedByDevice<void*, &Accelerator::DestroyEvent> {
 public:
  DeviceEvent() = default;
  static absl::StatusOr<DeviceEvent> Create(Accelerator* device) {
    BATON_ASSIGN_OR_RETURN(void* const event, device->CreateEvent());
    return DeviceEvent(device, event);
  }

  absl::Status Record(void* stream) { return device()->Record(get(), stream); }
  absl::StatusOr<bool> Query() const { return device()->Query(get()); }
  absl::Status Wait() const { return device()->WaitFor(get()); }

 private:
  DeviceEvent(Accelerator* device, void* event) : OwnedByDevice(device, event) {}
};

}  // namespace baton::device

#endif  // BATON_DEVICE_DEVICE_STREAM_H_
