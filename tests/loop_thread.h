// LoopThread: does something in a thread of its own, again and again at once, while it lives.
#ifndef BATON_TESTS_LOOP_THREAD_H_
#define BATON_TESTS_LOOP_THREAD_H_

#include <atomic>
#include <cstdint>
#include <thread>

namespace baton {

// See the file comment.
class LoopThread {
 public:
  template <typename Act>
  explicit LoopThread(Act act)
      : thread_([this, act] {
          while (!is_over_.load()) {
            act();
            ++num_rounds_;
          }
        }) {}
  ~LoopThread() {
    is_over_ = true;
    thread_.join();
  }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  // Rounds that have ended.
  uint64_t num_rounds() const { return num_rounds_.load(); }

 private:
  std::atomic<bool> is_over_ = false;
  std::atomic<uint64_t> num_rounds_ = 0;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace baton

#endif  // BATON_TESTS_LOOP_THREAD_H_
