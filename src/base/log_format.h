// How lines of the log are written (log.h): for people, or as one JSON object each.
//   {"time":"2026-01-31T12:00:00.123+00:00","level":"info","process":"decode-0","thread":4711,
//    "source":"router_core.cc:168","request_uid":"...","message":"request ... ends in DECODING"}
// `request_uid` is there when the message is about one request: then it begins with
// "request UID". No line has text of prompts or answers, in either form.
#ifndef BATON_BASE_LOG_FORMAT_H_
#define BATON_BASE_LOG_FORMAT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

enum class LogFormat : uint8_t { kText, kJson };

// For the process; from main, before InitLog.
void SetLogFormat(LogFormat format);
LogFormat CurrentLogFormat();

// The fields of a line that are JSON of their own: "source", "request_uid" if there is one,
// "message". Bytes that are no UTF-8 become U+FFFD.
std::string JsonLogFields(std::string_view file, int line, std::string_view message);

}  // namespace baton

#endif  // BATON_BASE_LOG_FORMAT_H_
