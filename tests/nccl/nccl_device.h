// Devices for NcclTransport and IpcTransport where there is no GPU: the runner with the CUDA
// kernels, or a fake accelerator whose kernels are their references, put into its late stream.
#ifndef BATON_TESTS_NCCL_NCCL_DEVICE_H_
#define BATON_TESTS_NCCL_NCCL_DEVICE_H_

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/kv_slices_reference.h"
#include "kvcache/transport/slice_device.h"
#include "src/base/check.h"
#include "tests/device/fake_accelerator.h"
#ifdef BATON_HAVE_SIMT
#include "kernels/simt/simt_device.h"
#endif

namespace baton::kv::nccl_test {

// A device with KV blocks that this processor can read and write too.
struct KvDevice {
  std::unique_ptr<device::Accelerator> device;
  std::vector<std::unique_ptr<device::Accelerator>> peers;  // of the other ranks, of the fake
  std::vector<device::DeviceBuffer> buffers;                // of each rank
  SliceDevice parts;

  // The device of each rank; it is the same one where ranks share it.
  std::vector<device::Accelerator*> ranks() const {
    std::vector<device::Accelerator*> all(parts.memory.num_ranks(), device.get());
    for (size_t i = 0; i < peers.size(); ++i) all[1 + i] = peers[i].get();
    return all;
  }
};

// The options of the device that is made.
struct KvDeviceOptions {
  bool is_runner = false;                 // where it is built, else the fake
  bool is_shared = false;                 // memory with a descriptor
  uint32_t num_ranks = 1;                 // those of the runner share its device
  device::Accelerator* beside = nullptr;  // on that device
};

// The kernels of the fake: done when its stream comes to them.
inline const kernels::cuda::KernelTable& FakeKernels() {
  static const kernels::cuda::KernelTable table = [] {
    kernels::cuda::KernelTable kernels{};
    kernels.kv_gather = [](const kv::KvSlicesParams& params, void*) {
      device::FakeAccelerator::Current()->Put(
          [params] { kernels::cuda::ReferenceKvGather(params); });
      return absl::OkStatus();
    };
    kernels.kv_scatter = [](const kv::KvSlicesParams& params, void*) {
      device::FakeAccelerator::Current()->Put(
          [params] { kernels::cuda::ReferenceKvScatter(params); });
      return absl::OkStatus();
    };
    return kernels;
  }();
  return table;
}

// Memory of one rank, zeros.
inline std::byte* AddBuffer(device::Accelerator* device, size_t size_bytes, bool is_shared,
                            KvDevice* made) {
  device->MakeCurrent();
  StatusOr<device::DeviceBuffer> buffer =
      is_shared ? CreateSharedBuffer(device, size_bytes, "KV blocks")
                : device::DeviceBuffer::Create(device, size_bytes, "KV blocks");
  BATON_CHECK(buffer.ok(), "{}", buffer.status().ToString());
  std::memset(buffer->data(), 0, size_bytes);
  return made->buffers.emplace_back(*std::move(buffer)).data();
}

// Blocks start as zeros.
inline KvDevice MakeKvDevice(const KvDeviceOptions& wanted, const KvLayout& layout,
                             uint32_t num_blocks) {
  KvDevice made;
  if (wanted.beside != nullptr) made.device = wanted.beside->Share().value();
  made.parts.kernels = SliceKernelsOf(FakeKernels());
#ifdef BATON_HAVE_SIMT
  if (wanted.is_runner) {
    // Bounds are checked at every access; races are the kernels' own tests'.
    kernels::simt::RunOptions options;
    options.detect_races = false;
    if (wanted.beside == nullptr)
      made.device = std::make_unique<kernels::simt::SimtDevice>(options);
    made.parts.kernels = SliceKernelsOf(kernels::cuda::runner::Kernels());
  }
#endif
  BATON_CHECK(!wanted.is_runner || made.device != nullptr, "this build has no runner");
  if (made.device == nullptr) made.device = std::make_unique<device::FakeAccelerator>();
  const size_t size_bytes = num_blocks * RankLayout(layout, wanted.num_ranks).BlockStride();
  made.parts.device = made.device.get();
  KvMemory& memory = made.parts.memory;
  memory = {AddBuffer(made.device.get(), size_bytes, wanted.is_shared, &made), layout, num_blocks};
  if (wanted.num_ranks > 1) memory.ranks.push_back(memory.base);
  for (uint32_t rank = 1; rank < wanted.num_ranks; ++rank) {
    if (!wanted.is_runner) made.peers.push_back(std::make_unique<device::FakeAccelerator>());
    device::Accelerator* const device =
        wanted.is_runner ? made.device.get() : made.peers.back().get();
    memory.ranks.push_back(AddBuffer(device, size_bytes, wanted.is_shared, &made));
  }
  made.device->MakeCurrent();
  return made;
}

}  // namespace baton::kv::nccl_test

#endif  // BATON_TESTS_NCCL_NCCL_DEVICE_H_
