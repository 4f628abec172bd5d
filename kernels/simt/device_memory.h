// DeviceMemory: an arena and the record of who touched it. Each operating-system thread has one of
// its own, for tests; a SimtDevice brings one that any thread may bind, also two at once: whoever
// launches or changes the arena holds LaunchMutex().
#ifndef BATON_KERNELS_SIMT_DEVICE_MEMORY_H_
#define BATON_KERNELS_SIMT_DEVICE_MEMORY_H_

#include <cstdint>

#include "kernels/simt/arena.h"
#include "kernels/simt/shadow.h"
#include "src/base/mutex.h"
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
class BATON_CAPABILITY("mutex") FairMutex {
 public:
  void Lock() BATON_ACQUIRE();
  void Unlock() BATON_RELEASE();

 private:
  Mutex mutex_;
  CondVar turn_;
  uint64_t next_ BATON_GUARDED_BY(mutex_) = 0;     // ticket of who comes next
  uint64_t serving_ BATON_GUARDED_BY(mutex_) = 0;  // ticket of who has it, or may
};

// Holds a FairMutex until its scope ends.
class BATON_SCOPED_CAPABILITY FairMutexLock {
 public:
  explicit FairMutexLock(FairMutex& mutex) BATON_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~FairMutexLock() BATON_RELEASE() { mutex_.Unlock(); }
  FairMutexLock(const FairMutexLock&) = delete;
  FairMutexLock& operator=(const FairMutexLock&) = delete;

 private:
  FairMutex& mutex_;
};

// Held by a launch, since the fault handler is the process's, and by who changes an arena that a
// launch of another thread may be using.
FairMutex& LaunchMutex();

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_DEVICE_MEMORY_H_
