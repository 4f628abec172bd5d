// LineSink: writes lines of the log to a descriptor whose reader may stop reading. A pipe that
// nobody reads is full after 64 KiB; a thread that waited for it would stop serving.
#ifndef BATON_BASE_LOG_SINK_H_
#define BATON_BASE_LOG_SINK_H_

#include <cstdint>
#include <mutex>
#include <string_view>

#include "spdlog/sinks/base_sink.h"

namespace baton {

// Waits kPatienceMs for room, once; from then on lines are dropped without waiting until there is
// room, and the next one to be written says how many. Any thread.
class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  static constexpr int kPatienceMs = 50;

  // `fd` is not owned and outlives it.
  explicit LineSink(int fd) : fd_(fd) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  void WriteLine(const spdlog::details::log_msg& message);

  const int fd_;
  uint64_t num_lost_ = 0;  // lines, since one was written
};

}  // namespace baton

#endif  // BATON_BASE_LOG_SINK_H_
