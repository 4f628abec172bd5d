#include "kvcache/transport/nccl/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace baton::nccl {
namespace {

constexpr const char* kLoaderName = "libnccl.so.2";
constexpr const char* kEnvironment = "BATON_NCCL_LIBRARY";

// Where to look: one file that somebody named, or places in order.
std::vector<std::string> Candidates(const NcclSearch& search) {
  if (!search.library.empty()) return {search.library};
  const char* const from_environment = std::getenv(kEnvironment);
  if (from_environment != nullptr && *from_environment != '\0') return {from_environment};
  std::vector<std::string> candidates = {kLoaderName};
  for (const std::string& folder : search.python_folders) {
    candidates.push_back(folder + "/nvidia/nccl/lib/" + kLoaderName);
  }
  return candidates;
}

// Fills the table from an open library; names what it lacks.
StatusOr<NcclTable> Fill(void* library, const std::string& path) {
  NcclTable table;
  table.path = path;
  std::string missing;
#define BATON_FIND(name) table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, #name));
#define BATON_REQUIRE(name) \
  BATON_FIND(name)          \
  if (table.name == nullptr) missing += missing.empty() ? #name : ", " #name;
  BATON_NCCL_FUNCTIONS(BATON_REQUIRE, BATON_FIND)
#undef BATON_REQUIRE
#undef BATON_FIND
  // The version says more than a list of functions that came with a later one.
  if (table.ncclGetVersion != nullptr) {
    const Result result = table.ncclGetVersion(&table.version);
    if (result != kSuccess) {
      return FailedPrecondition("NCCL {} does not tell its version (error {})", path,
                                static_cast<int>(result));
    }
    if (table.version < kMinVersion) {
      return FailedPrecondition("NCCL {} is version {}, the oldest that works is {}", path,
                                VersionText(table.version), VersionText(kMinVersion));
    }
  }
  if (!missing.empty()) return FailedPrecondition("NCCL {} lacks {}", path, missing);
  return table;
}

void AddPackages(const std::filesystem::path& root, std::vector<std::string>* folders) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(root, ignored)) {
    if (!entry.path().filename().string().starts_with("python3")) continue;
    for (const char* const name : {"site-packages", "dist-packages"}) {
      if (std::filesystem::is_directory(entry.path() / name, ignored)) {
        folders->push_back((entry.path() / name).string());
      }
    }
  }
}

}  // namespace

std::vector<std::string> PythonFolders() {
  std::vector<std::string> folders;
  if (const char* const venv = std::getenv("VIRTUAL_ENV")) {
    AddPackages(std::filesystem::path(venv) / "lib", &folders);
  }
  if (const char* const home = std::getenv("HOME")) {
    AddPackages(std::filesystem::path(home) / ".local" / "lib", &folders);
  }
  AddPackages("/usr/local/lib", &folders);
  AddPackages("/usr/lib", &folders);
  return folders;
}

StatusOr<NcclTable> LoadNccl(const NcclSearch& search) {
  std::string tried;
  for (const std::string& path : Candidates(search)) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return Fill(library, path);
    const char* const why = dlerror();
    tried += fmt::format("{}{} ({})", tried.empty() ? "" : "; ", path, why == nullptr ? "" : why);
  }
  return NotFound("NCCL is missing; tried {}; name it with --nccl-library or {}", tried,
                  kEnvironment);
}

std::string VersionText(int version) {
  // Up to 2.8 the major number had one place less.
  const int major_unit = version < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", version / major_unit, version % major_unit / 100, version % 100);
}

Status ToStatus(const NcclTable& table, const char* call, Result result) {
  if (result == kSuccess || result == kInProgress) return OkStatus();
  return Unavailable("{}: {}", call, table.ncclGetErrorString(result));
}

}  // namespace baton::nccl
