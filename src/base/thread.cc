#include "src/base/thread.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace baton {
namespace {

constexpr size_t kMaxNameBytes = 15;  // TASK_COMM_LEN - 1
constexpr int kMaxCpus = 1 << 20;     // as AffinityCpus

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
  if (cpus.empty()) return false;
  const auto [least, most] = std::minmax_element(cpus.begin(), cpus.end());
  if (*least < 0 || *most >= kMaxCpus) return false;
  const size_t size = static_cast<size_t>(*most) + 1;
  const size_t bytes = CPU_ALLOC_SIZE(size);
  const auto free_set = [](cpu_set_t* set) { CPU_FREE(set); };
  const std::unique_ptr<cpu_set_t, decltype(free_set)> set(CPU_ALLOC(size), free_set);
  if (set == nullptr) return false;
  CPU_ZERO_S(bytes, set.get());
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set.get());
  return pthread_setaffinity_np(pthread_self(), bytes, set.get()) == 0;
}

}  // namespace baton
