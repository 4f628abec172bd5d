// The strings of tests/golden and the hashes that stand for ids and texts there.
#ifndef BATON_TESTS_TEXT_GOLDEN_FILE_H_
#define BATON_TESTS_TEXT_GOLDEN_FILE_H_

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

#include "src/base/ids.h"
#include "tests/model/test_model.h"

namespace baton::text {

inline nlohmann::json ReadGolden(const std::string& name) {
  std::ifstream file(model::GoldenPath(name));
  return nlohmann::json::parse(file);
}

// FNV-1a, 32 bits, over numbers as little-endian u32 (the scripts' fnv1a).
template <class Numbers>
uint32_t HashOfNumbers(const Numbers& numbers) {
  uint32_t hash = 0x811c9dc5;
  for (const auto number : numbers) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ ((static_cast<uint32_t>(number) >> shift) & 0xff)) * 0x01000193;
    }
  }
  return hash;
}

inline uint32_t HashOf(const std::vector<TokenId>& ids) { return HashOfNumbers(ids); }

inline uint32_t HashOf(std::string_view text) {
  return HashOfNumbers(std::vector<uint8_t>(text.begin(), text.end()));
}

// The strings that spm_golden.json and folder_golden.json have hashes of.
inline const std::vector<std::string>& HardStrings() {
  static const std::vector<std::string> strings = [] {
    std::vector<std::string> all;
    const nlohmann::json golden = ReadGolden("tokenizer_golden.json");
    for (const nlohmann::json& entry : golden["cases"]) all.push_back(entry["text"]);
    const nlohmann::json spm = ReadGolden("spm_golden.json");
    for (const nlohmann::json& extra : spm["extra"]) all.push_back(extra);
    return all;
  }();
  return strings;
}

}  // namespace baton::text

#endif  // BATON_TESTS_TEXT_GOLDEN_FILE_H_
