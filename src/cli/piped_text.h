// Adds the text of a file or pipe at standard input to a question.
#ifndef BATON_CLI_PIPED_TEXT_H_
#define BATON_CLI_PIPED_TEXT_H_

#include <cstdint>
#include <string>

#include "src/base/status.h"

namespace baton::cli {

// How long after the command's start a pipe may be silent.
inline constexpr int64_t kSilentPipeUs = 2'000'000;

// `prompt`, and after an empty line the text of standard input where that is a file, a pipe or a
// socket. A pipe that stays open without a byte until `begun_us` + kSilentPipeUs is not read: a
// program that starts this one may hold it open for ever. One line on stderr then says so.
// InvalidArgument for text that is too large for a request or is no UTF-8.
StatusOr<std::string> WithPipedText(const std::string& prompt, int64_t begun_us);

}  // namespace baton::cli

#endif  // BATON_CLI_PIPED_TEXT_H_
