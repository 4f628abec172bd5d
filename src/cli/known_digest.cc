#include "src/cli/known_digest.h"

#include <sys/stat.h>

#include <fstream>

#include "fmt/format.h"

#include "src/base/hex.h"
#include "src/cli/replace_file.h"
#include "src/cli/sha256.h"

namespace baton {
namespace {

std::string RecordOf(const std::string& path) { return path + ".sha256"; }

}  // namespace

std::string FileState(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  return fmt::format("{} {}.{:09}", info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

StatusOr<KnownDigest> DigestOf(const std::string& path) {
  KnownDigest known;
  std::string state;
  std::ifstream record(RecordOf(path));
  if (record >> known.expected && known.expected.size() == 64 && BytesFromHex(known.expected)) {
    std::getline(record >> std::ws, state);
  } else {
    known.expected.clear();
  }
  const std::string now = FileState(path);
  if (!known.expected.empty() && !now.empty() && state == now) {
    known.sha256 = known.expected;
    return known;
  }
  BATON_ASSIGN_OR_RETURN(known.sha256, FileSha256(path));
  // Copied or touched: the same bytes at another time.
  if (known.is_checked()) RememberDigest(path, path, known.sha256);
  return known;
}

void RememberDigest(const std::string& path, const std::string& written,
                    const std::string& sha256) {
  const std::string text = fmt::format("{} {}\n", sha256, FileState(written));
  (void)ReplaceFile(RecordOf(path), text, 0644);
}

}  // namespace baton
