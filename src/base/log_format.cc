#include "src/base/log_format.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "fmt/format.h"

#include "src/base/ids.h"

namespace baton {
namespace {

std::atomic<LogFormat> g_format{LogFormat::kText};

constexpr std::string_view kRequest = "request ";
constexpr size_t kUidDigits = 32;

// Bytes of the character that `text` begins with, by RFC 3629; 0 when it begins with none.
size_t Utf8Size(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool is_overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool is_surrogate = lead == 0xed && byte(1) > 0x9f;
  const bool is_too_high = lead == 0xf4 && byte(1) > 0x8f;
  return is_overlong || is_surrogate || is_too_high ? 0 : size;
}

void AppendRepairedJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  while (!text.empty()) {
    const size_t size = Utf8Size(text);
    const char c = text[0];
    if (size == 0) {
      *out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<uint8_t>(c) < 0x20) {
      fmt::format_to(std::back_inserter(*out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out->append(text.substr(0, size));
    }
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  out->push_back('"');
}

}  // namespace

void SetLogFormat(LogFormat format) { g_format.store(format, std::memory_order_relaxed); }

LogFormat CurrentLogFormat() { return g_format.load(std::memory_order_relaxed); }

std::string JsonLogFields(std::string_view file, int line, std::string_view message) {
  std::string fields = "\"source\":";
  AppendRepairedJsonString(fmt::format("{}:{}", file, line), &fields);
  if (message.starts_with(kRequest)) {
    const std::string_view uid = message.substr(kRequest.size(), kUidDigits);
    if (RequestUid::FromHex(uid).ok()) {
      fields += fmt::format(",\"request_uid\":\"{}\"", uid);
    }
  }
  fields += ",\"message\":";
  AppendRepairedJsonString(message, &fields);
  return fields;
}

}  // namespace baton
