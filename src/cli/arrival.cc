#include "src/cli/arrival.h"

#include <unistd.h>

#include <fstream>

#include "src/cli/known_digest.h"
#include "src/cli/sha256.h"

namespace baton::cli {

bool Arrival::IsThere() const {
  const std::string file = FileState(path_);
  if (file.empty()) return false;
  const std::string record = DigestRecordOf(path_);
  // For a moment another process may hold all that this one may open; the next look will do.
  const bool needs_record = sha256_.empty();
  if (needs_record && ::access(record.c_str(), F_OK) == 0 && !std::ifstream(record)) return false;
  const std::string state = file + ", " + FileState(record);
  if (state == judged_) return is_there_;
  const StatusOr<KnownDigest> known = DigestOf(path_);
  if (!known.ok()) return false;
  judged_ = state;
  is_there_ = needs_record ? known->is_remembered() : known->sha256 == sha256_;
  return is_there_;
}

Status PublishChecked(PartFile& part, const std::string& path, std::string_view sha256) {
  BATON_RETURN_IF_ERROR(part.Flush());
  BATON_ASSIGN_OR_RETURN(const std::string digest, FileSha256(part.path()));
  if (!sha256.empty() && digest != sha256) {
    part.Drop();
    return DataLoss("{} has sha256 {}, expected {}; the download was dropped", path, digest,
                    sha256);
  }
  // First, so that a file with this name is always one whose digest is known.
  RememberDigest(path, part.path(),
                 {.sha256 = digest,
                  .source = sha256.empty() ? DigestSource::kComputed : DigestSource::kNamed});
  return part.Publish(path);
}

}  // namespace baton::cli
