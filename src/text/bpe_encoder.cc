#include "src/text/bpe_encoder.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

#include "src/base/log.h"
#include "src/text/byte_letters.h"
#include "src/text/hf_library.h"

namespace baton {
namespace {

using TokenIndex = absl::flat_hash_map<std::string_view, uint32_t>;

bool IsReachableFromText(TokenType type) {
  return type == TokenType::kNormal || type == TokenType::kByte || type == TokenType::kUserDefined;
}

// Two tokens and what they become.
struct Merge {
  uint32_t left = 0;
  uint32_t right = 0;
  uint32_t result = 0;
};

StatusOr<Merge> ParseMerge(std::string_view text, size_t rank, const TokenIndex& index) {
  const auto id_of = [&](std::string_view token) -> StatusOr<uint32_t> {
    const auto found = index.find(token);
    if (found != index.end()) return found->second;
    return InvalidArgument("tokenizer.ggml.merges[{}] is \"{}\", but \"{}\" is not a token", rank,
                           text, token);
  };
  // From 1: the left part may itself begin with a space.
  const size_t space = text.find(' ', 1);
  if (space == std::string_view::npos || space + 1 == text.size()) {
    return InvalidArgument("tokenizer.ggml.merges[{}] is \"{}\", not two tokens and a space", rank,
                           text);
  }
  const std::string_view left = text.substr(0, space);
  const std::string_view right = text.substr(space + 1);
  Merge merge;
  BATON_ASSIGN_OR_RETURN(merge.left, id_of(left));
  BATON_ASSIGN_OR_RETURN(merge.right, id_of(right));
  BATON_ASSIGN_OR_RETURN(merge.result, id_of(std::string(left) + std::string(right)));
  return merge;
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
  vocabulary.ignore_merges = pre_tokenizer.ignore_merges;
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
  absl::flat_hash_set<uint64_t> seen;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    BATON_ASSIGN_OR_RETURN(const Merge merge, ParseMerge(spec.merges[rank], rank, index));
    const bool reachable = IsReachableFromText(types[merge.left]) &&
                           IsReachableFromText(types[merge.right]) &&
                           IsReachableFromText(types[merge.result]);
    if (!reachable) continue;
    if (!seen.insert(uint64_t{merge.left} << 32 | merge.right).second) continue;
    vocabulary.merges.push_back(merge.left);
    vocabulary.merges.push_back(merge.right);
  }
  LogMissingBytes(index, types);
  BATON_ASSIGN_OR_RETURN(hf::Bpe bpe, hf::Bpe::Create(vocabulary));
  return std::make_unique<BpeEncoder>(std::move(bpe));
}

}  // namespace baton
