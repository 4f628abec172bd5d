// A model that needs no file: its tokens are the 256 bytes, then a few control tokens, so a test
// can say what text a token has.
#ifndef BATON_TESTS_ROUTER_TEST_MODEL_H_
#define BATON_TESTS_ROUTER_TEST_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include "src/router/submit.h"
#include "src/text/byte_letters.h"
#include "src/text/chat_template.h"
#include "src/text/grammar_cache.h"
#include "src/text/tokenizer.h"

namespace baton::router {

inline constexpr TokenId kTestEos = 256;
inline constexpr uint32_t kTestVocab = 259;
inline constexpr uint32_t kTestContext = 512;

inline text::TokenizerSpec TestSpec() {
  text::TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    spec.tokens.push_back(text::ByteLetter(static_cast<uint8_t>(byte)));
    spec.token_types.push_back(static_cast<int32_t>(text::TokenType::kNormal));
  }
  for (const char* name : {"<eos>", "<user>", "<assistant>"}) {
    spec.tokens.emplace_back(name);
    spec.token_types.push_back(static_cast<int32_t>(text::TokenType::kControl));
  }
  spec.eos_id = kTestEos;
  spec.chat_template =
      "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
      "<user>{{ m.role[0] }}:{{ m.content }}{% endfor %}<assistant>";
  return spec;
}

// Built once; the same object for every test of a binary.
inline std::shared_ptr<const ModelInfo> TestModel() {
  static const std::shared_ptr<const ModelInfo> model = [] {
    auto info = std::make_shared<ModelInfo>();
    info->id = "toy";
    info->created_unix_s = 1'700'000'000;
    info->max_context = kTestContext;
    info->vocab_size = kTestVocab;
    const text::TokenizerSpec spec = TestSpec();
    info->tokenizer = text::Tokenizer::Create(spec).value();
    info->grammars = std::make_shared<text::GrammarCache>(info->tokenizer);
    info->chat_template = std::make_shared<const text::ChatTemplate>(
        text::ChatTemplate::Create(spec.chat_template, "", "<eos>").value());
    return info;
  }();
  return model;
}

// The tokens of a text: its bytes.
inline std::vector<TokenId> BytesOf(std::string_view text) {
  std::vector<TokenId> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

}  // namespace baton::router

#endif  // BATON_TESTS_ROUTER_TEST_MODEL_H_
