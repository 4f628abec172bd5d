// Libraries that are found at run time and never linked, so that the program starts without them:
// where they are looked for, and their functions by name.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_LIBRARY_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_LIBRARY_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace baton::gpu_check {

// Where a library is looked for, in this order; a place that is given is the only one.
struct LibraryPlaces {
  std::string name;         // "libcublasLt.so.13", as the loader knows it
  std::string flag;         // a path; empty: not given
  const char* environment;  // a variable with a path; null: there is none
  // Then the loader's path, and nvidia/*/lib beside the packages of this python, where the wheels
  // of CUDA lie; empty: not there.
  std::string python;
};

// An open library, for the life of the process.
struct Library {
  void* handle = nullptr;
  std::string path;  // as it was opened
};

// Unavailable with the loader's words, or saying where it was looked for.
absl::StatusOr<Library> OpenLibrary(const LibraryPlaces& places);

// A function that is looked up; `address` gets null when it is missing and may be.
struct Symbol {
  const char* name;
  void** address;
  bool is_required;
};
// Unavailable naming every required one that is missing.
absl::Status FindSymbols(const Library& library, std::span<const Symbol> symbols);

// Two steps, so that a name that a header renames is the symbol's.
#define BATON_SYMBOL_STRING(name) #name
#define BATON_SYMBOL_NAME(name) BATON_SYMBOL_STRING(name)

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_LIBRARY_H_
