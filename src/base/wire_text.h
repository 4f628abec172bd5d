// Sentences for logs of another process. Pure; any thread.
#ifndef BATON_WORKER_WIRE_TEXT_H_
#define BATON_WORKER_WIRE_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace baton {

inline constexpr size_t kMaxWireTextBytes = 1024;

// `text` as a protobuf string field may carry it: cut, and '?' for every byte that is not ASCII. A
// sentence may quote a file name, and one byte of broken UTF-8 would make the peer refuse the whole
// message, a Revoke say.
inline std::string WireText(std::string_view text) {
  std::string clean(text.substr(0, kMaxWireTextBytes));
  const auto is_foreign = [](char c) { return static_cast<unsigned char>(c) >= 0x80; };
  std::replace_if(clean.begin(), clean.end(), is_foreign, '?');
  return clean;
}

}  // namespace baton

#endif  // BATON_WORKER_WIRE_TEXT_H_
