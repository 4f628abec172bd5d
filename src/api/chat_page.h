// The page under /ui: one file without anything from elsewhere. Its parts stand in src/api/ui; the
// build joins them (join_page.cmake).
#ifndef BATON_API_CHAT_PAGE_H_
#define BATON_API_CHAT_PAGE_H_

#include <string>
#include <string_view>

namespace baton::api {

// UTF-8 HTML, at most 300 KB. Its script and style carry kChatPageNonce as their nonce.
extern const std::string_view kChatPage;
inline constexpr std::string_view kChatPageNonce = "BATON_NONCE";

// The page for one answer, and the Content-Security-Policy of that answer: only what carries this
// nonce runs, requests go to this server alone, and no other page may show it in a frame.
std::string ChatPageWith(std::string_view nonce);
std::string ChatPagePolicy(std::string_view nonce);

}  // namespace baton::api

#endif  // BATON_API_CHAT_PAGE_H_
