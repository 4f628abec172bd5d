// The page under /ui: a chat in one file, without anything from elsewhere.
#ifndef BATON_API_CHAT_PAGE_H_
#define BATON_API_CHAT_PAGE_H_

#include <string_view>

namespace baton::api {

// UTF-8 HTML. It posts to /v1/chat/completions with stream: true and shows the timings of the last
// chunk.
extern const std::string_view kChatPage;

}  // namespace baton::api

#endif  // BATON_API_CHAT_PAGE_H_
