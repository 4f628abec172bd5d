// Devices for NcclTransport and IpcTransport where there is no GPU: the runner with the CUDA
// kernels, or a fake accelerator whose kernels are their references, put into its late stream.
#ifndef BATON_TESTS_NCCL_NCCL_DEVICE_H_
#define BATON_TESTS_NCCL_NCCL_DEVICE_H_

#include <cstring>
#include <memory>
#include <utility>

#include "kernels/cuda/kv_slices_reference.h"
#include "kvcache/transport/slice_device.h"
#include "src/base/check.h"
#include "tests/device/fake_accelerator.h"
#ifdef BATON_HAVE_SIMT
#include "kernels/simt/simt_device.h"
#endif

namespace baton::nccl_test {

// A device with KV blocks that this processor can read and write too.
struct KvDevice {
  std::unique_ptr<Accelerator> device;
  DeviceBuffer buffer;
  SliceDevice parts;
};

// The kernels of the fake: done when its stream comes to them.
inline const cuda::KernelTable& FakeKernels() {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable kernels{};
    kernels.kv_gather = [](const cuda::KvSlicesParams& params, void*) {
      FakeAccelerator::Current()->Put([params] { cuda::ReferenceKvGather(params); });
      return absl::OkStatus();
    };
    kernels.kv_scatter = [](const cuda::KvSlicesParams& params, void*) {
      FakeAccelerator::Current()->Put([params] { cuda::ReferenceKvScatter(params); });
      return absl::OkStatus();
    };
    return kernels;
  }();
  return table;
}

// The runner where it is built and wanted, else the fake. Blocks start as zeros; `is_shared`: with
// a descriptor; `beside`: on that device.
inline KvDevice MakeKvDevice(bool is_runner, const KvLayout& layout, uint32_t num_blocks,
                             bool is_shared = false, Accelerator* beside = nullptr) {
  KvDevice made;
  if (beside != nullptr) made.device = beside->Share().value();
  made.parts.kernels = &FakeKernels();
#ifdef BATON_HAVE_SIMT
  if (is_runner) {
    // Bounds are checked at every access; races are the kernels' own tests'.
    simt::RunOptions options;
    options.detect_races = false;
    if (beside == nullptr) made.device = std::make_unique<simt::SimtDevice>(options);
    made.parts.kernels = &cuda::runner::Kernels();
  }
#endif
  BATON_CHECK(!is_runner || made.device != nullptr, "this build has no runner");
  if (made.device == nullptr) made.device = std::make_unique<FakeAccelerator>();
  made.device->MakeCurrent();
  const size_t size = num_blocks * layout.BlockStride();
  StatusOr<DeviceBuffer> buffer =
      is_shared ? DeviceBuffer::CreateShared(made.device.get(), size, "KV blocks")
                : DeviceBuffer::Create(made.device.get(), size, "KV blocks");
  BATON_CHECK(buffer.ok(), "{}", buffer.status().ToString());
  made.buffer = *std::move(buffer);
  std::memset(made.buffer.data(), 0, size);
  made.parts.device = made.device.get();
  made.parts.memory = {made.buffer.data(), layout, num_blocks};
  return made;
}

}  // namespace baton::nccl_test

#endif  // BATON_TESTS_NCCL_NCCL_DEVICE_H_
