// Libraries of others that are found at run time and never linked, so that one binary starts with
// or without them: where they are looked for, and their functions by name. Any thread.
#ifndef BATON_BASE_LIBRARY_H_
#define BATON_BASE_LIBRARY_H_

#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace baton {

// Where a user wants a library to be looked for.
struct LibrarySearch {
  // The file that a flag names; "": not given. When it is, nothing else is tried.
  std::string library;
  // After the loader's own path, nvidia/*/lib of these folders of Python packages is tried, where
  // the wheels of CUDA put libraries. PythonFolders() gives those of this machine.
  std::vector<std::string> python_folders = {};
};

// A library, and where it is looked for.
struct LibraryPlaces {
  std::string what;            // "NCCL", for errors
  std::string name;            // "libnccl.so.2", as the loader knows it
  const char* flag = nullptr;  // for errors: what names a file; null: nothing does
  // The variable that comes after the flag. Where it is set, nothing else is tried either.
  const char* environment = nullptr;
  LibrarySearch search = {};
};

// An open library, for the life of the process.
struct Library {
  void* handle = nullptr;
  std::string path;  // as it was opened
};

// The first one found; NotFound in one line that names every place with the loader's words.
StatusOr<Library> OpenLibrary(const LibraryPlaces& places);

// site-packages and dist-packages of $VIRTUAL_ENV, of ~/.local and of the system.
std::vector<std::string> PythonFolders();

// A function that is looked up; `address` gets null when it is missing.
struct LibraryFunction {
  const char* name;
  void** address;
  bool is_required = true;
};
// The names of required ones that are missing, "a, b"; "": all are there.
std::string FindFunctions(const Library& library, std::span<const LibraryFunction> functions);

// Two steps, so that a name that a header renames is the symbol's.
#define BATON_SYMBOL_STRING(name) #name
#define BATON_SYMBOL_NAME(name) BATON_SYMBOL_STRING(name)

}  // namespace baton

#endif  // BATON_BASE_LIBRARY_H_
