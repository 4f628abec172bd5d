// Long-lived threads. Every such thread of the process is started here under a name that is listed
// in the table of src/THREADS.md. So `top -H` and a core dump say which thread is which.
#ifndef BATON_BASE_THREAD_H_
#define BATON_BASE_THREAD_H_

#include <functional>
#include <optional>
#include <string_view>
#include <thread>

namespace baton {

// A named thread that is joined when its owner is destroyed; the owner first tells it to stop.
class Thread {
 public:
  Thread() = default;
  // Runs `body` on a new thread. `name`: 1..15 bytes (the kernel's limit; more is cut). `cpu`: the
  // only processor it may run on, if given; a processor that is not available is ignored.
  Thread(std::string_view name, std::function<void()> body, std::optional<int> cpu = std::nullopt);
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

}  // namespace baton

#endif  // BATON_BASE_THREAD_H_
