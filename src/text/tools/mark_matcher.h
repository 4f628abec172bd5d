// Finds marks such as "<tool_call>" in text that comes byte by byte. One thread.
#ifndef BATON_TEXT_TOOLS_MARK_MATCHER_H_
#define BATON_TEXT_TOOLS_MARK_MATCHER_H_

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace baton::text {

// Waits for one of several marks. The first byte of a mark occurs once in it, so that no other can
// begin inside; no mark begins another.
class MarkMatcher {
 public:
  static constexpr int kNone = -1;

  explicit MarkMatcher(std::span<const std::string_view> marks) : marks_(marks) {}

  // The mark that `c` completes. Else kNone, and `released` gets the bytes that are part of none.
  int Push(char c, std::string* released) {
    released->clear();
    part_.push_back(c);
    if (!IsPart()) {
      part_.pop_back();
      *released = std::exchange(part_, std::string(1, c));
      if (!IsPart()) released->append(std::exchange(part_, {}));
      return kNone;
    }
    for (size_t i = 0; i < marks_.size(); ++i) {
      if (marks_[i] != part_) continue;
      part_.clear();
      return static_cast<int>(i);
    }
    return kNone;
  }
  // Takes what is held back.
  std::string Release() { return std::exchange(part_, {}); }
  bool is_inside() const { return !part_.empty(); }

 private:
  bool IsPart() const {
    return std::any_of(marks_.begin(), marks_.end(),
                       [this](std::string_view mark) { return mark.starts_with(part_); });
  }

  std::span<const std::string_view> marks_;
  std::string part_;  // the beginning of a mark
};

}  // namespace baton::text

#endif  // BATON_TEXT_TOOLS_MARK_MATCHER_H_
