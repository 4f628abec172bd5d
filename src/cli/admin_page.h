// A page of an admin port, for the commands that look at a running cluster. Any thread.
#ifndef BATON_CLI_ADMIN_PAGE_H_
#define BATON_CLI_ADMIN_PAGE_H_

#include <string>

#include "src/base/status.h"

namespace baton::cli {

// The body of GET `path` at the admin port `address`. NotFound when there is no such page: another
// role, or an older release; else as CallAdmin's, Unavailable for any other status.
StatusOr<std::string> ReadAdminPage(const std::string& address, const std::string& path);

}  // namespace baton::cli

#endif  // BATON_CLI_ADMIN_PAGE_H_
