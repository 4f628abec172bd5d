#include "src/cli/arrival.h"

#include "src/cli/known_digest.h"
#include "src/cli/sha256.h"

namespace baton {

bool Arrival::IsThere() const {
  const std::string state = FileState(path_);
  if (state.empty()) return false;
  if (state == judged_) return is_there_;
  judged_ = state;
  const StatusOr<KnownDigest> known = DigestOf(path_);
  is_there_ = known.ok() && (sha256_.empty() ? known->is_checked() : known->sha256 == sha256_);
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
  RememberDigest(path, part.path(), digest);
  return part.Publish(path);
}

}  // namespace baton
