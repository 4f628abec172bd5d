#include "kvcache/transport/nccl/nccl_library.h"

namespace baton::kv::nccl {
namespace {

// Fills the table from an open library; names what it lacks.
StatusOr<NcclTable> Fill(const Library& library) {
  NcclTable table;
  table.path = library.path;
#define BATON_REQUIRE(name) {#name, reinterpret_cast<void**>(&table.name), true},
#define BATON_FIND(name) {#name, reinterpret_cast<void**>(&table.name), false},
  const LibraryFunction functions[] = {BATON_NCCL_FUNCTIONS(BATON_REQUIRE, BATON_FIND)};
#undef BATON_REQUIRE
#undef BATON_FIND
  const std::string missing = FindFunctions(library, functions);
  // The version says more than a list of functions that came with a later one.
  if (table.ncclGetVersion != nullptr) {
    const Result result = table.ncclGetVersion(&table.version);
    if (result != kSuccess) {
      return FailedPrecondition("NCCL {} does not tell its version (error {})", table.path,
                                static_cast<int>(result));
    }
    if (table.version < kMinVersion) {
      return FailedPrecondition("NCCL {} is version {}, the oldest that works is {}", table.path,
                                VersionText(table.version), VersionText(kMinVersion));
    }
  }
  if (!missing.empty()) return FailedPrecondition("NCCL {} lacks {}", table.path, missing);
  return table;
}

}  // namespace

StatusOr<NcclTable> LoadNccl(const LibrarySearch& search) {
  BATON_ASSIGN_OR_RETURN(const Library library, OpenLibrary({.what = "NCCL",
                                                             .name = "libnccl.so.2",
                                                             .flag = "--nccl-library",
                                                             .environment = "BATON_NCCL_LIBRARY",
                                                             .search = search}));
  return Fill(library);
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

}  // namespace baton::kv::nccl
