// tokenizer.json and its neighbours: tokenizer.json, tokenizer_config.json, generation_config.json,
// config.json, a text to encode. An accepted tokenizer goes through the Rust library's C ABI.
#include <algorithm>

#include "src/text/folder_tokenizer.h"
#include "src/text/tokenizer_json.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"
#include "tests/fuzz/tokenizer_checks.h"

namespace baton::fuzz {

using text::TokenizerJson;

namespace {

// The number of tokens that the file asks for, so that inputs need not guess it; 0 = none.
size_t CountTokens(const TokenizerJson& json) {
  size_t num_tokens = 0;
  for (const auto& [token, id] : json.vocabulary) {
    num_tokens = std::max(num_tokens, size_t{id} + 1);
  }
  const auto added = json.tree.find("added_tokens");
  if (added == json.tree.end() || !added->is_array()) return num_tokens;
  for (const auto& entry : *added) {
    const auto id = entry.is_object() ? entry.find("id") : entry.end();
    if (!entry.is_object() || id == entry.end() || !id->is_number_unsigned()) continue;
    num_tokens = std::max<size_t>(num_tokens, id->get<uint64_t>() + 1);
  }
  return num_tokens;
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(tokenizer_json) {
  using namespace baton;        // NOLINT: the whole target
  using namespace baton::text;  // NOLINT
  using namespace baton::fuzz;  // NOLINT
  const auto parts = CutFiles(input, 5);
  FolderTokenizerFiles files;
  files.tokenizer_json = parts[0];
  files.tokenizer_config_json = parts[1];
  files.generation_config_json = parts[2];
  files.config_json = parts[3];
  const auto json = ParseTokenizerJson(files.tokenizer_json);
  if (!json.ok()) CheckRefusal(json.status());
  // A model has at most as many rows as the specs that its worker may send.
  const size_t vocab_size = json.ok() ? std::min(CountTokens(*json), kMaxSpecTokens) : 1;
  const auto spec = TokenizerSpecFromFolder(files, vocab_size);
  if (!spec.ok()) return CheckRefusal(spec.status());
  BATON_CHECK(json.ok(), "a file that is no JSON gave a tokenizer");
  BATON_CHECK(spec->tokens.size() == vocab_size, "{} tokens for {} rows", spec->tokens.size(),
              vocab_size);
  CheckTokenizerSpec(*spec, parts[4]);
}
