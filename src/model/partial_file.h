// PartialFile: a new file that exists under its name only when it is whole and on the disk. Until
// then it has no name at all (O_TMPFILE), so that nothing is left of it however its process ends.
// Where the file system or the system has no such files it is PATH.XXXXXX.partial, with a random
// part and a lock that its writer holds; what a killed writer left is removed by the next one. Two
// writers of one path never touch each other's bytes, and the second one to finish is refused. One
// thread.
#ifndef BATON_MODEL_PARTIAL_FILE_H_
#define BATON_MODEL_PARTIAL_FILE_H_

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton::model {

// See the file comment. Each step fails with AlreadyExists when there is a file at `path`,
// ResourceExhausted when the disk is full, else Unavailable.
class PartialFile {
 public:
  // How an unfinished file is named. kNamed is for tests, and kUnnamed falls back to it.
  enum class Kind { kUnnamed, kNamed };

  explicit PartialFile(std::string path, Kind kind = Kind::kUnnamed);
  // Removes what was written, unless Finish has succeeded.
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // The name of the unfinished file, or "".
  const std::string& partial_path() const { return partial_; }

  absl::Status Open();
  absl::Status Write(std::span<const std::byte> bytes);
  // Flushes the bytes to the disk and gives the file its name; never replaces another one, and
  // fails where the file system has no way to promise that. When only the folder could not be
  // flushed the error says so: the file is whole and has its name, which a loss of power may undo.
  absl::Status Finish();

 private:
  int OpenUnnamed();
  int OpenNamed();
  int GiveName();
  absl::Status Failed(std::string_view what, int error) const;
  absl::Status Exists() const;

  const std::string path_;
  const Kind kind_;
  std::string partial_;  // "" = the unfinished file has no name
  std::FILE* file_ = nullptr;
};

}  // namespace baton::model

#endif  // BATON_MODEL_PARTIAL_FILE_H_
