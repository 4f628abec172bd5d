#include "tests/kernels/gpu_check/driver_table.h"

#include "src/base/library.h"

namespace baton::kernels::gpu_check {

absl::StatusOr<DriverTable> LoadDriver() {
  const absl::StatusOr<Library> library =
      OpenLibrary({.what = "a CUDA driver", .name = "libcuda.so.1"});
  if (!library.ok()) return Unavailable("no driver: {}", std::string(library.status().message()));
  DriverTable table;
#define BATON_REQUIRE(name) {BATON_SYMBOL_NAME(name), reinterpret_cast<void**>(&table.name), true},
#define BATON_FIND(name) {BATON_SYMBOL_NAME(name), reinterpret_cast<void**>(&table.name), false},
  const LibraryFunction functions[] = {BATON_DRIVER_FUNCTIONS(BATON_REQUIRE, BATON_FIND)};
#undef BATON_REQUIRE
#undef BATON_FIND
  const std::string missing = FindFunctions(*library, functions);
  if (!missing.empty()) return Unavailable("{} is too old, it lacks {}", library->path, missing);
  return table;
}

}  // namespace baton::kernels::gpu_check
