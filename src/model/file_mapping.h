// FileMapping: one file mapped read-only into memory. Constant after opening; any thread reads it.
//
// Limit: a file that another process shortens while it is mapped raises SIGBUS at the next read,
// as for every mapped file. Replace model files by rename.
#ifndef BATON_MODEL_FILE_MAPPING_H_
#define BATON_MODEL_FILE_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "src/base/status.h"

namespace baton::model {

// Which file it is, so that it can be opened once more: by its name, if that still is this file.
struct FileIdentity {
  std::string path;
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t changed_ns = 0;  // when its contents were, since the Unix epoch
};

// The owner of a mapping; move-only.
class FileMapping {
 public:
  FileMapping() = default;
  FileMapping(FileMapping&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), identity_(std::move(other.identity_)) {}
  FileMapping& operator=(FileMapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(identity_, other.identity_);
    return *this;
  }
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping();

  // NotFound with the reason when `path` cannot be opened or is no regular file. An empty file
  // gives empty bytes. The message does not name the path: the caller knows by which name the user
  // gave it.
  static absl::StatusOr<FileMapping> Open(const std::string& path);
  // nullopt when there is nothing at `path`. What is there and cannot be mapped fails as Open does:
  // a folder, or a link to a file that is gone, as a cache of downloads may have.
  static absl::StatusOr<std::optional<FileMapping>> OpenIfThere(const std::string& path);

  std::span<const std::byte> bytes() const { return bytes_; }
  const FileIdentity& identity() const { return identity_; }

 private:
  std::span<const std::byte> bytes_;
  FileIdentity identity_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_FILE_MAPPING_H_
