// DeviceGraph: kernels that a device recorded with their parameters, to be launched again and again
// as one piece of work (Accelerator::BeginRecording).
//
// Owned by the thread that uses the device.
#ifndef BATON_SRC_DEVICE_DEVICE_GRAPH_H_
#define BATON_SRC_DEVICE_DEVICE_GRAPH_H_

#include <utility>

#include "src/base/status.h"
#include "src/device/accelerator.h"

namespace baton {

// See the file comment. Move-only; its accelerator outlives it.
class DeviceGraph {
 public:
  DeviceGraph() = default;
  // Of what `put`, which returns Status, puts into the device's stream. Its error, or the device's.
  template <typename Put>
  static absl::StatusOr<DeviceGraph> Record(Accelerator* device, Put&& put) {
    if (absl::Status began = device->BeginRecording(); !began.ok()) return began;
    const absl::Status done = put();
    absl::StatusOr<void*> graph = device->EndRecording();
    if (!graph.ok()) return done.ok() ? graph.status() : done;
    DeviceGraph recorded(device, *graph);
    if (!done.ok()) return done;
    return recorded;
  }
  DeviceGraph(DeviceGraph&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), graph_(other.graph_) {}
  DeviceGraph& operator=(DeviceGraph&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(graph_, other.graph_);
    return *this;
  }
  ~DeviceGraph() {
    if (device_ == nullptr) return;
    device_->MakeCurrent();
    device_->DestroyGraph(graph_);
  }

  absl::Status Launch() const { return device_->LaunchGraph(graph_); }

 private:
  DeviceGraph(Accelerator* device, void* graph) : device_(device), graph_(graph) {}

  Accelerator* device_ = nullptr;
  void* graph_ = nullptr;
};

}  // namespace baton

#endif  // BATON_SRC_DEVICE_DEVICE_GRAPH_H_
