#include "tests/kernels/gpu_check/library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <vector>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/program.h"

namespace baton::gpu_check {
namespace {

absl::StatusOr<Library> Open(const std::string& path) {
  Library library{dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), path};
  if (library.handle == nullptr) return Unavailable("{}", dlerror());
  return library;
}

// Paths of the library in the wheels of a python; none when that python does not run.
std::vector<std::string> InWheels(const LibraryPlaces& places) {
  std::vector<std::string> patterns;
  const auto note = [&](std::string_view line) {
    if (line.starts_with("/"))
      patterns.push_back(std::string(line) + "/nvidia/*/lib/" + places.name);
    return absl::OkStatus();
  };
  const auto code =
      RunProgram({places.python, "-c", "import sys; print('\\n'.join(sys.path))"}, note);
  if (!code.ok() || *code != 0) return {};
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns) {
    glob_t found = {};
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
      paths.insert(paths.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    }
    globfree(&found);
  }
  return paths;
}

}  // namespace

absl::StatusOr<Library> OpenLibrary(const LibraryPlaces& places) {
  if (!places.flag.empty()) return Open(places.flag);
  const char* const path =
      places.environment != nullptr ? std::getenv(places.environment) : nullptr;
  if (path != nullptr && *path != '\0') return Open(path);
  const absl::StatusOr<Library> on_path = Open(places.name);
  if (on_path.ok() || places.python.empty()) return on_path;
  for (const std::string& candidate : InWheels(places)) {
    const absl::StatusOr<Library> library = Open(candidate);
    if (library.ok()) return library;
  }
  return Unavailable("{}; not among the packages of {} either",
                     std::string(on_path.status().message()), places.python);
}

absl::Status FindSymbols(const Library& library, std::span<const Symbol> symbols) {
  std::string missing;
  for (const Symbol& symbol : symbols) {
    *symbol.address = dlsym(library.handle, symbol.name);
    if (*symbol.address == nullptr && symbol.is_required) missing += std::string(" ") + symbol.name;
  }
  if (missing.empty()) return absl::OkStatus();
  return Unavailable("{} is too old, it lacks{}", library.path, missing);
}

}  // namespace baton::gpu_check
