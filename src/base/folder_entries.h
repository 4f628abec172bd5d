// Lists what lies in a folder, without exceptions. A range-for over std::filesystem throws in
// operator++, even when the constructor was given an error code; these functions never throw. Any
// thread.
#ifndef BATON_BASE_FOLDER_ENTRIES_H_
#define BATON_BASE_FOLDER_ENTRIES_H_

#include <filesystem>
#include <functional>
#include <system_error>
#include <vector>

namespace baton {

// The entries of `folder`, sorted by path. A folder that cannot be read has none; where reading
// breaks off, those that were read. `error`, where given, says why there may be more.
std::vector<std::filesystem::directory_entry> FolderEntries(const std::filesystem::path& folder,
                                                            std::error_code* error = nullptr);

// Calls `visit` with each entry below `folder`, a folder before its contents; entries of one folder
// in the order of their paths. Goes into a folder for which `visit` returns true, never through a
// link, and passes over folders that cannot be read. At most kMaxFolderDepth levels deep.
inline constexpr int kMaxFolderDepth = 32;
void WalkFolder(const std::filesystem::path& folder,
                const std::function<bool(const std::filesystem::directory_entry&)>& visit);

}  // namespace baton

#endif  // BATON_BASE_FOLDER_ENTRIES_H_
