// The files that this process has open, for tests that wait until a thread of theirs has got
// somewhere.
#ifndef BATON_TESTS_MODEL_OPEN_FILES_H_
#define BATON_TESTS_MODEL_OPEN_FILES_H_

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

#include "tests/patience.h"

namespace baton::model {

// The descriptors that are of `path`, a canonical one.
inline size_t NumOpen(const std::string& path) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_meanwhile;
    count += std::filesystem::read_symlink(entry.path(), closed_meanwhile) == path ? 1 : 0;
  }
  return count;
}

// False after a limit that only a broken test reaches.
inline bool WaitUntilOpen(const std::string& path, size_t count) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60) * kPatienceFactor;
  while (NumOpen(path) < count) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_OPEN_FILES_H_
