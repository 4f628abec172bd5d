#include "src/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>

#include "spdlog/sinks/basic_file_sink.h"
#include "spdlog/spdlog.h"

#include "src/base/log_format.h"
#include "src/base/log_sink.h"
#include "src/base/mutex.h"
#include "src/base/nearest_name.h"

namespace baton {
namespace {

constexpr std::string_view kLevelNames[] = {"debug", "info", "warn", "error", "off"};

constexpr char kTextPattern[] = "%Y-%m-%dT%H:%M:%S.%e %L %n %t %s:%#: %v";
// %n: the name of a process has no character that JSON escapes; %v: JsonLogFields.
constexpr char kJsonPattern[] =
    R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","process":"%n","thread":%t,%v})";

std::atomic<LogLevel> g_level{LogLevel::kInfo};

// The process's logger; replaced by InitLog. Never destroyed: threads may log during exit.
struct LogTarget {
  Mutex mutex;
  std::shared_ptr<spdlog::logger> logger BATON_GUARDED_BY(mutex);
};

std::shared_ptr<spdlog::logger> MakeLogger(const std::string& role, spdlog::sink_ptr sink) {
  auto logger = std::make_shared<spdlog::logger>(role, std::move(sink));
  logger->set_pattern(CurrentLogFormat() == LogFormat::kText ? kTextPattern : kJsonPattern);
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::info);
  return logger;
}

LogTarget& Target() {
  static LogTarget* const target = [] {
    auto* fresh = new LogTarget;
    MutexLock lock(fresh->mutex);
    fresh->logger = MakeLogger("baton", std::make_shared<LineSink>(STDERR_FILENO));
    return fresh;
  }();
  return *target;
}

std::shared_ptr<spdlog::logger> CurrentLogger() {
  LogTarget& target = Target();
  MutexLock lock(target.mutex);
  return target.logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

// One event is one line, whatever text of a file or a peer its message has in it.
std::string OnOneLine(std::string_view message) {
  std::string line;
  line.reserve(message.size());
  for (const char c : message) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(line), "\\x{:02x}", byte);
    } else {
      line.push_back(c);
    }
  }
  return line;
}

}  // namespace

StatusOr<LogLevel> ParseLogLevel(std::string_view text) {
  for (size_t i = 0; i < std::size(kLevelNames); ++i) {
    if (kLevelNames[i] == text) return static_cast<LogLevel>(i);
  }
  const std::string nearest = NearestName(text, kLevelNames);
  return InvalidArgument("log level '{}' is not one of debug, info, warn, error, off{}", text,
                         nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
}

Status InitLog(const LogConfig& config) {
  spdlog::sink_ptr sink;
  try {
    if (config.file.empty()) {
      sink = std::make_shared<LineSink>(STDERR_FILENO);
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(config.file);
    }
  } catch (const spdlog::spdlog_ex& error) {
    return FailedPrecondition("cannot open the log file {}: {}", config.file, error.what());
  }
  auto logger = MakeLogger(config.role, std::move(sink));
  LogTarget& target = Target();
  {
    MutexLock lock(target.mutex);
    target.logger = std::move(logger);
  }
  g_level.store(config.level, std::memory_order_relaxed);
  return OkStatus();
}

void FlushLog() { CurrentLogger()->flush(); }

namespace internal {

bool LogEnabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

void WriteLog(LogLevel level, const char* file, int line, std::string_view message) {
  const char* slash = std::strrchr(file, '/');
  const char* const name = slash == nullptr ? file : slash + 1;
  const std::string text = CurrentLogFormat() == LogFormat::kText
                               ? OnOneLine(message)
                               : JsonLogFields(name, line, message);
  CurrentLogger()->log(spdlog::source_loc{name, line, ""}, ToSpdlog(level),
                       spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace internal
}  // namespace baton
