// Percent-encoding of text in paths and header values (RFC 3986, 2.1). Pure; any thread.
#ifndef BATON_BASE_PERCENT_TEXT_H_
#define BATON_BASE_PERCENT_TEXT_H_

#include <string>
#include <string_view>

namespace baton {

// `text` with each "%41" as the byte it stands for; a broken escape stays as it is.
std::string PercentDecoded(std::string_view text);

}  // namespace baton

#endif  // BATON_BASE_PERCENT_TEXT_H_
