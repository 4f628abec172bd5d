// One line of log per event, control bytes in hex; stderr or a file. Any thread, never per token.
//   BATON_LOG_INFO("paired with {} over {}", worker_id, transport);
#ifndef BATON_BASE_LOG_H_
#define BATON_BASE_LOG_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "fmt/format.h"

#include "src/base/status.h"

namespace baton {

// How much is logged; a level includes the ones after it.
enum class LogLevel : uint8_t { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kOff = 4 };

// "debug", "info", "warn", "error" or "off"; InvalidArgument otherwise, naming the nearest.
StatusOr<LogLevel> ParseLogLevel(std::string_view text);

// Where log lines go.
struct LogConfig {
  std::string role;                  // printed in every line, e.g. "decode-0"
  LogLevel level = LogLevel::kInfo;  // lines below it cost one comparison
  std::string file;                  // path to append to; empty = stderr
};

// Sets the process's log; call once from main before threads start. Fails when the file cannot be
// opened and then leaves the log on stderr.
Status InitLog(const LogConfig& config);
// Writes out what is buffered (every line at warn and above is flushed by itself).
void FlushLog();

namespace internal {
bool LogEnabled(LogLevel level);
void WriteLog(LogLevel level, const char* file, int line, std::string_view message);
}  // namespace internal

}  // namespace baton

#define BATON_LOG(level, ...)                                                             \
  do {                                                                                    \
    if (::baton::internal::LogEnabled(level)) {                                           \
      ::baton::internal::WriteLog(level, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
    }                                                                                     \
  } while (false)
#define BATON_LOG_DEBUG(...) BATON_LOG(::baton::LogLevel::kDebug, __VA_ARGS__)
#define BATON_LOG_INFO(...) BATON_LOG(::baton::LogLevel::kInfo, __VA_ARGS__)
#define BATON_LOG_WARN(...) BATON_LOG(::baton::LogLevel::kWarn, __VA_ARGS__)
#define BATON_LOG_ERROR(...) BATON_LOG(::baton::LogLevel::kError, __VA_ARGS__)

#endif  // BATON_BASE_LOG_H_
