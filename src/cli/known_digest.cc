#include "src/cli/known_digest.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string_view>

#include "fmt/format.h"

#include "src/base/hex.h"
#include "src/cli/replace_file.h"
#include "src/cli/sha256.h"

namespace baton::cli {
namespace {

constexpr std::string_view kUnchecked = "unchecked";

// A line of PATH.sha256.
struct DigestRecord {
  DigestNote note;    // sha256 "" = there is no record, or it cannot be read
  std::string state;  // FileState() of the bytes that had the digest
};

DigestRecord ReadRecord(const std::string& path) {
  DigestRecord record;
  std::ifstream file(DigestRecordOf(path));
  std::string& digest = record.note.sha256;
  file >> digest;
  if (digest == kUnchecked) {
    record.note.source = DigestSource::kComputed;
    file >> digest;
  }
  if (file && digest.size() == 64 && BytesFromHex(digest)) {
    std::getline(file >> std::ws, record.state);
    return record;
  }
  return {};
}

}  // namespace

std::string DigestRecordOf(const std::string& path) {
  const std::filesystem::path file(path);
  return (file.parent_path() / ".digests" / file.filename()).string() + ".sha256";
}

std::string FileState(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  return fmt::format("{} {}.{:09}", info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

StatusOr<KnownDigest> DigestOf(const std::string& path) {
  const DigestRecord record = ReadRecord(path);
  KnownDigest known{.sha256 = "", .expected = record.note.sha256, .source = record.note.source};
  const std::string now = FileState(path);
  if (!known.expected.empty() && !now.empty() && record.state == now) {
    known.sha256 = known.expected;
    return known;
  }
  BATON_ASSIGN_OR_RETURN(known.sha256, FileSha256(path));
  // Copied or touched: the same bytes at another time.
  if (known.is_remembered()) RememberDigest(path, path, record.note);
  return known;
}

void RememberDigest(const std::string& path, const std::string& written, const DigestNote& note) {
  const bool is_named = note.source == DigestSource::kNamed;
  const std::string text = fmt::format("{}{} {}\n", is_named ? "" : fmt::format("{} ", kUnchecked),
                                       note.sha256, FileState(written));
  const std::string record = DigestRecordOf(path);
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(record).parent_path(), error);
  (void)ReplaceFile(record, text, 0644);
}

}  // namespace baton::cli
