// The private folders of servers that were given none: run/s-XXXXXX, with logs and, while a server
// lives, its cluster secret. No two servers have one, whatever their containers or hosts: the name
// is drawn, and the server holds a lock on the file `lock` in it. A server removes its own; what a
// killed one left behind goes when the next one starts. Any thread.
#ifndef BATON_CLI_RUN_FOLDERS_H_
#define BATON_CLI_RUN_FOLDERS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/base/status.h"

namespace baton::cli {

// Logs of a server that failed stay for a day: somebody was told to read them.
inline constexpr int64_t kKeepLogsS = 86'400;
// At most so many of them, the newest: a server that fails over and over leaves no more.
inline constexpr size_t kMaxKeptRunFolders = 16;

// Makes a folder of our own, mode 0700, in run/ of WritableHome(), once what the dead left there is
// tidied.
StatusOr<std::string> MakeRunFolder();
// Makes such a folder in `parent`.
StatusOr<std::string> MakeRunFolderIn(const std::string& parent);

// For each folder s-XXXXXX or PID (an earlier release's) in `parent` that is this user's own and
// whose lock nobody holds: removes the secret, and all of it once nothing in it was written for
// kKeepLogsS before `now_unix_s`, or kMaxKeptRunFolders others are newer. One that has no lock yet
// belongs to a server that starts: it is left alone for a minute. Folders of other names, links and
// files are not touched. Errors are passed over: it is tidied, nothing depends on it.
void RemoveDeadRunFolders(const std::string& parent, int64_t now_unix_s);

}  // namespace baton::cli

#endif  // BATON_CLI_RUN_FOLDERS_H_
