#include "src/base/ids.h"

#include <charconv>

namespace baton {
namespace {

bool ParseHexU64(std::string_view text, uint64_t* out) {
  const char* end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, *out, 16);
  return error == std::errc() && next == end;
}

}  // namespace

std::string RequestUid::ToHex() const { return fmt::format("{:016x}{:016x}", hi, lo); }

StatusOr<RequestUid> RequestUid::FromHex(std::string_view text) {
  RequestUid uid;
  if (text.size() != 32 || !ParseHexU64(text.substr(0, 16), &uid.hi) ||
      !ParseHexU64(text.substr(16), &uid.lo)) {
    return InvalidArgument("request uid of {} characters is not 32 hexadecimal digits",
                           text.size());
  }
  return uid;
}

}  // namespace baton
