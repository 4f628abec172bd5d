#include "src/base/thread.h"

#include <pthread.h>
#include <sched.h>

#include <string>
#include <utility>

namespace baton {
namespace {

constexpr size_t kMaxNameBytes = 15;  // TASK_COMM_LEN - 1

void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // Pinning is a hint: inside a container the processor may not be ours.
  (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

}  // namespace

Thread::Thread(std::string_view name, std::function<void()> body, std::optional<int> cpu)
    : thread_([name = std::string(name.substr(0, kMaxNameBytes)), body = std::move(body), cpu] {
        (void)pthread_setname_np(pthread_self(), name.c_str());
        if (cpu.has_value() && *cpu >= 0 && *cpu < CPU_SETSIZE) PinTo(*cpu);
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

}  // namespace baton
