// SimtDevice: the runner as an Accelerator, so that model, engine and hand-off run on CUDA sources
// with no GPU. Every call is done when it returns, so its stream is null and other streams are
// HostStreams, for those who work on its memory by themselves.
//
// Memory is an arena of its own with guard pages, and kernels are checked for bounds at every
// access; what is shared between processes lies in sealed memory files, mapped read-only by who
// imports them. Races are looked for when the options say so, which a whole model is too slow for.
// Several devices of a process, and several accelerators of one device, take turns, launch by
// launch.
#ifndef BATON_KERNELS_SIMT_SIMT_DEVICE_H_
#define BATON_KERNELS_SIMT_SIMT_DEVICE_H_

#include <memory>
#include <string>
#include <string_view>

#include "kernels/simt/device_memory.h"
#include "kernels/simt/kernel_graph.h"
#include "kernels/simt/run_options.h"
#include "src/device/accelerator.h"
#include "src/device/host_stream.h"

namespace baton::kernels::simt {
inline namespace runner {

// See the file comment.
class SimtDevice final : public device::Accelerator {
 public:
  // How launches run, in every thread for which the device is current.
  explicit SimtDevice(const RunOptions& options)
      : SimtDevice(options, std::make_shared<DeviceMemory>()) {}
  ~SimtDevice() override;

  device::DeviceKind kind() const override { return device::DeviceKind::kSimt; }
  std::string Describe() const override;
  std::string_view arithmetic() const override;
  void MakeCurrent() override;
  void* stream() const override { return nullptr; }
  absl::StatusOr<std::unique_ptr<device::Accelerator>> Share() override {
    return std::unique_ptr<device::Accelerator>(new SimtDevice(options_, memory_));
  }
  absl::StatusOr<std::byte*> Allocate(size_t size_bytes, std::string_view name) override;
  void Free(std::byte* begin) override;
  absl::StatusOr<std::byte*> AllocateHost(size_t size_bytes, std::string_view name) override {
    return memory_->host.Allocate(size_bytes, name);
  }
  void FreeHost(std::byte* begin) override { memory_->host.Free(begin); }
  absl::Status PinHost(std::byte* begin, size_t size_bytes) override {
    memory_->host.Pin(begin, size_bytes);
    return absl::OkStatus();
  }
  void UnpinHost(std::byte* begin) override { memory_->host.Free(begin); }
  // Copies out for which a GPU would have waited, of all accelerators of this memory.
  uint64_t num_waits() const { return memory_->host.num_waits(); }
  absl::StatusOr<std::byte*> AllocateShared(size_t size_bytes, std::string_view name) override;
  absl::StatusOr<UniqueFd> ExportShared(const std::byte* begin) override;
  absl::StatusOr<const std::byte*> ImportShared(const UniqueFd& fd, size_t size_bytes) override;
  void ReleaseShared(const std::byte* begin) override;
  absl::Status CopyIn(std::byte* to, const void* from, size_t size_bytes) override;
  absl::Status CopyOut(void* to, const std::byte* from, size_t size_bytes) override;
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t size_bytes) override;
  absl::Status Wait() override;
  absl::Status BeginRecording() override;
  absl::StatusOr<void*> EndRecording() override;
  absl::Status LaunchGraph(void* graph) override { return static_cast<KernelGraph*>(graph)->Run(); }
  void DestroyGraph(void* graph) override { delete static_cast<KernelGraph*>(graph); }
  absl::StatusOr<void*> CreateStream() override { return new device::HostStream; }
  void DestroyStream(void* stream) override { delete static_cast<device::HostStream*>(stream); }
  absl::StatusOr<void*> CreateEvent() override { return new device::HostEvent; }
  void DestroyEvent(void* event) override { delete static_cast<device::HostEvent*>(event); }
  absl::Status Record(void* event, void* stream) override {
    static_cast<device::HostEvent*>(event)->Record(static_cast<device::HostStream*>(stream));
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Query(void* event) override {
    return static_cast<device::HostEvent*>(event)->IsDone();
  }
  // Kernels that were launched after the event may be under way, so there is no NoteWait.
  absl::Status WaitFor(void* /*event*/) override { return CheckIdle(); }

 private:
  SimtDevice(const RunOptions& options, std::shared_ptr<DeviceMemory> memory)
      : options_(options), memory_(std::move(memory)) {}

  // Internal while launches are being recorded: a graph of ours holds kernels only.
  absl::Status CheckIdle() const;

  const RunOptions options_;
  const std::shared_ptr<DeviceMemory> memory_;
  std::unique_ptr<KernelGraph> recorded_;  // null = launches run
};

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_SIMT_DEVICE_H_
