// The private folders of servers that were given none: ${BATON_HOME}/run/PID, with logs and, while
// a server lives, its cluster secret. A server removes its own; what a killed one left behind goes
// when the next one starts. Any thread.
#ifndef BATON_CLI_RUN_FOLDERS_H_
#define BATON_CLI_RUN_FOLDERS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace baton {

// "${BATON_HOME:-~/.cache/baton}/run".
std::string RunFolders();
// The folder of one process in it.
std::string RunFolderOf(pid_t pid);

// Logs of a server that failed stay for a day: somebody was told to read them.
inline constexpr int64_t kKeepLogsS = 86'400;

// For each folder PID in `parent` that is this user's own, whose process is dead and whose lock
// nobody holds: removes the secret at once, and all of it once nothing in it was written for
// kKeepLogsS before `now_unix_s`. Folders of other names, links and files are not touched. Errors
// are passed over: it is tidied, nothing depends on it.
void RemoveDeadRunFolders(const std::string& parent, int64_t now_unix_s);

}  // namespace baton

#endif  // BATON_CLI_RUN_FOLDERS_H_
