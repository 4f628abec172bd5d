// Remembers the digest of a downloaded file, so that a restart neither asks a server nor reads
// gigabytes: .digests/FILE.sha256 in FILE's folder holds the digest, the size and the time of the
// last change; "unchecked" stands before them where the server had named no digest to compare. The
// folder keeps records apart from models: who lists a folder of models finds models. Any thread;
// any number of processes at once.
#ifndef BATON_CLI_KNOWN_DIGEST_H_
#define BATON_CLI_KNOWN_DIGEST_H_

#include <cstdint>
#include <string>

#include "src/base/status.h"

namespace baton::cli {

// Where a remembered digest came from.
enum class DigestSource : uint8_t {
  kNamed = 0,     // the server, or the catalogue, named it, and the bytes had it
  kComputed = 1,  // from the bytes that arrived: nobody named one
};

// A file's digest, and whether it is the one that was remembered when the file arrived.
struct KnownDigest {
  std::string sha256;                          // of the bytes that are there
  std::string expected;                        // that was remembered, or "" when nothing was
  DigestSource source = DigestSource::kNamed;  // of `expected`
  // The bytes are those that arrived.
  bool is_remembered() const { return !expected.empty() && sha256 == expected; }
  // They are those that somebody named.
  bool is_checked() const { return is_remembered() && source == DigestSource::kNamed; }
};

// The file in which the digest of `path` is remembered.
std::string DigestRecordOf(const std::string& path);

// Size and time of the last change, which are other ones after a write; "" = no file.
std::string FileState(const std::string& path);

// The digest of `path`. The file is read only when nothing is remembered, or its size or time are
// other than then. NotFound or DataLoss when it cannot be read.
StatusOr<KnownDigest> DigestOf(const std::string& path);

// A digest to remember.
struct DigestNote {
  std::string sha256;
  DigestSource source = DigestSource::kNamed;
};
// Remembers the digest of the bytes of `path`, which is `written` until it gets that name. A
// failure costs the next start a read of the file, so it is passed over.
void RememberDigest(const std::string& path, const std::string& written, const DigestNote& note);

}  // namespace baton::cli

#endif  // BATON_CLI_KNOWN_DIGEST_H_
