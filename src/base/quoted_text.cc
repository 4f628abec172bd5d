#include "src/base/quoted_text.h"

#include "absl/strings/escaping.h"
#include "fmt/format.h"

namespace baton {

std::string QuotedForMessage(std::string_view bytes) {
  constexpr size_t kMaxShown = 80;
  const bool cut = bytes.size() > kMaxShown;
  const std::string shown(bytes.substr(0, kMaxShown));
  return fmt::format("\"{}{}\"", absl::CHexEscape(shown), cut ? "..." : "");
}

}  // namespace baton
