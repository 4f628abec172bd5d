// Long-lived threads. Every such thread of the process is started here under a name that is listed
// in the table of src/THREADS.md. So `top -H` and a core dump say which thread is which.
#ifndef BATON_BASE_THREAD_H_
#define BATON_BASE_THREAD_H_

#include <functional>
#include <span>
#include <string_view>
#include <thread>

namespace baton {

// A named thread that is joined when its owner is destroyed; the owner first tells it to stop.
class Thread {
 public:
  Thread() = default;
  // Runs `body` on a new thread. `name`: 1..15 bytes (the kernel's limit; more is cut).
  Thread(std::string_view name, std::function<void()> body);
  Thread(Thread&&) noexcept = default;
  // Joins the current thread first.
  Thread& operator=(Thread&& other) noexcept;
  ~Thread() { Join(); }

  // Waits for the body to return; idempotent. Not from the thread itself.
  void Join();
  bool joinable() const { return thread_.joinable(); }

 private:
  std::thread thread_;
};

// Keeps the calling thread on these processors, and the threads that it starts later too. It leaves
// out processors that this process may not use. False, and nothing changes, when none is left.
bool KeepThisThreadOn(std::span<const int> cpus);

// Lowers the priority of the calling thread by `steps` (1 to 19, as nice(2) counts), and of threads
// that it starts later. It stops at the lowest. Nothing changes where the system refuses.
void LowerThisThread(int steps);

}  // namespace baton

#endif  // BATON_BASE_THREAD_H_
