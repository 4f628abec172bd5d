#include "tests/kernels/gpu_check/driver_table.h"

#include <dlfcn.h>

#include "src/base/status.h"

namespace baton::gpu_check {

absl::StatusOr<DriverTable> LoadDriver() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unavailable("no driver: {}", dlerror());
  DriverTable table;
  std::string missing;
// Two steps, so that a name the header renames is the symbol's.
#define BATON_STRING(name) #name
#define BATON_FIND(name) \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, BATON_STRING(name)));
#define BATON_REQUIRE(name) \
  BATON_FIND(name)          \
  if (table.name == nullptr) missing += std::string(" ") + BATON_STRING(name);
  BATON_DRIVER_FUNCTIONS(BATON_REQUIRE, BATON_FIND)
#undef BATON_REQUIRE
#undef BATON_FIND
#undef BATON_STRING
  if (!missing.empty()) return Unavailable("the driver is too old, it lacks{}", missing);
  return table;
}

}  // namespace baton::gpu_check
