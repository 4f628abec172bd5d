#include <chrono>
#include <cstring>

#include "kernels/simt/device_memory.h"
#include "kernels/simt/run_options.h"
#include "tests/kernels/gpu_check/device_body.h"

namespace baton::kernels::gpu_check {
namespace {

// Whose part the runner plays: what has no wgmma and is no Ampere came after Hopper.
absl::Status Open(DeviceInfo* info) {
  const simt::RunOptions& options = simt::CurrentRunOptions();
  if (options.tensor_math == simt::TensorMath::kAmpereBits) {
    *info = {"the runner of kernels/simt, with Ampere's bits", "", 8};
  } else if (options.max_shared_bytes < simt::kHopperSharedBytes) {
    *info = {"the runner of kernels/simt, with bits that no model has", "", 12};
  } else {
    *info = {"the runner of kernels/simt, with Hopper's bits", "", 9};
  }
  return absl::OkStatus();
}

absl::Status Ask() {
  simt::DeviceMemory::OfThisThread().arena.NoteWait();
  return absl::OkStatus();
}

absl::Status Allocate(size_t bytes, void** memory) {
  const auto begin = simt::DeviceMemory::OfThisThread().arena.Allocate(bytes, "gpu_check");
  if (!begin.ok()) return begin.status();
  *memory = *begin;
  return absl::OkStatus();
}

void Release(void* memory) {
  simt::DeviceMemory::OfThisThread().arena.Free(static_cast<std::byte*>(memory));
}

absl::Status Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return absl::OkStatus();
}

absl::Status CopyOut(void* to, const void* from_device, size_t bytes) {
  simt::DeviceMemory::OfThisThread().arena.NoteWait();
  return Copy(to, from_device, bytes);
}

// Quickly: what runs is not looked at, and stages 1 and 2 looked for races.
absl::Status Time(const TimedWork& work, std::vector<double>* us) {
  simt::RunOptions quick = simt::CurrentRunOptions();
  quick.detect_races = false;
  quick.tensor_math = simt::TensorMath::kFloat;
  const simt::ScopedRunOptions scope(quick);
  us->clear();
  for (uint32_t sample = 0; sample < work.num_samples; ++sample) {
    const auto begin = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < work.num_launches; ++i) {
      if (const absl::Status status = work.launch(nullptr, i); !status.ok()) return status;
    }
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - begin;
    us->push_back(elapsed.count() / work.num_launches);
  }
  return absl::OkStatus();
}

constexpr DeviceBody kBody = {.name = "simt",
                              .is_gpu = false,
                              .open = Open,
                              .ask = Ask,
                              .allocate = Allocate,
                              .release = Release,
                              .copy_in = Copy,
                              .copy_out = CopyOut,
                              .time = Time,
                              .primitives = runner::AllPrimitives,
                              .loops = runner::Loops,
                              .kernels = cuda::runner::Kernels};

}  // namespace

const DeviceBody& SimtBody() { return kBody; }

#ifndef BATON_GPU_CHECK_HAS_GPU
const DeviceBody* GpuBody() { return nullptr; }
#endif

}  // namespace baton::kernels::gpu_check
