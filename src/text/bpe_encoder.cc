#include "src/text/bpe_encoder.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/log.h"
#include "src/text/byte_letters.h"
#include "src/text/hf_library.h"
#include "src/text/merge_list.h"

namespace baton::text {
namespace {

bool IsReachableFromText(TokenType type) {
  return type == TokenType::kNormal || type == TokenType::kByte || type == TokenType::kUserDefined;
}

void LogMissingBytes(const TokenIndex& index, std::span<const TokenType> types) {
  std::string missing;
  for (int byte = 0; byte < 256; ++byte) {
    // These never occur in UTF-8 (RFC 3629, section 1).
    if (byte == 0xc0 || byte == 0xc1 || byte >= 0xf5) continue;
    const auto found = index.find(ByteLetter(static_cast<uint8_t>(byte)));
    if (found == index.end() || !IsReachableFromText(types[found->second])) {
      missing += fmt::format(" {:02x}", byte);
    }
  }
  if (!missing.empty()) BATON_LOG_DEBUG("no token for the bytes{}: text loses them", missing);
}

// The PieceEncoder over the Rust BPE.
class BpeEncoder : public PieceEncoder {
 public:
  explicit BpeEncoder(hf::Bpe bpe) : bpe_(std::move(bpe)) {}

  Status Encode(std::string_view text, std::vector<TokenId>* out) const override {
    return bpe_.Encode(text, out);
  }

 private:
  hf::Bpe bpe_;
};

}  // namespace

StatusOr<std::unique_ptr<PieceEncoder>> CreateBpeEncoder(const TokenizerSpec& spec,
                                                         std::span<const TokenType> types,
                                                         const PreTokenizer& pre_tokenizer) {
  hf::BpeVocabulary vocabulary;
  vocabulary.patterns = pre_tokenizer.patterns;
  vocabulary.ignore_merges = spec.ignore_merges.value_or(pre_tokenizer.ignore_merges);
  TokenIndex index;
  index.reserve(spec.tokens.size());
  for (uint32_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string& token = spec.tokens[id];
    if (token.empty()) continue;
    index.emplace(token, id);
    if (!IsReachableFromText(types[id])) continue;
    vocabulary.token_text += token;
    vocabulary.token_ends.push_back(static_cast<uint32_t>(vocabulary.token_text.size()));
    vocabulary.token_ids.push_back(id);
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<MergeRule> merges, ReadMerges(spec, index));
  for (const MergeRule& merge : merges) {
    const bool reachable = IsReachableFromText(types[merge.left]) &&
                           IsReachableFromText(types[merge.right]) &&
                           IsReachableFromText(types[merge.result]);
    if (!reachable) continue;
    vocabulary.merges.push_back(merge.left);
    vocabulary.merges.push_back(merge.right);
  }
  LogMissingBytes(index, types);
  BATON_ASSIGN_OR_RETURN(hf::Bpe bpe, hf::Bpe::Create(vocabulary));
  return std::make_unique<BpeEncoder>(std::move(bpe));
}

}  // namespace baton::text
