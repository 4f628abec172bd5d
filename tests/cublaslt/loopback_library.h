// The loopback of cuBLASLt as tests load it, and its faults.
#ifndef BATON_TESTS_CUBLASLT_LOOPBACK_LIBRARY_H_
#define BATON_TESTS_CUBLASLT_LOOPBACK_LIBRARY_H_

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "kernels/cublaslt/cublaslt_library.h"
#include "src/base/check.h"
#include "tests/cublaslt/loopback.h"

namespace baton::kernels::cublaslt_test {

// The path of a library of this build.
inline std::string BuiltLibrary(const std::string& name) {
  const char* const build = std::getenv("BATON_BUILD_DIR");
  return std::string(build == nullptr ? "build" : build) + "/tests/cublaslt/" + name;
}
inline std::string LoopbackPath() { return BuiltLibrary("libbaton_cublaslt_loopback.so"); }

// Loaded once.
inline const cublaslt::CublasLtTable& LoopbackTable() {
  static const cublaslt::CublasLtTable table = [] {
    auto loaded = cublaslt::LoadCublasLt({.library = LoopbackPath()});
    BATON_CHECK(loaded.ok(), "{}", loaded.status().ToString());
    return *std::move(loaded);
  }();
  return table;
}

// The answer of one of the loopback's own functions, which cuBLASLt does not have (loopback.h).
inline uint64_t AskLoopback(const char* function) {
  void* const library = dlopen(LoopbackTable().path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto ask = reinterpret_cast<uint64_t (*)()>(dlsym(library, function));
  BATON_CHECK(ask != nullptr, "{} is missing", function);
  const uint64_t answer = ask();
  dlclose(library);  // the table keeps it
  return answer;
}
// Products that the loopback has computed in this process.
inline uint64_t NumProducts() { return AskLoopback("baton_cublaslt_loopback_products"); }

// Faults of the loopback (loopback.cc) for as long as it lives; one thread.
class ScopedFaults {
 public:
  explicit ScopedFaults(const std::string& faults) {
    setenv("BATON_CUBLASLT_LOOPBACK", faults.c_str(), 1);
  }
  ~ScopedFaults() { unsetenv("BATON_CUBLASLT_LOOPBACK"); }
  ScopedFaults(const ScopedFaults&) = delete;
  ScopedFaults& operator=(const ScopedFaults&) = delete;
};

}  // namespace baton::kernels::cublaslt_test

#endif  // BATON_TESTS_CUBLASLT_LOOPBACK_LIBRARY_H_
