// A folder of files for targets whose code opens files by name; gone when the process ends in
// order.
#ifndef BATON_TESTS_FUZZ_SCRATCH_FOLDER_H_
#define BATON_TESTS_FUZZ_SCRATCH_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "src/base/check.h"

namespace baton::fuzz {

// See the file comment. Below TMPDIR, which scripts/fuzz.sh puts into memory.
class ScratchFolder {
 public:
  ScratchFolder() {
    const char* const base = std::getenv("TMPDIR");
    path_ = std::string(base != nullptr ? base : "/tmp") + "/baton-fuzz-XXXXXX";
    BATON_CHECK(mkdtemp(path_.data()) != nullptr, "no folder {}", path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // Writes a file, or takes it away when there is no text.
  void Put(std::string_view name, std::string_view text) const {
    const std::string path = PathOf(name);
    if (text.empty()) {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
      return;
    }
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
  }
  std::string PathOf(std::string_view name) const { return path_ + "/" + std::string(name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace baton::fuzz

#endif  // BATON_TESTS_FUZZ_SCRATCH_FOLDER_H_
