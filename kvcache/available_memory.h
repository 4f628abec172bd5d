// How much memory this process may still allocate. Reads /proc and /sys; any thread.
#ifndef BATON_KVCACHE_AVAILABLE_MEMORY_H_
#define BATON_KVCACHE_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

#include "src/base/status.h"

namespace baton::kv {

// Bytes that are available: the smaller of MemAvailable and what the memory limits of this
// process's control groups leave (v2 and v1, every ancestor). Page cache that can be dropped counts
// as free. Unavailable when /proc/meminfo cannot be read. `root` is the file system's root, another
// folder in tests.
StatusOr<uint64_t> AvailableMemoryBytes(const std::string& root = "");

}  // namespace baton::kv

#endif  // BATON_KVCACHE_AVAILABLE_MEMORY_H_
