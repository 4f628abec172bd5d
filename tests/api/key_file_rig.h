// A file of API keys in a folder of its own.
#ifndef BATON_TESTS_API_KEY_FILE_RIG_H_
#define BATON_TESTS_API_KEY_FILE_RIG_H_

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "src/api/key_file.h"
#include "src/base/hex.h"
#include "src/base/random.h"

namespace baton::api {

// One entry; `more`: its other lines.
inline std::string KeyEntry(std::string_view tenant, std::string_view key,
                            std::string_view more = "") {
  std::string text = "- tenant: " + std::string(tenant) + "\n  sha256: ";
  text += HexFromBytes(DigestOfKey(key)) + "\n";
  if (!more.empty()) text += "  " + std::string(more) + "\n";
  return text;
}

class TestKeyFile {
 public:
  explicit TestKeyFile(const std::string& text = "") {
    std::filesystem::create_directories(folder_);
    Write(text);
  }
  ~TestKeyFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  TestKeyFile(const TestKeyFile&) = delete;

  // As editors and Kubernetes do: another file takes the name.
  void Write(const std::string& text) const {
    const std::string next = path() + ".next";
    std::ofstream(next, std::ios::binary) << text;
    std::filesystem::rename(next, path());
  }
  std::string path() const { return (folder_ / "keys.yaml").string(); }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("baton_keys_" + RandomRequestUid().ToHex());
};

}  // namespace baton::api

#endif  // BATON_TESTS_API_KEY_FILE_RIG_H_
