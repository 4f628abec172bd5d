// A conversation as a file: what /save writes and /load reads.
//
// {"baton_chat": 1, "model": "smollm2:135m", "system": "...", "messages": [{"role", "content"}]}.
// Settings and keys are not in it.
#ifndef BATON_CLI_CHAT_FILE_H_
#define BATON_CLI_CHAT_FILE_H_

#include <cstddef>
#include <string>

#include "src/cli/chat_session.h"

namespace baton::cli {

// A conversation fits into a request, which is smaller.
inline constexpr size_t kMaxChatFileBytes = size_t{32} << 20;

// Writes the conversation to `path` ("~/" is the home folder), readable by its user alone. A file
// that is no conversation is not replaced (AlreadyExists); Unavailable with the reason when it
// cannot be written.
Status SaveChat(const std::string& path, const ChatSession& session);

// Replaces system message and conversation by those of the file; the model stays. On any error
// (NotFound, InvalidArgument with what is wrong) the session is as it was.
Status LoadChat(const std::string& path, ChatSession& session);

}  // namespace baton::cli

#endif  // BATON_CLI_CHAT_FILE_H_
