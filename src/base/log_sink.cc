#include "src/base/log_sink.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>

#include "fmt/format.h"

#include "src/base/clock.h"
#include "src/base/log_format.h"

namespace baton {
namespace {

// A write of PIPE_BUF bytes does not block then. Files always have room; so do descriptors that
// cannot be asked: what is wrong with them the write says.
bool HasRoom(int fd, int patience_ms) {
  pollfd poll_fd{.fd = fd, .events = POLLOUT, .revents = 0};
  int num_ready = 0;
  do {
    num_ready = ::poll(&poll_fd, 1, patience_ms);
  } while (num_ready < 0 && errno == EINTR);
  return num_ready != 0;
}

}  // namespace

bool WriteWhereRead(int fd, std::string_view text, int patience_ms, size_t* num_written) {
  const int64_t deadline_us = SystemClock().NowUs() + int64_t{patience_ms} * 1000;
  *num_written = 0;
  while (*num_written < text.size()) {
    const int64_t left_us = std::max<int64_t>(0, deadline_us - SystemClock().NowUs());
    if (!HasRoom(fd, static_cast<int>((left_us + 999) / 1000))) return false;
    const std::string_view rest = text.substr(*num_written);
    const ssize_t count = ::write(fd, rest.data(), std::min<size_t>(rest.size(), PIPE_BUF));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) return true;  // a full disk, a reader that has gone
    *num_written += static_cast<size_t>(count);
  }
  return true;
}

void LineSink::sink_it_(const spdlog::details::log_msg& message) {
  if (num_lost_ > 0 && HasRoom(fd_, 0)) {
    const std::string text =
        fmt::format("{} lines of the log were lost: nobody read it", num_lost_);
    num_lost_ = 0;
    const std::string payload = CurrentLogFormat() == LogFormat::kText
                                    ? text
                                    : JsonLogFields("log_sink.cc", __LINE__, text);
    WriteLine({spdlog::source_loc{"log_sink.cc", __LINE__, ""}, message.logger_name,
               spdlog::level::warn, payload});
  }
  WriteLine(message);
}

void LineSink::WriteLine(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  const int patience_ms = num_lost_ > 0 ? 0 : kPatienceMs;
  const std::string text = (inside_line_ ? "\n" : "") + std::string(line.data(), line.size());
  size_t num_written = 0;
  const bool is_whole = WriteWhereRead(fd_, text, patience_ms, &num_written);
  if (!is_whole) ++num_lost_;
  if (num_written > 0) inside_line_ = !is_whole;
}

}  // namespace baton
