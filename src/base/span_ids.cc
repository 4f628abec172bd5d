#include "src/base/span_ids.h"

#include <algorithm>

#include "src/base/hex.h"

namespace baton {
namespace {

// "00-" trace id "-" parent id "-" flags
constexpr size_t kTraceAt = 3;
constexpr size_t kSpanAt = kTraceAt + 32 + 1;
constexpr size_t kFlagsAt = kSpanAt + 16 + 1;
constexpr size_t kSize = kFlagsAt + 2;
static_assert(kSize == 55);

// Lower case alone is right.
bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

uint64_t Number(std::string_view digits) { return U64FromHex(digits).value_or(0); }

std::string BigEndian(uint64_t value) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (56 - 8 * i));
  return bytes;
}

}  // namespace

std::optional<SpanIds> ParseTraceparent(std::string_view text) {
  if (text.size() < kSize) return std::nullopt;
  const std::string_view version = text.substr(0, 2);
  if (!IsHex(version) || version == "ff") return std::nullopt;
  const bool is_longer = text.size() > kSize;
  if (is_longer && (version == "00" || text[kSize] != '-')) return std::nullopt;
  if (text[kTraceAt - 1] != '-' || text[kSpanAt - 1] != '-' || text[kFlagsAt - 1] != '-') {
    return std::nullopt;
  }
  const std::string_view trace = text.substr(kTraceAt, 32);
  const std::string_view span = text.substr(kSpanAt, 16);
  const std::string_view flags = text.substr(kFlagsAt, 2);
  if (!IsHex(trace) || !IsHex(span) || !IsHex(flags)) return std::nullopt;
  const SpanIds context = {.trace_hi = Number(trace.substr(0, 16)),
                           .trace_lo = Number(trace.substr(16)),
                           .span_id = Number(span),
                           .sampled = (Number(flags) & 1) != 0};
  if (!context.valid()) return std::nullopt;
  return context;
}

std::string TraceIdBytes(const SpanIds& context) {
  return BigEndian(context.trace_hi) + BigEndian(context.trace_lo);
}

std::string SpanIdBytes(uint64_t span_id) { return BigEndian(span_id); }

}  // namespace baton
