// The bit model of Hopper's tensor cores against what an H100 gave, by mma.sync and by wgmma:
// tests/golden/tensor_core_h100.golden, whose format is at its head.
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/simt/tensor_core.h"
#include "tests/kernels/gpu_check/mma_vectors.h"
#include "tests/kernels/gpu_check/primitives.h"
#include "tests/kernels/gpu_check/report.h"
#include "tests/kernels/simt/wgmma_kernels.h"

namespace baton::kernels::gpu_check {
namespace {

struct Element {
  size_t index = 0;
  simt::Bf16 a[16];
  simt::Bf16 b[16];
  uint32_t c = 0;
  uint32_t d = 0;
};

struct RecordedCheck {
  std::string name;
  std::string drawn;
  size_t num_words = 0;
  std::string digest_in;
  std::string digest_out;
  std::vector<Element> elements;
};

Element ParseElement(const std::string& line) {
  std::istringstream in(line);
  Element element;
  std::string a;
  std::string b;
  in >> element.index >> a >> b >> std::hex >> element.c >> element.d;
  const auto half = [](const std::string& text, size_t i) {
    return static_cast<uint16_t>(std::strtoul(text.substr(4 * i, 4).c_str(), nullptr, 16));
  };
  for (size_t i = 0; i < 16; ++i) {
    element.a[i] = {half(a, i)};
    element.b[i] = {half(b, i)};
  }
  return element;
}

std::vector<RecordedCheck> ReadChecks() {
  const char* root = std::getenv("BATON_SOURCE_DIR");
  std::ifstream file(std::string(root == nullptr ? "." : root) +
                     "/tests/golden/tensor_core_h100.golden");
  std::vector<RecordedCheck> checks;
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("check ")) checks.push_back({.name = line.substr(6)});
    if (line.starts_with("drawn ")) checks.back().drawn = line.substr(6);
    if (line.starts_with("words ")) {
      RecordedCheck& check = checks.back();
      std::string word;
      std::istringstream(line) >> word >> check.num_words >> word >> check.digest_in >> word >>
          check.digest_out;
    }
    if (line[0] >= '0' && line[0] <= '9') checks.back().elements.push_back(ParseElement(line));
  }
  return checks;
}

// The operands as tiles of the mma primitive, from how they were drawn: "MmaInputs(wide, 32, 2)"
// or "MmaGrid(wide, 128, 22)" with something around it. `columns` of a wgmma, else 0.
struct Operands {
  std::vector<uint32_t> tiles;
  uint32_t columns = 0;
};

Operands DrawAgain(const std::string& drawn) {
  const auto numbers = drawn.find(", ");
  const auto kind_at = drawn.rfind('(', numbers) + 1;
  const std::string kind_name = drawn.substr(kind_at, numbers - kind_at);
  char* end = nullptr;
  const auto count = static_cast<uint32_t>(std::strtoul(&drawn[numbers + 2], &end, 10));
  const uint64_t seed = std::strtoull(end + 2, nullptr, 10);
  for (const MmaKind kind : kMmaKinds) {
    if (kind_name != MmaKindName(kind)) continue;
    if (drawn.starts_with("Wgmma")) return {MmaGrid(kind, count, seed), count};
    const std::vector<uint32_t> inputs = MmaInputs(kind, count, seed);
    return {drawn.starts_with("MmaExchanged") ? MmaExchanged(inputs) : inputs, 0};
  }
  return {};
}

// The model's result of a check: all words in the order of the GPU's.
std::vector<uint32_t> Compute(const RecordedCheck& check, Operands operands) {
  std::vector<uint32_t>& tiles = operands.tiles;
  const auto set_c = [&tiles](const auto& value_of) {
    for (size_t i = 0; i < tiles.size() / kMmaWords * kWordsC; ++i) {
      tiles[i / kWordsC * kMmaWords + kWordsA + kWordsB + i % kWordsC] = value_of(i);
    }
  };
  if (check.name.ends_with(" from zero")) set_c([](size_t) { return 0; });
  std::vector<uint32_t> d = MmaModel(simt::TensorCore::kHopper, tiles);
  const uint32_t num_products = check.name == "wgmma chain" ? simt_test::kChainProducts : 1;
  for (uint32_t i = 1; i < num_products; ++i) {
    set_c([&d](size_t at) { return d[at]; });
    d = MmaModel(simt::TensorCore::kHopper, tiles);
  }
  return operands.columns == 0 ? d : WgmmaOutputs(d, operands.columns);
}

TEST(TensorCoreGolden, TheModelGivesEveryWordThatAnH100Gave) {
  size_t num_words = 0;
  for (const RecordedCheck& check : ReadChecks()) {
    const Operands operands = DrawAgain(check.drawn);
    const auto in =
        operands.columns == 0 ? operands.tiles : WgmmaInputs(operands.tiles, operands.columns);
    ASSERT_EQ(DigestOf(in), check.digest_in) << check.drawn;
    const std::vector<uint32_t> out = Compute(check, operands);
    EXPECT_EQ(out.size(), check.num_words) << check.name;
    EXPECT_EQ(DigestOf(out), check.digest_out) << check.name;
    for (const Element& element : check.elements) {
      EXPECT_EQ(out[element.index], element.d) << check.name << " " << element.index;
    }
    num_words += check.num_words;
  }
  EXPECT_EQ(num_words, 897024u);
}

// Elements that are kept whole need no generator.
TEST(TensorCoreGolden, TheModelGivesTheElementsThatAreKeptWhole) {
  size_t num_elements = 0;
  for (const RecordedCheck& check : ReadChecks()) {
    for (const Element& element : check.elements) {
      const float d = simt::DotBf16(simt::TensorCore::kHopper, element.a, element.b,
                                    std::bit_cast<float>(element.c));
      EXPECT_EQ(std::bit_cast<uint32_t>(d), element.d) << check.name << " " << element.index;
      ++num_elements;
    }
  }
  EXPECT_EQ(num_elements, 2221u);
}

}  // namespace
}  // namespace baton::kernels::gpu_check
