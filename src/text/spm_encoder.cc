#include "src/text/spm_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

#include "src/base/hex.h"
#include "src/base/quoted_text.h"
#include "src/text/merge_list.h"
#include "src/text/utf8.h"

namespace baton::text {
namespace {

constexpr TokenId kNoToken = -1;
constexpr uint32_t kNone = UINT32_MAX;

// A run of characters that has been joined so far, as a list node.
struct Symbol {
  uint32_t begin = 0;  // in the text
  uint32_t size = 0;   // 0: swallowed by its left neighbour
  uint32_t prev = kNone;
  uint32_t next = kNone;
  TokenId id = kNoToken;  // kNoToken: a character that is no token
};

// The result of joining two symbols.
struct Join {
  uint32_t rank = 0;  // lower first
  TokenId id = kNoToken;
};

// A possible join in the queue. It is stale when the symbols at `left` no longer make `id`.
struct Candidate {
  uint32_t rank = 0;
  uint32_t left = 0;  // symbol; ascending with the text
  TokenId id = kNoToken;
  uint32_t size = 0;  // bytes of both symbols
};

// Orders a heap: the lowest rank on top, of equals the leftmost.
bool IsWorse(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

// An unused token's two halves.
struct Split {
  Symbol left;
  Symbol right;
};

// The memory that one call of Encode needs; reused from one part of the text to the next.
struct Scratch {
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  absl::flat_hash_map<TokenId, Split> splits;
};

// Two neighbouring characters as one number.
uint64_t Adjacent(std::string_view left, std::string_view right) {
  const auto pack = [](std::string_view character) {
    uint64_t value = 0;
    for (const char c : character) value = value << 8 | static_cast<uint8_t>(c);
    return value;
  };
  return pack(left) << 32 | pack(right);
}

// The encoder. Immutable after Build.
class SpmEncoder : public PieceEncoder {
 public:
  Status Build(const TokenizerSpec& spec, std::span<const TokenType> types) {
    BATON_RETURN_IF_ERROR(ReadBytes(spec, types));
    const bool by_merges = spec.model == kGemma4Model;
    if (!by_merges && !spec.scores.empty()) return ReadScores(spec, types);
    if (!spec.merges.empty()) return ReadMergeRanks(spec, types);
    return InvalidArgument(
        "tokenizer.ggml.model \"{}\" needs tokenizer.ggml.{}", spec.model,
        by_merges ? "merges, which are absent" : "scores or merges, both are absent");
  }

  Status Encode(std::string_view text, std::vector<TokenId>* out) const override {
    Scratch scratch;
    out->reserve(out->size() + text.size() / 4 + 1);
    std::string_view rest = text;
    while (!rest.empty()) {
      const size_t size = PartSize(rest);
      EncodePart(rest.substr(0, size), scratch, out);
      rest.remove_prefix(size);
    }
    return OkStatus();
  }

 private:
  // One token as its text in plain spaces.
  struct Entry {
    std::string_view text;
    TokenId id;
    float score;
  };

  Status ReadBytes(const TokenizerSpec& spec, std::span<const TokenType> types) {
    for (size_t id = 0; id < types.size(); ++id) {
      if (types[id] != TokenType::kByte) continue;
      const int byte = ByteOfToken(spec.tokens[id]);
      if (byte < 0) {
        return InvalidArgument("tokenizer.ggml.tokens[{}] is a byte, but {} is not <0x00>..", id,
                               QuotedForMessage(spec.tokens[id]));
      }
      byte_ids_[byte] = static_cast<TokenId>(id);
    }
    return OkStatus();
  }

  // Copies the texts of the tokens that text can become into text_, and indexes them.
  template <class Includes>
  std::vector<Entry> IndexTokens(const TokenizerSpec& spec, const Includes& includes) {
    std::vector<std::pair<size_t, TokenId>> ends;
    for (size_t id = 0; id < spec.tokens.size(); ++id) {
      // Text has no plain space before it gets here, so no token with one can come of it.
      const bool reachable = includes(id) && spec.tokens[id].find(' ') == std::string::npos;
      if (!reachable || spec.tokens[id].empty()) continue;
      text_ += WithPlainSpaces(spec.tokens[id]);
      ends.emplace_back(text_.size(), static_cast<TokenId>(id));
    }
    std::vector<Entry> entries;
    size_t begin = 0;
    for (const auto& [end, id] : ends) {
      const std::string_view text = std::string_view(text_).substr(begin, end - begin);
      entries.push_back({text, id, spec.scores.empty() ? 0.0F : spec.scores[id]});
      max_size_ = std::max(max_size_, text.size());
      begin = end;
    }
    return entries;
  }

  Status ReadScores(const TokenizerSpec& spec, std::span<const TokenType> types) {
    for (size_t id = 0; id < spec.scores.size(); ++id) {
      if (std::isnan(spec.scores[id])) {
        return InvalidArgument("tokenizer.ggml.scores[{}] is not a number", id);
      }
    }
    std::vector<Entry> entries = IndexTokens(spec, [&types](size_t id) {
      return types[id] == TokenType::kNormal || types[id] == TokenType::kUnused;
    });
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.score > b.score; });
    joins_.reserve(entries.size());
    uint32_t rank = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0 && entries[i].score != entries[i - 1].score) ++rank;
      joins_.emplace(entries[i].text, Join{rank, entries[i].id});
      AddAdjacent(entries[i].text);
    }
    is_unused_.resize(types.size());
    for (size_t id = 0; id < types.size(); ++id) is_unused_[id] = types[id] == TokenType::kUnused;
    return OkStatus();
  }

  Status ReadMergeRanks(const TokenizerSpec& spec, std::span<const TokenType> types) {
    TokenIndex index;
    index.reserve(spec.tokens.size());
    for (uint32_t id = 0; id < spec.tokens.size(); ++id) {
      if (!spec.tokens[id].empty()) index.emplace(spec.tokens[id], id);
    }
    BATON_ASSIGN_OR_RETURN(const std::vector<MergeRule> merges, ReadMerges(spec, index));
    const auto reachable = [&](size_t id) {
      const bool is_found_only =
          !spec.token_traits.empty() && (spec.token_traits[id] & kIsFoundOnly) != 0;
      return types[id] == TokenType::kNormal ||
             (types[id] == TokenType::kUserDefined && !is_found_only);
    };
    for (const Entry& entry : IndexTokens(spec, reachable)) {
      joins_.emplace(entry.text, Join{0, entry.id});
    }
    by_pairs_ = true;
    pairs_.reserve(merges.size());
    for (uint32_t rank = 0; rank < merges.size(); ++rank) {
      const MergeRule& merge = merges[rank];
      if (!reachable(merge.left) || !reachable(merge.right) || !reachable(merge.result)) continue;
      pairs_.emplace(PairKey(merge.left, merge.right),
                     Join{rank, static_cast<TokenId>(merge.result)});
      AddAdjacent(WithPlainSpaces(spec.tokens[merge.result]));
    }
    is_unused_.assign(types.size(), false);
    return OkStatus();
  }

  static uint64_t PairKey(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

  void AddAdjacent(std::string_view token) {
    std::string_view left = FirstCharacter(token);
    for (token.remove_prefix(left.size()); !token.empty(); token.remove_prefix(left.size())) {
      const std::string_view right = FirstCharacter(token);
      adjacent_.insert(Adjacent(left, right));
      left = right;
    }
  }

  // The end of the first part of `text`: after it are two characters that stand side by side in
  // no token, so nothing is ever joined across, and the part can be encoded alone.
  size_t PartSize(std::string_view text) const {
    std::string_view left = FirstCharacter(text);
    size_t size = left.size();
    while (size < text.size()) {
      const std::string_view right = FirstCharacter(text.substr(size));
      if (!adjacent_.contains(Adjacent(left, right))) break;
      size += right.size();
      left = right;
    }
    return size;
  }

  std::optional<Join> FindJoin(std::string_view text, const Symbol& left,
                               const Symbol& right) const {
    if (by_pairs_) {
      if (left.id == kNoToken || right.id == kNoToken) return std::nullopt;
      const auto found = pairs_.find(PairKey(left.id, right.id));
      return found == pairs_.end() ? std::nullopt : std::optional<Join>(found->second);
    }
    const size_t size = left.size + right.size;
    if (size > max_size_) return std::nullopt;
    const auto found = joins_.find(text.substr(left.begin, size));
    return found == joins_.end() ? std::nullopt : std::optional<Join>(found->second);
  }

  void MakeSymbols(std::string_view text, Scratch& scratch) const {
    scratch.symbols.clear();
    for (uint32_t begin = 0; begin < text.size();) {
      const std::string_view character = FirstCharacter(text.substr(begin));
      const uint32_t at = static_cast<uint32_t>(scratch.symbols.size());
      const auto found = joins_.find(character);
      Symbol symbol;
      symbol.begin = begin;
      symbol.size = static_cast<uint32_t>(character.size());
      symbol.prev = at == 0 ? kNone : at - 1;
      symbol.id = found == joins_.end() ? kNoToken : found->second.id;
      begin += symbol.size;
      symbol.next = begin < text.size() ? at + 1 : kNone;
      scratch.symbols.push_back(symbol);
    }
  }

  void Propose(std::string_view text, uint32_t at, Scratch& scratch) const {
    if (at == kNone || scratch.symbols[at].next == kNone) return;
    const Symbol& left = scratch.symbols[at];
    const Symbol& right = scratch.symbols[left.next];
    const std::optional<Join> join = FindJoin(text, left, right);
    if (!join) return;
    scratch.heap.push_back({join->rank, at, join->id, left.size + right.size});
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), IsWorse);
    if (is_unused_[join->id]) scratch.splits.insert_or_assign(join->id, Split{left, right});
  }

  void EncodePart(std::string_view text, Scratch& scratch, std::vector<TokenId>* out) const {
    MakeSymbols(text, scratch);
    std::vector<Symbol>& symbols = scratch.symbols;
    scratch.heap.clear();
    for (uint32_t at = 0; at < symbols.size(); ++at) Propose(text, at, scratch);
    while (!scratch.heap.empty()) {
      std::pop_heap(scratch.heap.begin(), scratch.heap.end(), IsWorse);
      const Candidate best = scratch.heap.back();
      scratch.heap.pop_back();
      Symbol& left = symbols[best.left];
      if (left.size == 0 || left.next == kNone) continue;
      Symbol& right = symbols[left.next];
      if (left.size + right.size != best.size) continue;
      // With merges, two pairs can make the same token, and the pair at hand may not be listed.
      if (by_pairs_ && !FindJoin(text, left, right)) continue;
      left.size = best.size;
      left.id = best.id;
      left.next = right.next;
      right.size = 0;
      if (left.next != kNone) symbols[left.next].prev = best.left;
      Propose(text, left.prev, scratch);
      Propose(text, best.left, scratch);
    }
    for (uint32_t at = 0; at != kNone; at = symbols[at].next) {
      Emit(text.substr(symbols[at].begin, symbols[at].size), symbols[at], scratch, out);
    }
  }

  // Appends the token or bytes of `symbol`, whose text is `text`. Recursion ends: halves are
  // shorter than the whole.
  void Emit(std::string_view text, const Symbol& symbol, const Scratch& scratch,
            std::vector<TokenId>* out) const {
    if (symbol.id == kNoToken) {
      EmitBytes(text == " " ? kSpmSpace : text, out);
      return;
    }
    if (is_unused_[symbol.id]) {
      const auto found = scratch.splits.find(symbol.id);
      if (found != scratch.splits.end()) {
        const Split& split = found->second;
        Emit(text.substr(0, split.left.size), split.left, scratch, out);
        Emit(text.substr(split.left.size), split.right, scratch, out);
        return;
      }
    }
    out->push_back(symbol.id);
  }

  void EmitBytes(std::string_view text, std::vector<TokenId>* out) const {
    for (const char c : text) {
      const TokenId id = byte_ids_[static_cast<uint8_t>(c)];
      if (id != kNoToken) out->push_back(id);
    }
  }

  std::string text_;                                   // all reachable tokens, joined
  size_t max_size_ = 0;                                // bytes of the longest
  bool by_pairs_ = false;                              // joined by merges, not by scores
  absl::flat_hash_map<std::string_view, Join> joins_;  // by text
  absl::flat_hash_map<uint64_t, Join> pairs_;          // by ids
  absl::flat_hash_set<uint64_t> adjacent_;             // neighbouring characters in some token
  std::vector<bool> is_unused_;                        // [vocab_size]; only with scores
  std::vector<TokenId> byte_ids_ = std::vector<TokenId>(256, kNoToken);
};

}  // namespace

std::string WithPlainSpaces(std::string_view text, std::string_view space) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  while (true) {
    const size_t at = text.find(kSpmSpace, done);
    out.append(text.substr(done, at - done));
    if (at == std::string_view::npos) return out;
    out.append(space);
    done = at + kSpmSpace.size();
  }
}

int ByteOfToken(std::string_view token) {
  const bool framed = token.size() == 6 && token.substr(0, 3) == "<0x" && token[5] == '>';
  if (!framed) return -1;
  const std::optional<std::vector<uint8_t>> bytes = BytesFromHex(token.substr(3, 2));
  return bytes ? bytes->front() : -1;
}

StatusOr<std::unique_ptr<PieceEncoder>> CreateSpmEncoder(const TokenizerSpec& spec,
                                                         std::span<const TokenType> types) {
  auto encoder = std::make_unique<SpmEncoder>();
  BATON_RETURN_IF_ERROR(encoder->Build(spec, types));
  return encoder;
}

}  // namespace baton::text
