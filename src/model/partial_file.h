// PartialFile: a new file that exists under its name only when it is whole and on the disk. Its
// bytes go to PATH.PID.partial, a file that this process alone has made, so that two writers of one
// path never touch each other's bytes and the second one to finish is refused. One thread.
#ifndef BATON_MODEL_PARTIAL_FILE_H_
#define BATON_MODEL_PARTIAL_FILE_H_

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton {

// See the file comment. Each step fails with AlreadyExists when there is a file at `path` (or one
// that is not ours under the partial name), ResourceExhausted when the disk is full, else
// Unavailable.
class PartialFile {
 public:
  explicit PartialFile(std::string path);
  // Removes what was written, unless Finish has succeeded.
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const std::string& partial_path() const { return partial_; }

  absl::Status Open();
  absl::Status Write(std::span<const std::byte> bytes);
  // Flushes the bytes to the disk and gives the file its name; never replaces another one, and
  // fails where the file system has no way to promise that. When only the folder could not be
  // flushed the error says so: the file is whole and has its name, which a loss of power may undo.
  absl::Status Finish();

 private:
  absl::Status Failed(std::string_view what, int error) const;
  absl::Status Exists() const;

  const std::string path_;
  const std::string partial_;
  std::FILE* file_ = nullptr;
  bool made_ = false;  // the partial file is ours and still there
};

}  // namespace baton

#endif  // BATON_MODEL_PARTIAL_FILE_H_
