// The tokens that are found as whole strings before a text is split: user-defined ones in any text,
// control and unknown ones only where specials are on. Immutable after construction; any thread.
#ifndef BATON_TEXT_SPECIAL_TOKENS_H_
#define BATON_TEXT_SPECIAL_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/text/tokenizer_spec.h"

namespace baton::text {

// The tokens that are looked for.
enum class SpecialScope : uint8_t {
  kUserDefined,  // user text: type 4 only
  kAll,          // template text: control and unknown tokens too
};

// A special token found in a text, at bytes [begin, end).
struct SpecialMatch {
  size_t begin = 0;
  size_t end = 0;
  TokenId id = 0;
  int32_t traits = 0;  // bits of TokenTrait
};

// Longest control or unknown token in bytes, and bytes of all tokens of a SpecialTokens. In memory
// each byte takes itself and a node of 16 bytes, of a control token also a tail of 16 bytes in a
// sorted list: 132 MiB at the limit, and half as much again while vectors double. Each token takes
// 40 bytes besides.
inline constexpr size_t kMaxControlTokenBytes = 256;
inline constexpr size_t kMaxSpecialTextBytes = size_t{4} << 20;

// A trie of the special tokens' texts.
class SpecialTokens {
 public:
  SpecialTokens() = default;
  // Moving keeps what control_tails_ points at, copying does not.
  SpecialTokens(SpecialTokens&&) = default;
  SpecialTokens& operator=(SpecialTokens&&) = default;
  SpecialTokens(const SpecialTokens&) = delete;
  SpecialTokens& operator=(const SpecialTokens&) = delete;

  // Adds a token before any lookup. `text` is not empty; `user_defined` = found in any text;
  // `traits`: bits of TokenTrait. InvalidArgument: more bytes than the limits above.
  Status Add(std::string_view text, TokenId id, bool user_defined, int32_t traits = 0);
  // To be called once, after the last Add.
  void Seal();

  // The first match at or after `from`; of several that begin there, the longest. One that must be
  // a whole word and is none hides the others that begin in it, as in the crate tokenizers.
  //
  // `guards`: where BreakLookAlikes put guards into `text`, which they were taken out of again (see
  // TakeOut); ascending. A control or unknown token is not found across one.
  std::optional<SpecialMatch> FindNext(std::string_view text, size_t from, SpecialScope scope,
                                       std::span<const size_t> guards = {}) const;

  // `text` with `guard` put in wherever a control or unknown token could otherwise appear: inside
  // each occurrence, at the end when `text` ends with the beginning of one, at the start when
  // `text` is an inner or final part of one. So however a template joins the result with other
  // text, FindNext with the guards' places finds no such token that holds a character of it (as
  // long as the template keeps the characters). A token of a single character cannot be broken; two
  // guards mark it.
  std::string BreakLookAlikes(std::string_view text, std::string_view guard) const;

  // True when `guard` occurs in no token's text.
  bool IsFreeOf(std::string_view guard) const;
  bool empty() const { return texts_.empty(); }

 private:
  static constexpr TokenId kNoToken = -1;

  // One prefix of some token: the byte that it adds to its parent's. Node 0 is nobody's child.
  struct Node {
    uint32_t first_child = 0;
    uint32_t next_sibling = 0;
    TokenId id = kNoToken;  // the token that ends here
    uint8_t byte = 0;
    bool user_defined = false;
    bool leads_to_control = false;  // a control or unknown token goes on from here
    uint8_t traits = 0;             // of the token that ends here
  };
  static_assert(sizeof(Node) == 16);

  struct Text {
    std::string bytes;
    bool user_defined = false;
  };

  // The node after `byte`, or 0 (the root is nobody's child).
  uint32_t Step(uint32_t node, uint8_t byte) const;
  // Guards leave these of the control and unknown tokens that begin at a place: those of up to
  // `max_control_size` bytes, and when `is_marked` none of a single character.
  struct Guarding {
    size_t max_control_size = SIZE_MAX;
    bool is_marked = false;
  };
  // Length of the longest token that begins at `text`, with its node; length 0 when there is none.
  std::pair<size_t, uint32_t> LongestAt(std::string_view text, SpecialScope scope,
                                        const Guarding& guarding) const;
  // True when a control token begins at `text`, or would if more text followed.
  bool ControlBeginsAt(std::string_view text) const;
  // True when `text` could complete a control token that began before it.
  bool CanCompleteControl(std::string_view text) const;

  std::vector<Node> nodes_{Node{}};
  std::array<bool, 256> starts_any_{};  // [byte]: some token begins with it
  std::vector<Text> texts_;
  std::vector<std::string_view> control_tails_;  // sorted ends of control texts, in texts_
  size_t num_text_bytes_ = 0;
  size_t max_control_size_ = 0;
};

// `text` without the guards in it. Appends to `places` where each stood in the result.
std::string TakeOut(std::string_view text, std::string_view guard, std::vector<size_t>* places);

// Walks over the special tokens of one text, from left to right. Blanks (white space of Unicode)
// that a token takes are in no piece. Its cost is linear in the text. One thread. Everything that
// the constructor is given outlives it.
class SpecialCuts {
 public:
  SpecialCuts(const SpecialTokens& tokens, std::string_view text, SpecialScope scope,
              std::span<const size_t> guards = {})
      : tokens_(tokens), text_(text), scope_(scope), guards_(guards) {}

  // Goes to the next token; false when there is none, and piece() is then the rest of the text.
  bool Next();
  // The text before the token, after the one before it. Often empty.
  std::string_view piece() const { return piece_; }
  TokenId id() const { return id_; }

 private:
  // Where the blanks before `end` begin that are in no piece yet, and where those after `begin`
  // end.
  size_t BlanksBegin(size_t end) const;
  size_t BlanksEnd(size_t begin);

  const SpecialTokens& tokens_;
  std::string_view text_;
  SpecialScope scope_;
  std::span<const size_t> guards_;
  size_t searched_ = 0;    // the next token begins here or later
  size_t done_ = 0;        // text up to here is in a piece, or a token has it
  size_t blanks_end_ = 0;  // where the last blanks that a token took end: they are walked once
  std::string_view piece_;
  TokenId id_ = 0;
};

}  // namespace baton::text

#endif  // BATON_TEXT_SPECIAL_TOKENS_H_
