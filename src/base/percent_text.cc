#include "src/base/percent_text.h"

#include "src/base/hex.h"

namespace baton {

std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      if (const auto byte = BytesFromHex(text.substr(i + 1, 2))) {
        decoded.push_back(static_cast<char>(byte->front()));
        i += 2;
        continue;
      }
    }
    decoded.push_back(text[i]);
  }
  return decoded;
}

}  // namespace baton
