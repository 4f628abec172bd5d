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

// Holding a FairMutex is a fact about two numbers, which the analysis cannot see.
void FairMutex::Lock() BATON_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(mutex_);
  const uint64_t ticket = next_++;
  while (serving_ != ticket) turn_.Wait(mutex_);
}

void FairMutex::Unlock() BATON_NO_THREAD_SAFETY_ANALYSIS {
  {
    const MutexLock lock(mutex_);
    ++serving_;
  }
  turn_.NotifyAll();
}

FairMutex& LaunchMutex() {
  static FairMutex mutex;
  return mutex;
}

}  // namespace runner
}  // namespace baton::kernels::simt
