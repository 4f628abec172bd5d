// Sentences for logs of another process, and from one. Pure; any thread.
#ifndef BATON_BASE_WIRE_TEXT_H_
#define BATON_BASE_WIRE_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace baton {

inline constexpr size_t kMaxWireTextBytes = 1024;

// `text` as a protobuf string field may carry it and a log may show it: cut, and '?' for every byte
// that is no printable ASCII. A sentence may quote a file name, and one byte of broken UTF-8 would
// make the peer refuse the whole message, a Revoke say; a line break would let a peer write lines
// of our log. So both ends of a wire use it.
inline std::string WireText(std::string_view text) {
  std::string clean(text.substr(0, kMaxWireTextBytes));
  const auto is_foreign = [](char c) { return c < 0x20 || c > 0x7e; };
  std::replace_if(clean.begin(), clean.end(), is_foreign, '?');
  return clean;
}

}  // namespace baton

#endif  // BATON_BASE_WIRE_TEXT_H_
