// Tokenizers for tests: the demo model's, and small ones made up here.
#ifndef BATON_TESTS_TEXT_TEST_SPEC_H_
#define BATON_TESTS_TEXT_TEST_SPEC_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "src/model/gguf.h"
#include "src/model/tokenizer_metadata.h"
#include "src/text/byte_letters.h"
#include "src/text/spec_from_metadata.h"
#include "src/text/tokenizer.h"
#include "src/text/tokenizer_spec.h"
#include "tests/model/test_model.h"
#include "tests/test_seed.h"

namespace baton::text {

// The demo model's tokenizer metadata; read once.
inline const TokenizerSpec& DemoSpec() {
  static const TokenizerSpec spec = [] {
    const auto file = model::GgufFile::Open(model::DemoModelPath());
    if (!file.ok()) {
      std::cerr << "the demo model is needed: " << file.status() << "\n";
      std::abort();
    }
    const auto metadata = model::ReadTokenizerMetadata(**file);
    if (!metadata.ok()) {
      std::cerr << metadata.status() << "\n";
      std::abort();
    }
    return TokenizerSpecFrom(*metadata);
  }();
  return spec;
}

// The demo model's tokenizer; built once.
inline const Tokenizer& DemoTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Create(DemoSpec()).value();
  return *tokenizer;
}

// A vocabulary of the 256 byte letters (id = byte), then "ab" = 256 with its merge.
inline TokenizerSpec ByteSpec() {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    spec.tokens.push_back(ByteLetter(static_cast<uint8_t>(byte)));
  }
  spec.tokens.push_back("ab");
  spec.merges = {"a b"};
  spec.token_types.assign(spec.tokens.size(), 1);
  return spec;
}

// Appends a token; its id.
inline TokenId AddToken(TokenizerSpec& spec, std::string_view text, TokenType type) {
  spec.tokens.emplace_back(text);
  spec.token_types.push_back(static_cast<int32_t>(type));
  return static_cast<TokenId>(spec.tokens.size() - 1);
}

// Random texts from a seed.
class RandomText {
 public:
  explicit RandomText(uint64_t seed) : random_(seed) {}

  // Uniform in [0, n).
  size_t Below(size_t n) { return random_.Below(static_cast<uint32_t>(n)); }

  // A string of 0..max_parts elements of `parts`.
  std::string Join(const std::vector<std::string>& parts, size_t max_parts) {
    std::string text;
    for (size_t n = Below(max_parts + 1); n > 0; --n) text += parts[Below(parts.size())];
    return text;
  }

  // 0..max_bytes bytes that often are nearly UTF-8.
  std::string NearlyUtf8(size_t max_bytes) {
    static const std::vector<std::string> parts = {
        "a",        "Z ",           "\n",          "é",        "中",       "😀",        "\xC3",
        "\xE4\xB8", "\xF0\x9F",     "\x80",        "\xED\xA0", "\xF4\x90", "\xC0\xAF", "\xFF",
        "\xE0\x80", "\xF0\x9F\x98", "\xEF\xBF\xBD"};
    std::string text = Join(parts, max_bytes);
    if (Below(4) == 0) text.push_back(static_cast<char>(Below(256)));
    return text.substr(0, max_bytes);
  }

 private:
  TestRandom random_;
};

// The tokenizer of a spec that must be good.
inline std::unique_ptr<Tokenizer> MakeTokenizer(const TokenizerSpec& spec) {
  auto tokenizer = Tokenizer::Create(spec);
  if (!tokenizer.ok()) {
    ADD_FAILURE() << tokenizer.status();
    std::abort();
  }
  return *std::move(tokenizer);
}

}  // namespace baton::text

#endif  // BATON_TESTS_TEXT_TEST_SPEC_H_
