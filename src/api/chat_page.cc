#include "src/api/chat_page.h"

#include "fmt/format.h"

namespace baton::api {

std::string ChatPageWith(std::string_view nonce) {
  std::string page;
  size_t begin = 0;
  for (size_t at = kChatPage.find(kChatPageNonce); at != std::string_view::npos;
       at = kChatPage.find(kChatPageNonce, begin)) {
    page.append(kChatPage.substr(begin, at - begin)).append(nonce);
    begin = at + kChatPageNonce.size();
  }
  return page.append(kChatPage.substr(begin));
}

std::string ChatPagePolicy(std::string_view nonce) {
  return fmt::format(
      "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self'; "
      "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      nonce);
}

}  // namespace baton::api
