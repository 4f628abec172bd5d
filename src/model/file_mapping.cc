#include "src/model/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "src/base/errno_text.h"
#include "src/base/regular_file.h"
#include "src/base/unique_fd.h"

namespace baton::model {
namespace {

absl::Status OpenError(std::string_view what) { return NotFound("{}: {}", what, ErrnoText(errno)); }

}  // namespace

absl::StatusOr<FileMapping> FileMapping::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must fail below, not wait for a writer.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return OpenError("cannot open");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return OpenError("cannot stat");
  if (!S_ISREG(info.st_mode)) return NotFound("not a regular file");
  FileMapping out;
  const int64_t changed_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
  out.identity_ = {path, info.st_dev, info.st_ino, changed_ns};
  if (info.st_size == 0) return out;
  const size_t size = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) return OpenError("cannot map");
  out.bytes_ = {static_cast<const std::byte*>(address), size};
  return out;
}

absl::StatusOr<std::optional<FileMapping>> FileMapping::OpenIfThere(const std::string& path) {
  if (!HasEntry(path)) return std::optional<FileMapping>();
  BATON_ASSIGN_OR_RETURN(FileMapping file, Open(path));
  return std::optional<FileMapping>(std::move(file));
}

FileMapping::~FileMapping() {
  // munmap takes a pointer to non-const only because it is older than const.
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace baton::model
