// The loopback as tests load it: through the table, like NCCL, and its own two functions.
#ifndef BATON_TESTS_NCCL_LOOPBACK_LIBRARY_H_
#define BATON_TESTS_NCCL_LOOPBACK_LIBRARY_H_

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "kvcache/transport/nccl/nccl_library.h"
#include "src/base/check.h"
#include "tests/nccl/loopback.h"

namespace baton::kv::nccl_test {

inline std::string BuiltLibrary(const std::string& name) {
  const char* const folder = std::getenv("BATON_BUILD_DIR");
  return std::string(folder == nullptr ? "build/release" : folder) + "/tests/nccl/" + name;
}
inline std::string LoopbackPath() { return BuiltLibrary("libbaton_nccl_loopback.so"); }

// The table of the loopback.
inline const nccl::NcclTable& LoopbackTable() {
  static const nccl::NcclTable table = [] {
    StatusOr<nccl::NcclTable> loaded = nccl::LoadNccl({.library = LoopbackPath()});
    BATON_CHECK(loaded.ok(), "{}", loaded.status().ToString());
    return *std::move(loaded);
  }();
  return table;
}

template <typename Function>
Function* LoopbackFunction(const char* name) {
  void* const library = dlopen(LoopbackPath().c_str(), RTLD_NOW | RTLD_LOCAL);
  BATON_CHECK(library != nullptr, "{}", dlerror());
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Sets the faults (loopback.h) and the counts to zero; "" = none.
inline void Configure(const std::string& faults) {
  const int status =
      LoopbackFunction<decltype(loopback_configure)>("loopback_configure")(faults.c_str());
  BATON_CHECK(status == 0, "the loopback does not know {}", faults);
}

inline LoopbackCounts Counts() {
  LoopbackCounts counts;
  LoopbackFunction<decltype(loopback_counts)>("loopback_counts")(&counts);
  return counts;
}

// These faults while it lives; none are left behind.
class ScopedFaults {
 public:
  explicit ScopedFaults(const std::string& faults) { Configure(faults); }
  ~ScopedFaults() { Configure(""); }
  ScopedFaults(const ScopedFaults&) = delete;
  ScopedFaults& operator=(const ScopedFaults&) = delete;
};

}  // namespace baton::kv::nccl_test

#endif  // BATON_TESTS_NCCL_LOOPBACK_LIBRARY_H_
