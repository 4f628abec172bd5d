// DeviceMemory: an arena and the record of who touched it. Each operating-system thread has one of
// its own, for tests; a SimtDevice brings one that any thread may bind, also two at once: whoever
// launches or changes the arena holds LaunchMutex().
#ifndef BATON_KERNELS_SIMT_DEVICE_MEMORY_H_
#define BATON_KERNELS_SIMT_DEVICE_MEMORY_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "kernels/simt/arena.h"
#include "kernels/simt/shadow.h"
#include "src/device/host_memory.h"

namespace baton::kernels::simt {
inline namespace runner {

// See the file comment.
struct DeviceMemory {
  Arena arena;
  Shadow shadow{arena};
  device::HostMemory host;  // in place of pinned memory

  // The memory that launches and buffers of the calling thread use: the bound one, or the thread's
  // own.
  static DeviceMemory& OfThisThread();
  // Binds one to the calling thread; null: its own again. It outlives the binding.
  static void Bind(DeviceMemory* memory);
  static bool IsBound(const DeviceMemory* memory);
};

// A mutex whose waiters get it in the order in which they came: an engine that launches kernel
// after kernel must not keep a transport's thread from its own for longer than one.
class FairMutex {
 public:
  void lock();    // NOLINT(readability-identifier-naming): std::lock_guard asks for it
  void unlock();  // NOLINT(readability-identifier-naming)

 private:
  std::mutex mutex_;  // guards both numbers
  std::condition_variable turn_;
  uint64_t next_ = 0;     // ticket of who comes next
  uint64_t serving_ = 0;  // ticket of who has it, or may
};

// Held by a launch, since the fault handler is the process's, and by who changes an arena that a
// launch of another thread may be using.
FairMutex& LaunchMutex();

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_DEVICE_MEMORY_H_
