// DeviceGraph: kernels that a device recorded with their parameters, to be launched again and again
// as one piece of work (Accelerator::BeginRecording).
//
// Owned by the thread that uses the device.
#ifndef BATON_DEVICE_DEVICE_GRAPH_H_
#define BATON_DEVICE_DEVICE_GRAPH_H_

#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/device/accelerator.h"

namespace baton::device {

// See the file comment. Move-only; its accelerator outlives it.
class DeviceGraph : private OwnedByDevice<void*, &Accelerator::DestroyGraph> {
 public:
  DeviceGraph() = default;
  // Records the work that `put`, which returns Status, puts into the devices' streams, one graph a
  // device. Returns the error of `put`, or a device's.
  template <typename Put>
  static absl::StatusOr<std::vector<DeviceGraph>> Record(std::span<Accelerator* const> devices,
                                                         const Put& put) {
    absl::Status done;
    size_t num_begun = 0;
    for (Accelerator* const device : devices) {
      device->MakeCurrent();
      done = device->BeginRecording();
      if (!done.ok()) break;
      ++num_begun;
    }
    if (done.ok()) done = put();
    std::vector<DeviceGraph> recorded;
    for (Accelerator* const device : devices.first(num_begun)) {
      device->MakeCurrent();
      absl::StatusOr<void*> graph = device->EndRecording();
      if (graph.ok()) recorded.push_back(DeviceGraph(device, *graph));
      done.Update(graph.status());
    }
    if (!done.ok()) return done;
    return recorded;
  }
  absl::Status Launch() const {
    device()->MakeCurrent();
    return device()->LaunchGraph(get());
  }

 private:
  DeviceGraph(Accelerator* device, void* graph) : OwnedByDevice(device, graph) {}
};

}  // namespace baton::device

#endif  // BATON_DEVICE_DEVICE_GRAPH_H_
