#include "src/base/log_sink.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>

#include "fmt/format.h"

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

// False: nobody reads, and `text` is not written, or not whole.
bool WriteInParts(int fd, std::string_view text, int patience_ms) {
  while (!text.empty()) {
    if (!HasRoom(fd, patience_ms)) return false;
    const ssize_t num_written = ::write(fd, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (num_written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (num_written < 0) return true;  // a full disk, a reader that has gone: no log is there
    text.remove_prefix(static_cast<size_t>(num_written));
  }
  return true;
}

}  // namespace

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
  if (!WriteInParts(fd_, {line.data(), line.size()}, patience_ms)) ++num_lost_;
}

}  // namespace baton
