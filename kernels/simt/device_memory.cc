#include "kernels/simt/device_memory.h"

namespace baton::simt {
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

std::mutex& LaunchMutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace runner
}  // namespace baton::simt
