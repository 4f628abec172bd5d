// Mutex, MutexLock and CondVar: std::mutex and std::condition_variable with the attributes that
// clang's -Wthread-safety checks (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html). Another
// compiler sees no attributes. Product code uses no other mutex; tests/tidy_test says so.
//
// Rules
//  1. Each member that a mutex guards says so by BATON_GUARDED_BY.
//  2. A function whose caller holds the mutex says so by BATON_REQUIRES.
//  3. A mutex is held for copying. Another object is called after the lock is released.
//  4. A wait is a loop around CondVar: the compiler does not look into a lambda for its condition.
#ifndef BATON_BASE_MUTEX_H_
#define BATON_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define BATON_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define BATON_THREAD_ATTRIBUTE(x)
#endif

#define BATON_CAPABILITY(name) BATON_THREAD_ATTRIBUTE(capability(name))
#define BATON_SCOPED_CAPABILITY BATON_THREAD_ATTRIBUTE(scoped_lockable)
// A member with this mark is read and written with the mutex only.
#define BATON_GUARDED_BY(mutex) BATON_THREAD_ATTRIBUTE(guarded_by(mutex))
// The target of a pointer with this mark is read and written with the mutex only.
#define BATON_PT_GUARDED_BY(mutex) BATON_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
// The caller of a function with this mark holds the mutex, or must not hold it.
#define BATON_REQUIRES(...) BATON_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define BATON_EXCLUDES(...) BATON_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// A function with this mark takes the mutex, or releases it.
#define BATON_ACQUIRE(...) BATON_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define BATON_RELEASE(...) BATON_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
// The analysis skips a function with this mark. A comment beside it says why it is right.
#define BATON_NO_THREAD_SAFETY_ANALYSIS BATON_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace baton {

// std::mutex that the analysis knows. Any thread.
class BATON_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // The two bodies are what the attributes promise; the analysis does not know std::mutex.
  void Lock() BATON_ACQUIRE() BATON_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  void Unlock() BATON_RELEASE() BATON_NO_THREAD_SAFETY_ANALYSIS { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex until its scope ends. The owner may release it early and take it again.
class BATON_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) BATON_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() BATON_RELEASE() {
    if (is_held_) mutex_.Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // The mutex must be held.
  void Unlock() BATON_RELEASE() BATON_NO_THREAD_SAFETY_ANALYSIS {
    is_held_ = false;
    mutex_.Unlock();
  }
  // The mutex must not be held.
  void Lock() BATON_ACQUIRE() BATON_NO_THREAD_SAFETY_ANALYSIS {
    mutex_.Lock();
    is_held_ = true;
  }

 private:
  Mutex& mutex_;
  bool is_held_ = true;
};

// std::condition_variable of a Mutex. The waits release the mutex while they wait, and hold it
// again when they return. They may return without a notification. Any thread.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void Wait(Mutex& mutex) BATON_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();  // the caller's lock goes on
  }
  // False once `deadline` has passed.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      BATON_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = changed_.wait_until(lock, deadline);
    lock.release();  // the caller's lock goes on
    return status == std::cv_status::no_timeout;
  }

  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace baton

#endif  // BATON_BASE_MUTEX_H_
