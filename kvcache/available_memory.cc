#include "kvcache/available_memory.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include "src/base/regular_file.h"

namespace baton::kv {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// The number that follows `key` at the start of a line ("MemAvailable:   123 kB", "inactive_file
// 7").
std::optional<uint64_t> NumberAfter(std::string_view text, std::string_view key) {
  size_t line = 0;
  while (line < text.size() && text.substr(line, key.size()) != key) {
    line = text.find('\n', line);
    if (line == std::string_view::npos) return std::nullopt;
    ++line;
  }
  if (line >= text.size()) return std::nullopt;
  const size_t digit = text.find_first_of("0123456789", line + key.size());
  if (digit == std::string_view::npos) return std::nullopt;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + digit, text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// The number a control file holds; nothing for "max" or a file that is not there.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadSystemFile(path);
  if (!text.has_value()) return std::nullopt;
  return NumberAfter(*text, "");
}

// Names of the control files of one cgroup version.
struct MemoryController {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* inactive_key;
  const char* active_key;
};

constexpr MemoryController kVersion2{"/sys/fs/cgroup", "memory.max", "memory.current",
                                     "inactive_file ", "active_file "};
constexpr MemoryController kVersion1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                     "memory.usage_in_bytes", "total_inactive_file ",
                                     "total_active_file "};

// Bytes that one group leaves free; kNoLimit when it sets no limit.
uint64_t RoomInGroup(const std::string& folder, const MemoryController& controller) {
  const std::optional<uint64_t> limit = ReadNumber(folder + "/" + controller.limit);
  const std::optional<uint64_t> usage = ReadNumber(folder + "/" + controller.usage);
  if (!limit.has_value() || !usage.has_value()) return kNoLimit;
  const std::string stat = ReadSystemFile(folder + "/memory.stat").value_or("");
  const uint64_t cache = NumberAfter(stat, controller.inactive_key).value_or(0) +
                         NumberAfter(stat, controller.active_key).value_or(0);
  const uint64_t used = *usage - std::min(*usage, cache);
  return *limit - std::min(*limit, used);
}

// The least room of the group `path` and its ancestors. Inside a container the path may not exist
// in the mounted tree; the mount itself is then the container's own group.
uint64_t RoomInAncestors(const std::string& root, std::string path,
                         const MemoryController& controller) {
  const std::string mount = root + controller.mount;
  uint64_t room = RoomInGroup(mount, controller);
  while (path.size() > 1) {
    room = std::min(room, RoomInGroup(mount + path, controller));
    path.resize(path.rfind('/'));
  }
  return room;
}

}  // namespace

StatusOr<uint64_t> AvailableMemoryBytes(const std::string& root) {
  const std::optional<std::string> meminfo = ReadSystemFile(root + "/proc/meminfo");
  const std::optional<uint64_t> available_kib = NumberAfter(meminfo.value_or(""), "MemAvailable:");
  if (!available_kib.has_value()) {
    return Unavailable("{}/proc/meminfo has no MemAvailable line", root);
  }
  uint64_t room = *available_kib * 1024;
  std::istringstream groups(ReadSystemFile(root + "/proc/self/cgroup").value_or(""));
  std::string line;
  while (std::getline(groups, line)) {
    // "0::/path" is version 2; "7:memory:/path" is version 1.
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (path.empty() || path.front() != '/') continue;
    if (names.empty()) room = std::min(room, RoomInAncestors(root, path, kVersion2));
    if (names == "memory") room = std::min(room, RoomInAncestors(root, path, kVersion1));
  }
  return room;
}

}  // namespace baton::kv
