#include "src/base/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace baton {
namespace {

namespace fs = std::filesystem;

// Adds the paths of `name` in the folders of packages under `folder`, sorted. When none holds such
// a file, a pattern is added, for errors.
void AddOfPackages(const std::string& folder, const std::string& name,
                   std::vector<std::string>* paths) {
  const size_t num_before = paths->size();
  std::error_code ignored;
  std::error_code error;
  for (fs::directory_iterator package(folder + "/nvidia", error), end; !error && package != end;
       package.increment(error)) {
    const fs::path path = package->path() / "lib" / name;
    if (fs::exists(path, ignored)) paths->push_back(path.string());
  }
  std::sort(paths->begin() + static_cast<std::ptrdiff_t>(num_before), paths->end());
  if (paths->size() == num_before) paths->push_back(folder + "/nvidia/*/lib/" + name);
}

// Where to look: one file that somebody named, or places in order.
std::vector<std::string> Candidates(const LibraryPlaces& places) {
  if (!places.search.library.empty()) return {places.search.library};
  const char* const from_environment =
      places.environment == nullptr ? nullptr : std::getenv(places.environment);
  if (from_environment != nullptr && *from_environment != '\0') return {from_environment};
  std::vector<std::string> paths = {places.name};
  for (const std::string& folder : places.search.python_folders) {
    AddOfPackages(folder, places.name, &paths);
  }
  return paths;
}

void AddPackages(const fs::path& root, std::vector<std::string>* folders) {
  std::error_code ignored;
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->path().filename().string().starts_with("python3")) continue;
    for (const char* const name : {"site-packages", "dist-packages"}) {
      if (fs::is_directory(entry->path() / name, ignored)) {
        folders->push_back((entry->path() / name).string());
      }
    }
  }
}

}  // namespace

StatusOr<Library> OpenLibrary(const LibraryPlaces& places) {
  std::string tried;
  for (const std::string& path : Candidates(places)) {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return Library{handle, path};
    const char* const why = dlerror();
    tried += fmt::format("{}{} ({})", tried.empty() ? "" : "; ", path, why == nullptr ? "" : why);
  }
  const std::string hint = places.flag == nullptr ? ""
                                                  : fmt::format("; name it with {} or {}",
                                                                places.flag, places.environment);
  return NotFound("{} is missing; tried {}{}", places.what, tried, hint);
}

std::vector<std::string> PythonFolders() {
  std::vector<std::string> folders;
  if (const char* const venv = std::getenv("VIRTUAL_ENV"))
    AddPackages(fs::path(venv) / "lib", &folders);
  if (const char* const home = std::getenv("HOME")) {
    AddPackages(fs::path(home) / ".local" / "lib", &folders);
  }
  AddPackages("/usr/local/lib", &folders);
  AddPackages("/usr/lib", &folders);
  return folders;
}

std::string FindFunctions(const Library& library, std::span<const LibraryFunction> functions) {
  std::string missing;
  for (const LibraryFunction& function : functions) {
    *function.address = dlsym(library.handle, function.name);
    if (*function.address != nullptr || !function.is_required) continue;
    if (!missing.empty()) missing += ", ";
    missing += function.name;
  }
  return missing;
}

}  // namespace baton
