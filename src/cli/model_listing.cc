#include "src/cli/model_listing.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include "src/base/nearest_name.h"
#include "src/base/quoted_text.h"
#include "src/cli/model_store.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

uint64_t BytesOf(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const uintmax_t size = fs::file_size(path, error);
    return error ? 0 : size;
  }
  uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path, error)) {
    const uintmax_t size = entry.is_regular_file(error) ? entry.file_size(error) : 0;
    if (!error) bytes += size;
  }
  return bytes;
}

// The catalogue's name of a file that lies where the catalogue puts it.
std::string NameOf(const fs::path& path, const std::string& folder) {
  std::string inside = path.lexically_relative(folder).string();
  for (const char* name : {"smollm2:135m", "gemma3:270m"}) {
    const CatalogueEntry* entry = FindCatalogueEntry(name);
    if (entry != nullptr && inside == entry->file) return name;
  }
  return inside;
}

}  // namespace

std::vector<ListedModel> ListModels(const std::string& folder) {
  std::vector<ListedModel> models;
  std::error_code error;
  auto at = fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied,
                                             error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    const fs::path& path = at->path();
    std::error_code unreadable;
    const bool is_folder =
        at->is_directory(unreadable) && fs::exists(path / "config.json", unreadable);
    if (is_folder) at.disable_recursion_pending();
    const bool is_file = path.extension() == ".gguf" && at->is_regular_file(unreadable);
    if (!is_folder && !is_file) continue;
    models.push_back({.name = NameOf(path, folder), .path = path.string(), .bytes = BytesOf(path)});
  }
  std::ranges::sort(models, {}, &ListedModel::name);
  return models;
}

StatusOr<ListedModel> RemoveModel(const std::string& folder, std::string_view name) {
  const std::vector<ListedModel> models = ListModels(folder);
  const auto found = std::ranges::find(models, name, &ListedModel::name);
  if (found == models.end()) {
    std::vector<std::string> names;
    for (const ListedModel& model : models) names.push_back(model.name);
    const std::string nearest = NearestName(name, std::span<const std::string>(names));
    return NotFound(
        "no model {} in {}{}", QuotedForMessage(name), folder,
        nearest.empty() ? "; `baton list` lists them" : fmt::format("; did you mean {}?", nearest));
  }
  std::error_code error;
  fs::remove_all(found->path, error);
  if (error) return Unavailable("cannot remove {}: {}", found->path, error.message());
  const fs::path parent = fs::path(found->path).parent_path();
  if (parent != fs::path(folder)) fs::remove(parent, error);  // only when it is empty
  return *found;
}

}  // namespace baton
