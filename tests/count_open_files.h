// How many descriptors this process has open, for tests that look for one that is left.
#ifndef BATON_TESTS_COUNT_OPEN_FILES_H_
#define BATON_TESTS_COUNT_OPEN_FILES_H_

#include <dirent.h>

#include <cstddef>

namespace baton {

// Entries of /proc/self/fd, two of which are "." and "..".
inline size_t CountOpenFiles() {
  DIR* const folder = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

}  // namespace baton

#endif  // BATON_TESTS_COUNT_OPEN_FILES_H_
