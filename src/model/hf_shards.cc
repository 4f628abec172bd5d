#include "src/model/hf_shards.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "src/base/byte_text.h"
#include "src/base/log.h"
#include "src/base/quoted_text.h"
#include "src/base/regular_file.h"
#include "src/model/file_mapping.h"
#include "src/model/folder_error.h"
#include "src/model/hf_folder.h"
#include "src/model/hf_index.h"

namespace baton::model {

namespace {

constexpr const char* kSingleName = "model.safetensors";

absl::Status InFile(const absl::Status& status, std::string_view name) {
  if (status.ok()) return status;
  const std::string text =
      fmt::format("{}: {}", QuotedForMessage(name), std::string(status.message()));
  return FolderError(FolderErrorOf(status), text);
}

// Whether `file` lies in the folder `path`; both without links.
bool LiesIn(const std::filesystem::path& file, const std::filesystem::path& path) {
  return std::mismatch(path.begin(), path.end(), file.begin(), file.end()).first == path.end();
}

// Opens the weights of a folder, one file or the shards of an index.
class ShardReader {
 public:
  explicit ShardReader(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Read() {
    const auto file = FileMapping::OpenIfThere(folder_ + "/" + kHfIndexName);
    const bool has_single = HasEntry(folder_ + "/" + kSingleName);
    if (!file.ok() && !has_single) return CannotOpenFile(kHfIndexName, file.status());
    if (file.ok() && file->has_value()) {
      absl::StatusOr<HfIndex> index = ReadHfIndex(AsChars((*file)->bytes()));
      // Weights that were saved again as one file leave the index of their former shards.
      // transformers reads the one file wherever it is.
      const bool is_stale = has_single && !(index.ok() && index->contains(kSingleName));
      if (!is_stale) return index.ok() ? AddShards(*index) : index.status();
      BATON_LOG_WARN("{}: the weights are those of {}; {} does not name that file and is not read",
                     folder_, kSingleName, kHfIndexName);
    }
    if (has_single) return AddFile(kSingleName);
    return FolderError(FolderErrorCode::kMissingFile,
                       fmt::format("the folder has neither {} nor {} (other forms of weights are "
                                   "not read)",
                                   kSingleName, kHfIndexName));
  }

  std::vector<std::unique_ptr<SafetensorsFile>> Take() { return std::move(files_); }

 private:
  absl::Status AddFile(const std::string& name) {
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
        SafetensorsFile::Open(folder_ + "/" + name);
    if (!file.ok()) return InFile(file.status(), name);
    num_tensors_ += (*file)->tensors().size();
    header_bytes_ += (*file)->header_bytes();
    if (num_tensors_ > kMaxHfTensors || header_bytes_ > kMaxHfHeaderBytes) {
      return FolderError(
          FolderErrorCode::kFileTooLarge,
          fmt::format("{} tensors in {} bytes of headers up to {}, the limits are {} and {}",
                      num_tensors_, header_bytes_, QuotedForMessage(name), kMaxHfTensors,
                      kMaxHfHeaderBytes));
    }
    files_.push_back(*std::move(file));
    return OkStatus();
  }

  static absl::Status BadIndex(std::string_view what) {
    return FolderError(FolderErrorCode::kBadIndex, fmt::format("{}: {}", kHfIndexName, what));
  }

  absl::Status AddShards(HfIndex& index) {
    for (auto& [name, tensors] : index) BATON_RETURN_IF_ERROR(AddShard(name, tensors));
    return OkStatus();
  }

  // A name with subfolders comes from the index alone, and must not lead elsewhere by a link. Files
  // of the hub's cache are links to FOLDER/../../blobs.
  absl::Status CheckIsInside(const std::string& name) const {
    if (name.find('/') == std::string::npos) return OkStatus();
    std::error_code error;
    const std::filesystem::path file = std::filesystem::canonical(folder_ + "/" + name, error);
    if (error) return OkStatus();  // opening it says why
    for (const char* place : {"", "/../../blobs"}) {
      const std::filesystem::path inside = std::filesystem::canonical(folder_ + place, error);
      if (!error && LiesIn(file, inside)) return OkStatus();
    }
    return BadIndex(fmt::format("{} leads out of the folder by a link", QuotedForMessage(name)));
  }

  // The file must hold the tensors that the index gives it, and no others.
  absl::Status AddShard(const std::string& name, std::vector<std::string>& tensors) {
    BATON_RETURN_IF_ERROR(CheckIsInside(name));
    const absl::Status status = AddFile(name);
    if (FolderErrorOf(status) == FolderErrorCode::kMissingFile) {
      return FolderError(
          FolderErrorCode::kMissingShard,
          fmt::format("{}, which {} names", std::string(status.message()), kHfIndexName));
    }
    BATON_RETURN_IF_ERROR(status);
    std::sort(tensors.begin(), tensors.end());
    const std::vector<SafetensorsTensor>& held = files_.back()->tensors();
    const auto by_name = [](const SafetensorsTensor& a, std::string_view b) { return a.name == b; };
    if (std::equal(held.begin(), held.end(), tensors.begin(), tensors.end(), by_name)) {
      return OkStatus();
    }
    const auto [mine, listed] =
        std::mismatch(held.begin(), held.end(), tensors.begin(), tensors.end(), by_name);
    const std::string& odd = mine == held.end() ? *listed : mine->name;
    return BadIndex(fmt::format("it and {} disagree about tensor {}", QuotedForMessage(name),
                                QuotedForMessage(odd)));
  }

  const std::string folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  size_t num_tensors_ = 0;     // of all files so far
  uint64_t header_bytes_ = 0;  // of all files so far
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<SafetensorsFile>>> OpenHfShards(
    const std::string& folder) {
  ShardReader reader(folder);
  BATON_RETURN_IF_ERROR(reader.Read());
  return reader.Take();
}

}  // namespace baton::model
