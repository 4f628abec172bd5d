#include "kernels/cublaslt/cublaslt_library.h"

namespace baton::kernels::cublaslt {
namespace {

// Fills the table from an open library; names what it lacks.
StatusOr<CublasLtTable> Fill(const Library& library) {
  CublasLtTable table;
  table.path = library.path;
#define BATON_FIND(name) {#name, reinterpret_cast<void**>(&table.name)},
  const LibraryFunction functions[] = {BATON_CUBLASLT_FUNCTIONS(BATON_FIND)};
#undef BATON_FIND
  const std::string missing = FindFunctions(library, functions);
  // The version says more than a list of functions that came with a later one.
  if (table.cublasLtGetVersion != nullptr) {
    table.version = table.cublasLtGetVersion();
    if (table.version < kMinVersion) {
      return FailedPrecondition("cuBLASLt {} is version {}, the oldest that works is {}",
                                table.path, VersionText(table.version), VersionText(kMinVersion));
    }
  }
  if (!missing.empty()) return FailedPrecondition("cuBLASLt {} lacks {}", table.path, missing);
  return table;
}

}  // namespace

StatusOr<CublasLtTable> LoadCublasLt(const LibrarySearch& search) {
  BATON_ASSIGN_OR_RETURN(const Library library,
                         OpenLibrary({.what = "cuBLASLt",
                                      .name = "libcublasLt.so.13",
                                      .flag = "--cublaslt-library",
                                      .environment = "BATON_CUBLASLT_LIBRARY",
                                      .search = search}));
  return Fill(library);
}

std::string VersionText(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Status ToStatus(const char* call, cublasStatus_t status) {
  if (status == kSuccess) return OkStatus();
  return Internal("{}: cuBLAS error {}", call, status);
}

}  // namespace baton::kernels::cublaslt
