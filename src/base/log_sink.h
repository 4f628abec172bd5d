// LineSink: writes lines of the log to a descriptor whose reader may stop reading. A pipe that
// nobody reads is full after 64 KiB; a thread that waited for it would stop serving.
#ifndef BATON_BASE_LOG_SINK_H_
#define BATON_BASE_LOG_SINK_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "spdlog/sinks/base_sink.h"

namespace baton {

// A line waits kPatienceMs for room at most. Once one was lost the next are dropped without waiting
// until there is room, and the first that is written says how many. Any thread. Where several
// processes share a pipe, another one may take the room that was seen, and the line waits for it.
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
  uint64_t num_lost_ = 0;     // lines, since one was written
  bool inside_line_ = false;  // the last one was not written whole
};

// Writes `text` to `fd` and returns true; false when there was no room for `patience_ms`: of the
// text `*num_written` bytes were written then. Whatever else fails is no loss that could be told.
bool WriteWhereRead(int fd, std::string_view text, int patience_ms, size_t* num_written);

// fmt::print to stderr that does not wait for a reader; for processes that look after others.
template <typename... Args>
void PrintToStderr(fmt::format_string<Args...> format, Args&&... args) {
  size_t num_written = 0;
  (void)WriteWhereRead(2, fmt::format(format, std::forward<Args>(args)...), LineSink::kPatienceMs,
                       &num_written);
}

}  // namespace baton

#endif  // BATON_BASE_LOG_SINK_H_
