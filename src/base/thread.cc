#include "src/base/thread.h"

#include <pthread.h>
#include <sched.h>

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

bool PinThisThread(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

}  // namespace baton
