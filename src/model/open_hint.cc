#include "src/model/open_hint.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"

#include "src/base/folder_entries.h"
#include "src/base/quoted_text.h"
#include "src/base/regular_file.h"
#include "src/model/folder_error.h"
#include "src/model/gguf_error.h"

namespace baton::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCutShort =
    "the file is cut short: fetch it again (`baton pull NAME`, or copy it anew)";
constexpr std::string_view kNoModel = "it is neither a GGUF file nor a folder with config.json";
constexpr std::string_view kNotWhole = "the folder is not whole: fetch all its files again";
constexpr std::string_view kJsonText = "it is a text in JSON, and not a model";
constexpr std::string_view kConfigName = "config.json";

// The first bytes of a regular file; "" of anything else.
std::string BeginOf(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  std::array<char, kHintBytes> bytes = {};
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), bytes.size());
  return {bytes.data(), static_cast<size_t>(file.gcount())};
}

// A safetensors file: eight bytes of a length, of which the last three are 0, and JSON.
bool IsSafetensors(std::string_view begin) {
  return begin.size() > 8 && begin[8] == '{' && begin.substr(5, 3) == std::string_view("\0\0\0", 3);
}

std::string HintOfMagic(const fs::path& path) {
  const std::string begin = BeginOf(path);
  if (begin.starts_with("GGUF")) return "a part is no GGUF file: fetch all parts again";
  std::error_code error;
  const bool is_in_folder = fs::exists(path.parent_path() / kConfigName, error);
  const bool is_of_folder = IsSafetensors(begin) || (is_in_folder && begin.starts_with('{'));
  if (is_of_folder) return "give the folder, not the file in it";
  const std::string_view kind = KindOfForeignFile(begin);
  return std::string(kind.empty() ? kNoModel : kind);
}

std::string HintOfGguf(GgufErrorCode code, const fs::path& path) {
  switch (code) {
    case GgufErrorCode::kBadMagic:
      return HintOfMagic(path);
    case GgufErrorCode::kTruncated:
    case GgufErrorCode::kDataOutOfFile:
      return std::string(kCutShort);
    case GgufErrorCode::kSplitMissing:
      return "put all parts into one folder (`baton pull hf:ORG/REPO/FILE` fetches all)";
    default:
      return "";
  }
}

// "the folder holds m.gguf: give that file"; "" = it has none.
std::string HintOfGgufIn(const std::vector<fs::directory_entry>& entries) {
  std::string first;
  size_t num_files = 0;
  for (const fs::directory_entry& entry : entries) {
    if (entry.path().extension() != ".gguf") continue;
    if (num_files++ == 0) first = entry.path().filename().string();
  }
  if (num_files == 0) return "";
  if (num_files == 1)
    return fmt::format("the folder holds {}: give that file", QuotedForMessage(first));
  return fmt::format("the folder holds {} and {} more .gguf files: give one of them",
                     QuotedForMessage(first), num_files - 1);
}

// A file of the folder that is something else than its name says; "" = none is.
std::string HintOfForeignIn(const std::vector<fs::directory_entry>& entries) {
  for (const fs::directory_entry& entry : entries) {
    const fs::path extension = entry.path().extension();
    const bool is_weights = extension == ".safetensors";
    if (!is_weights && extension != ".json") continue;
    const std::string_view kind = KindOfForeignFile(BeginOf(entry.path()));
    if (kind.empty() || (!is_weights && kind == kJsonText)) continue;
    return fmt::format("{}: {}", QuotedForMessage(entry.path().filename().string()), kind);
  }
  return "";
}

std::string HintOfFolder(FolderErrorCode code, const fs::path& path) {
  const std::vector<fs::directory_entry> entries = FolderEntries(path);
  switch (code) {
    case FolderErrorCode::kMissingFile: {
      const std::string held = HintOfGgufIn(entries);
      if (!held.empty()) return held;
      return std::string(HasEntry(path / kConfigName) ? kNotWhole : kNoModel);
    }
    case FolderErrorCode::kMissingShard:
      return std::string(kNotWhole);
    case FolderErrorCode::kFileTooLarge:
    case FolderErrorCode::kBadJson:
      return HintOfForeignIn(entries);
    case FolderErrorCode::kTruncated:
    case FolderErrorCode::kDataOutOfFile: {
      const std::string foreign = HintOfForeignIn(entries);
      return foreign.empty() ? std::string(kCutShort) : foreign;
    }
    default:
      return "";
  }
}

}  // namespace

std::string_view KindOfForeignFile(std::string_view begin) {
  if (begin.starts_with("version https://git-lfs")) {
    return "it is a git-lfs pointer, not the file itself: run `git lfs pull` where it lies";
  }
  const size_t text = begin.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  const std::string_view first = text == begin.npos ? "" : begin.substr(text);
  for (const std::string_view tag : {"<!doctype html", "<html", "<head", "<body"}) {
    if (absl::StartsWithIgnoreCase(absl::string_view(first.data(), first.size()),
                                   absl::string_view(tag.data(), tag.size()))) {
      return "it is a page for people (HTML), not the file itself: fetch the address of the file";
    }
  }
  if (first.starts_with('{')) return kJsonText;
  if (begin.starts_with("PK\x03\x04")) {
    return "it is a zip archive, as PyTorch's .bin and .pt are: models are .gguf or .safetensors";
  }
  return "";
}

absl::Status WithOpenHint(const absl::Status& status, const std::string& path) {
  if (status.ok()) return status;
  std::string hint = HintOfGguf(GgufErrorOf(status), path);
  const FolderErrorCode folder = FolderErrorOf(status);
  if (folder != FolderErrorCode::kNone) hint = HintOfFolder(folder, path);
  if (hint.empty()) return status;
  absl::Status out(status.code(), fmt::format("{}; {}", std::string(status.message()), hint));
  status.ForEachPayload(
      [&out](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

}  // namespace baton::model
