// DeviceMemory: an arena and the record of who touched it. Each operating-system thread has one of
// its own, for tests; a SimtDevice brings one that any thread may bind, one at a time.
#ifndef BATON_KERNELS_SIMT_DEVICE_MEMORY_H_
#define BATON_KERNELS_SIMT_DEVICE_MEMORY_H_

#include <mutex>

#include "kernels/simt/arena.h"
#include "kernels/simt/shadow.h"

namespace baton::simt {
inline namespace runner {

// See the file comment.
struct DeviceMemory {
  Arena arena;
  Shadow shadow{arena};

  // What launches and buffers of the calling thread use: the bound one, or the thread's own.
  static DeviceMemory& OfThisThread();
  // Binds one to the calling thread; null: its own again. It outlives the binding.
  static void Bind(DeviceMemory* memory);
  static bool IsBound(const DeviceMemory* memory);
};

// Held by a launch, since the fault handler is the process's, and by who changes an arena that a
// launch of another thread may be using.
std::mutex& LaunchMutex();

}  // namespace runner
}  // namespace baton::simt

#endif  // BATON_KERNELS_SIMT_DEVICE_MEMORY_H_
