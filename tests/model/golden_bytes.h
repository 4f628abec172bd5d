// The bytes of a golden model file, with changes that make a file to refuse.
#ifndef BATON_TESTS_MODEL_GOLDEN_BYTES_H_
#define BATON_TESTS_MODEL_GOLDEN_BYTES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/gguf.h"
#include "src/model/model_config.h"
#include "src/model/model_report.h"
#include "tests/model/test_model.h"

namespace baton::model {

inline std::vector<std::byte> BytesOfGolden(const std::string& name) {
  std::ifstream in(GoldenPath(name), std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// A golden file; each change is made in a copy of its bytes.
class GoldenBytes {
 public:
  explicit GoldenBytes(const std::string& name) : bytes_(BytesOfGolden(name)) {}

  // With `value` where `key` has its bytes, which follow its type and `num_skipped`.
  template <typename T>
  std::vector<std::byte> WithValue(std::string_view key, size_t num_skipped, T value) const {
    std::vector<std::byte> changed = bytes_;
    const size_t at = PlaceOf(key) + key.size() + sizeof(uint32_t) + num_skipped;
    std::memcpy(changed.data() + at, &value, sizeof(value));
    return changed;
  }
  // With `to` instead of the name `from`, of the same length.
  std::vector<std::byte> Renamed(std::string_view from, std::string_view to) const {
    std::vector<std::byte> changed = bytes_;
    std::memcpy(changed.data() + PlaceOf(from), to.data(), to.size());
    return changed;
  }
  // With one more key, and one that nobody reads, so that the tensors stay aligned.
  std::vector<std::byte> WithKey(std::string_view key, float value) const {
    constexpr size_t kNumKeysAt = 16;
    constexpr size_t kKeysAt = 24;
    constexpr size_t kAlignment = 32;
    std::string added;
    const auto add = [&added](std::string_view name, uint32_t type, const void* bytes,
                              size_t size) {
      const uint64_t length = name.size();
      added.append(reinterpret_cast<const char*>(&length), sizeof(length)).append(name);
      added.append(reinterpret_cast<const char*>(&type), sizeof(type));
      added.append(static_cast<const char*>(bytes), size);
    };
    add(key, /*F32*/ 6, &value, sizeof(value));
    std::string filler = "general.filler.";
    const size_t size = added.size() + sizeof(uint64_t) + filler.size() + sizeof(uint32_t) + 1;
    filler.append((kAlignment - size % kAlignment) % kAlignment, 'x');
    add(filler, /*U8*/ 0, "", 1);
    std::vector<std::byte> changed = bytes_;
    changed[kNumKeysAt] = static_cast<std::byte>(std::to_integer<int>(changed[kNumKeysAt]) + 2);
    const auto* begin = reinterpret_cast<const std::byte*>(added.data());
    changed.insert(changed.begin() + kKeysAt, begin, begin + added.size());
    return changed;
  }

 private:
  size_t PlaceOf(std::string_view text) const {
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    const auto at = std::search(bytes_.begin(), bytes_.end(), begin, begin + text.size());
    EXPECT_NE(at, bytes_.end()) << text;
    return static_cast<size_t>(at - bytes_.begin());
  }

  const std::vector<std::byte> bytes_;
};

// Such a file can be read, is not served, and one line with `words` says why.
inline void ExpectRefused(const std::vector<std::byte>& bytes, const std::string& words) {
  const auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status status = CheckServable(**file);
  EXPECT_FALSE(status.ok()) << words;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(words));
  EXPECT_EQ(status.message().find('\n'), std::string_view::npos);
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_GOLDEN_BYTES_H_
