// Where this user's models, timings and run folders lie. Any thread.
#ifndef BATON_CLI_HOME_FOLDER_H_
#define BATON_CLI_HOME_FOLDER_H_

#include <string>

#include "src/base/status.h"

namespace baton::cli {

// BATON_HOME; else ~/.cache/baton, if it has models or can be written; else PrivateTempFolder().
// FailedPrecondition when that is not this user's own. Leaves nothing new but the last: whether a
// folder can be written is found out by making one in it, which is removed at once.
StatusOr<std::string> HomeFolder();

// HomeFolder() if it can be written, else PrivateTempFolder(): for what lives no longer than a
// server.
StatusOr<std::string> WritableHome();

// ${TMPDIR:-/tmp}/baton-UID, made if it is not there. FailedPrecondition, with the way out, when it
// is a link or no folder, is another user's, or others may write or read there: what lies in it
// may be another user's.
StatusOr<std::string> PrivateTempFolder();

}  // namespace baton::cli

#endif  // BATON_CLI_HOME_FOLDER_H_
