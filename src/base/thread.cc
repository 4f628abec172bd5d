#include "src/base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

namespace baton {
namespace {

constexpr size_t kMaxNameBytes = 15;  // TASK_COMM_LEN - 1

}  // namespace

Thread::Thread(std::string_view name, std::function<void()> body)
    : thread_([name = std::string(name.substr(0, kMaxNameBytes)), body = std::move(body)] {
        (void)pthread_setname_np(pthread_self(), name.c_str());
        body();
      }) {}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    Join();
    thread_ = std::move(other.thread_);
  }
  return *this;
}

void Thread::Join() {
  if (thread_.joinable()) thread_.join();
}

bool KeepThisThreadOn(std::span<const int> cpus) {
  // On the stack: an engine thread comes here twice a step. Linux has 8192 processors at most.
  std::array<cpu_set_t, 8> set = {};
  for (const int cpu : cpus) {
    if (cpu < 0) return false;
    CPU_SET_S(static_cast<size_t>(cpu), sizeof(set), set.data());  // leaves out what is beyond
  }
  return pthread_setaffinity_np(pthread_self(), sizeof(set), set.data()) == 0;
}

// On Linux nice() is about one thread.
void LowerThisThread(int steps) { (void)!::nice(steps); }

}  // namespace baton
