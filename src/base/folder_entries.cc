#include "src/base/folder_entries.h"

#include <algorithm>

namespace baton {
namespace {

namespace fs = std::filesystem;

void WalkLevel(const fs::path& folder, int depth,
               const std::function<bool(const fs::directory_entry&)>& visit) {
  for (const fs::directory_entry& entry : FolderEntries(folder)) {
    const bool wants_contents = visit(entry);
    std::error_code error;
    const bool is_folder = fs::is_directory(entry.symlink_status(error)) && !error;
    if (wants_contents && is_folder && depth < kMaxFolderDepth) {
      WalkLevel(entry.path(), depth + 1, visit);
    }
  }
}

}  // namespace

std::vector<fs::directory_entry> FolderEntries(const fs::path& folder, std::error_code* error) {
  std::vector<fs::directory_entry> entries;
  std::error_code unread;
  fs::directory_iterator at(folder, unread);
  for (; !unread && at != fs::directory_iterator(); at.increment(unread)) entries.push_back(*at);
  if (error != nullptr) *error = unread;
  std::ranges::sort(entries, {}, [](const fs::directory_entry& entry) { return entry.path(); });
  return entries;
}

void WalkFolder(const fs::path& folder,
                const std::function<bool(const fs::directory_entry&)>& visit) {
  WalkLevel(folder, 1, visit);
}

}  // namespace baton
