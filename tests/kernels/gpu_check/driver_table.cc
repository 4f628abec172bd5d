#include "tests/kernels/gpu_check/driver_table.h"

#include "src/base/status.h"
#include "tests/kernels/gpu_check/library.h"

namespace baton::gpu_check {

absl::StatusOr<DriverTable> LoadDriver() {
  const LibraryPlaces places = {"libcuda.so.1", "", nullptr, ""};
  const absl::StatusOr<Library> library = OpenLibrary(places);
  if (!library.ok()) return WithPrefix(library.status(), "no driver");
  DriverTable table;
#define BATON_REQUIRE(name) {BATON_SYMBOL_NAME(name), reinterpret_cast<void**>(&table.name), true},
#define BATON_FIND(name) {BATON_SYMBOL_NAME(name), reinterpret_cast<void**>(&table.name), false},
  const Symbol symbols[] = {BATON_DRIVER_FUNCTIONS(BATON_REQUIRE, BATON_FIND)};
#undef BATON_REQUIRE
#undef BATON_FIND
  BATON_RETURN_IF_ERROR(FindSymbols(*library, symbols));
  return table;
}

}  // namespace baton::gpu_check
