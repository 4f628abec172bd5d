// Text that came from a file or a peer, as a message or a log line may show it. Pure; any thread.
#ifndef BATON_BASE_QUOTED_TEXT_H_
#define BATON_BASE_QUOTED_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace baton {

// `bytes` in double quotes, control and non-ASCII bytes as hex, at most 80 bytes of it.
std::string QuotedForMessage(std::string_view bytes);

// `text` (UTF-8) as one line of at most `max_bytes`: control characters
// and line separators become blanks, a cut is marked by "...".
std::string LineForMessage(std::string_view text, size_t max_bytes);

}  // namespace baton

#endif  // BATON_BASE_QUOTED_TEXT_H_
