#include "src/api/tool_calls.h"

#include "fmt/format.h"

#include "src/base/hex.h"
#include "src/base/xxh3.h"

namespace baton::api {

using text::ToolStyle;

std::string ToolCallId(std::string_view answer_id, uint32_t choice, uint32_t index,
                       ToolStyle style) {
  const Hash128 hash = Xxh3Hash128(fmt::format("{} {} {}", answer_id, choice, index));
  const std::string digits = HexFromU64(hash.hi) + HexFromU64(hash.lo);
  if (style == ToolStyle::kMistral) return digits.substr(0, 9);
  return "call_" + digits.substr(0, 24);
}

}  // namespace baton::api
