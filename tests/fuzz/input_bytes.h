// How targets read their input: numbers drawn from its front, files cut out of it, and the same
// bytes in many pieces. Pure.
#ifndef BATON_TESTS_FUZZ_INPUT_BYTES_H_
#define BATON_TESTS_FUZZ_INPUT_BYTES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/check.h"
#include "src/base/status.h"
#include "src/base/xxh3.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/test_seed.h"

namespace baton::fuzz {

inline std::string_view TextOf(Input input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

// Draws from the front of an input; zeros once it is used up.
class ByteSource {
 public:
  explicit ByteSource(Input input) : rest_(input) {}

  bool empty() const { return rest_.empty(); }
  Input rest() const { return rest_; }

  // At most `size` bytes.
  Input Take(size_t size) {
    const Input taken = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  // Little-endian.
  template <typename T>
  T Draw() {
    const Input bytes = Take(sizeof(T));
    T value{};
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  uint8_t U8() { return Draw<uint8_t>(); }
  uint32_t U32() { return Draw<uint32_t>(); }
  uint64_t U64() { return Draw<uint64_t>(); }
  // In [0, end); end in [1, 256].
  uint32_t Below(uint32_t end) { return U8() % end; }
  bool Flag() { return (U8() & 1) != 0; }

 private:
  Input rest_;
};

// Stands between the files of an input that holds several.
inline constexpr std::string_view kNextFile = "\n%%%%\n";

// Exactly `num_files` texts, the missing ones empty; the last takes all that is left.
inline std::vector<std::string_view> CutFiles(Input input, size_t num_files) {
  std::vector<std::string_view> files;
  std::string_view rest = TextOf(input);
  while (files.size() + 1 < num_files) {
    const size_t end = rest.find(kNextFile);
    files.push_back(rest.substr(0, end));
    rest = end == std::string_view::npos ? "" : rest.substr(end + kNextFile.size());
  }
  files.push_back(rest);
  return files;
}

// `text` cut into pieces of 1 to `max_piece` bytes; where, follows from the text.
inline std::vector<std::string_view> CutPieces(std::string_view text, size_t max_piece) {
  TestRandom random(Xxh3Hash64(text) + max_piece);
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t size =
        std::min<size_t>(1 + random.Below(static_cast<uint32_t>(max_piece)), text.size());
    pieces.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

// A refusal says why, in one line.
inline void CheckRefusal(const Status& status) {
  const std::string_view message(status.message().data(), status.message().size());
  BATON_CHECK(!status.ok() && !message.empty(), "a refusal without a word, code {}",
              static_cast<int>(status.code()));
  BATON_CHECK(message.find('\n') == std::string_view::npos, "a refusal of several lines: {}",
              message);
}

}  // namespace baton::fuzz

#endif  // BATON_TESTS_FUZZ_INPUT_BYTES_H_
