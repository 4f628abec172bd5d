#include "kernels/simt/device_memory.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

thread_local DeviceMemory* bound = nullptr;

}  // namespace

DeviceMemory& DeviceMemory::OfThisThread() {
  if (bound != nullptr) return *bound;
  static thread_local DeviceMemory own;
  return own;
}

void DeviceMemory::Bind(DeviceMemory* memory) { bound = memory; }

bool DeviceMemory::IsBound(const DeviceMemory* memory) { return bound == memory; }

void FairMutex::lock() {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t ticket = next_++;
  turn_.wait(lock, [&] { return serving_ == ticket; });
}

void FairMutex::unlock() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++serving_;
  }
  turn_.notify_all();
}

FairMutex& LaunchMutex() {
  static FairMutex mutex;
  return mutex;
}

}  // namespace runner
}  // namespace baton::kernels::simt
