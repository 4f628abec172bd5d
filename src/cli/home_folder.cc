#include "src/cli/home_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "src/base/errno_text.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Whether the folder can be written, or be made: a folder that is made in the nearest one that is
// there, and removed at once, decides. access(2) does not know of /proc or of quotas on inodes. A
// full disk is not the folder's fault, and whoever writes there names it.
bool CanBeWritten(const fs::path& folder) {
  std::error_code error;
  fs::path at = fs::absolute(folder, error);
  if (error) return false;
  while (!fs::exists(fs::symlink_status(at, error)) && at.has_relative_path()) {
    at = at.parent_path();
  }
  if (!fs::is_directory(at, error)) return false;
  std::string tried = (at / ".baton-XXXXXX").string();
  if (::mkdtemp(tried.data()) == nullptr) return errno == ENOSPC || errno == EDQUOT;
  (void)::rmdir(tried.c_str());
  return true;
}

bool HasModels(const fs::path& folder) {
  return ::access((folder / "models").c_str(), R_OK | X_OK) == 0;
}

}  // namespace

StatusOr<std::string> HomeFolder() {
  const std::string wanted = Variable("BATON_HOME");
  if (!wanted.empty()) return wanted;
  const std::string user_home = Variable("HOME");
  if (user_home.starts_with('/')) {
    const std::string folder = user_home + (user_home.ends_with('/') ? "" : "/") + ".cache/baton";
    if (HasModels(folder) || CanBeWritten(folder)) return folder;
  }
  return PrivateTempFolder();
}

StatusOr<std::string> WritableHome() {
  BATON_ASSIGN_OR_RETURN(std::string home, HomeFolder());
  if (CanBeWritten(home)) return home;
  return PrivateTempFolder();
}

StatusOr<std::string> PrivateTempFolder() {
  std::string parent = Variable("TMPDIR");
  if (!parent.starts_with('/')) parent = "/tmp";
  const std::string folder = fmt::format("{}/baton-{}", parent, ::geteuid());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Unavailable("cannot create {}: {}; set BATON_HOME to a folder that you can write",
                       folder, ErrnoText(errno));
  }
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) {
    return Unavailable("cannot look at {}: {}", folder, ErrnoText(errno));
  }
  std::string fault;
  if (!S_ISDIR(info.st_mode)) {
    fault = "is no folder";
  } else if (info.st_uid != ::geteuid()) {
    fault = fmt::format("belongs to user {}, not to {}", info.st_uid, ::geteuid());
  } else if ((info.st_mode & 077) != 0) {
    fault = fmt::format("has mode {:04o}, not 0700", info.st_mode & 07777);
  }
  if (fault.empty()) return folder;
  return FailedPrecondition(
      "{} {}: what lies there may be another user's; set BATON_HOME to a folder of your own",
      folder, fault);
}

}  // namespace baton::cli
