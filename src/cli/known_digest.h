// What is known about the bytes of a downloaded file, so that a restart neither asks a server nor
// reads gigabytes: FILE.sha256 beside FILE holds its digest, its size and the time of its last
// change. Any thread; several processes may do the same at once.
#ifndef BATON_CLI_KNOWN_DIGEST_H_
#define BATON_CLI_KNOWN_DIGEST_H_

#include <string>

#include "src/base/status.h"

namespace baton {

// A file's digest, and whether it is the one that was remembered when the file arrived.
struct KnownDigest {
  std::string sha256;    // of the bytes that are there
  std::string expected;  // that was remembered, or "" when nothing was
  bool is_checked() const { return !expected.empty() && sha256 == expected; }
};

// What changes with the file's bytes: its size and the time of its last change; "" = no file.
std::string FileState(const std::string& path);

// The digest of `path`. The file is read only when nothing is remembered, or its size or time are
// other than then. NotFound or DataLoss when it cannot be read.
StatusOr<KnownDigest> DigestOf(const std::string& path);

// Remembers that the bytes of `path`, which is `written` until it gets that name, have this digest.
// A failure costs the next start a read of the file, so it is passed over.
void RememberDigest(const std::string& path, const std::string& written, const std::string& sha256);

}  // namespace baton

#endif  // BATON_CLI_KNOWN_DIGEST_H_
