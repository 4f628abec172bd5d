// Writes small files of a run folder so that a reader never sees half of one.
#ifndef BATON_CLI_REPLACE_FILE_H_
#define BATON_CLI_REPLACE_FILE_H_

#include <sys/types.h>

#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton::cli {

// Makes `path` a new file that holds exactly `text` and has `mode` (less the umask). The text is
// written beside it first, as PATH.next-XXXXXXXXXXXXXXXX with random digits, and then renamed, so
// that on any failure (Unavailable with the reason) `path` is what it was; a link or the mode of an
// older file of that name is never followed or kept. Any number of threads and processes may write
// one path at once: it then holds the text of one of them.
Status ReplaceFile(const std::string& path, std::string_view text, mode_t mode);

// For a name that somebody typed: what is no file (a device, a pipe) is written as it is, and
// stays.
Status WriteOutput(const std::string& path, std::string_view text, mode_t mode);

}  // namespace baton::cli

#endif  // BATON_CLI_REPLACE_FILE_H_
