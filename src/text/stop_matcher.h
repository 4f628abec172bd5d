// Finds stop strings in text that arrives in pieces. One thread at a time; the state is a pure
// function of (stop strings, text pushed), so a resumed request rebuilds it by pushing the same
// text.
#ifndef BATON_TEXT_STOP_MATCHER_H_
#define BATON_TEXT_STOP_MATCHER_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton::text {

// The stop strings of one request and how far the text matches them.
// 1. The match that ends first wins; of several that end at the same byte, the longest. This does
//    not depend on how the text was cut.
// 2. Text that may turn out to be the beginning of a stop string is held back, no more than that.
// 3. The output of Push and Flush, joined, is the text before the match (all of it without one).
class StopMatcher {
 public:
  // Without stop strings: emits everything at once.
  StopMatcher() = default;
  // InvalidArgument for an empty, over-long or non-UTF-8 string, or more than
  // limits::kMaxStopStrings.
  static StatusOr<StopMatcher> Create(const std::vector<std::string>& stops);

  // The text that may be shown now. After a match always empty. O(|text| * number of stops).
  // A match that ends within a `text` that may not stop counts for nothing; one that only begins
  // there and ends in a later text counts.
  std::string Push(std::string_view text, bool may_stop = true);
  // Returns the text that was held back, when no text follows.
  std::string Flush();

  // The stop string that was found, as its position in the list.
  std::optional<size_t> matched_idx() const { return matched_idx_; }
  bool stopped() const { return matched_idx_.has_value(); }
  // Bytes held back.
  size_t num_held_bytes() const { return held_.size(); }
  // Bytes of its stop strings, as they are kept; all copies of a matcher share them.
  size_t num_bytes() const {
    size_t bytes = 0;
    if (patterns_ == nullptr) return bytes;
    for (const Pattern& pattern : *patterns_) {
      bytes += sizeof(Pattern) + pattern.text.size() * (1 + sizeof(size_t));
    }
    return bytes;
  }

 private:
  // One stop string as a Knuth-Morris-Pratt automaton.
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // [i]: longest proper border of text[0, i + 1)
  };
  using Patterns = std::vector<Pattern>;

  static void Advance(const Pattern& pattern, char c, size_t* num_matched);

  std::shared_ptr<const Patterns> patterns_;  // null without stop strings
  // By pattern: its text[0, num_matched) is the end of what was pushed.
  std::vector<size_t> num_matched_;
  std::string held_;  // pushed, not emitted: the longest partial match
  std::optional<size_t> matched_idx_;
};

}  // namespace baton::text

#endif  // BATON_TEXT_STOP_MATCHER_H_
