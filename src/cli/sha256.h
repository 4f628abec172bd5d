// SHA-256 of files, for downloads.
#ifndef BATON_CLI_SHA256_H_
#define BATON_CLI_SHA256_H_

#include <string>

#include "src/base/status.h"

namespace baton::cli {

// Lower-case hexadecimal digest; NotFound or DataLoss when the file cannot be read.
StatusOr<std::string> FileSha256(const std::string& path);

}  // namespace baton::cli

#endif  // BATON_CLI_SHA256_H_
