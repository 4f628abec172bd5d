// NgramIndex: where the last two tokens of a text stood in it before, so that what followed them
// there can be guessed to follow again (prompt lookup: Saxena 2023; the matches are those of LZ77).
// One thread.
//
// 1. A guess depends on the tokens alone: of the kMaxVisited latest places at which the last two
//    tokens stood before, the one before which most tokens agree, and of equals the latest.
// 2. A text longer than `window` is searched in its last window / 2 to window tokens.
// 3. All memory is taken at construction: at most 20 bytes a token of the window.
#ifndef BATON_ENGINE_NGRAM_INDEX_H_
#define BATON_ENGINE_NGRAM_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/ids.h"

namespace baton::engine {

// See the file comment.
class NgramIndex {
 public:
  // 320 KiB of memory a sequence at most; the search does not depend on it.
  static constexpr uint32_t kMaxWindow = 16'384;
  // Places that are compared: a guess costs below 1 us however often a text repeats itself.
  static constexpr uint32_t kMaxVisited = 32;
  // Agreeing tokens beyond which a place is not preferred any more.
  static constexpr uint32_t kMaxMatch = 16;

  // `window` >= 4.
  explicit NgramIndex(uint32_t window);
  static size_t BytesFor(uint32_t window);

  // Appends at most `max_tokens` guesses of what follows `tokens`, which begin with the tokens of
  // the call before. A guess that reaches the end of the text goes on with itself. About 20 ns for
  // each token since the call before, of which the last `window` alone are read. Returns how many
  // tokens before the guesses' place agree with the last ones (2 to kMaxMatch); 0 = no guess.
  uint32_t Guess(std::span<const TokenId> tokens, uint32_t max_tokens, std::vector<TokenId>* out);

 private:
  // The places [., place) whose last two tokens are those of [., end): their slot, which holds the
  // latest one, or 0.
  uint32_t& SlotOf(std::span<const TokenId> tokens, uint32_t end);
  void Insert(std::span<const TokenId> tokens, uint32_t end);
  // Forgets all but the last half of the window.
  void Shift(std::span<const TokenId> tokens);
  // Leaves out what the Shifts up to `size` would forget again.
  void SkipTo(uint32_t size);
  // The end of the best earlier place, and how many tokens agree; 0 = there is none.
  struct Place {
    uint32_t end = 0;
    uint32_t num_agreeing = 0;
  };
  Place Find(std::span<const TokenId> tokens);

  const uint32_t window_;
  uint32_t first_end_ = 2;       // smallest end that is kept
  uint32_t next_end_ = 2;        // smallest end that was not inserted
  std::vector<uint32_t> slots_;  // latest end of a pair, open addressing; 0 = free
  std::vector<uint32_t>
      earlier_;  // [window_]: of end e, at e - first_end_: the end before it, or 0
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_NGRAM_INDEX_H_
