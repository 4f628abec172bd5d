#include "src/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "src/text/utf8.h"

namespace baton {

StatusOr<StopMatcher> StopMatcher::Create(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStopStrings) {
    return InvalidArgument("stop has {} strings, more than {}", stops.size(), kMaxStopStrings);
  }
  StopMatcher matcher;
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string& text = stops[i];
    if (text.empty() || text.size() > kMaxStopBytes) {
      return InvalidArgument("stop[{}] has {} bytes, outside [1, {}]", i, text.size(),
                             kMaxStopBytes);
    }
    if (ValidUtf8Prefix(text) != text.size()) return InvalidArgument("stop[{}] is not UTF-8", i);
    Pattern pattern{text, std::vector<size_t>(text.size(), 0), 0};
    size_t border = 0;
    for (size_t j = 1; j < text.size(); ++j) {
      while (border > 0 && text[j] != text[border]) border = pattern.border[border - 1];
      if (text[j] == text[border]) ++border;
      pattern.border[j] = border;
    }
    matcher.patterns_.push_back(std::move(pattern));
  }
  return matcher;
}

void StopMatcher::Advance(Pattern& pattern, char c) {
  // A whole match ends the stream, so num_matched is below the text's size here.
  while (pattern.num_matched > 0 && pattern.text[pattern.num_matched] != c) {
    pattern.num_matched = pattern.border[pattern.num_matched - 1];
  }
  if (pattern.text[pattern.num_matched] == c) ++pattern.num_matched;
}

std::string StopMatcher::Push(std::string_view text, bool may_stop) {
  if (stopped()) return {};
  for (const char c : text) {
    held_.push_back(c);
    size_t longest = 0;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      Advance(pattern, c);
      const bool whole = pattern.num_matched == pattern.text.size();
      if (whole && !may_stop) pattern.num_matched = pattern.border.back();
      if (whole && may_stop && pattern.num_matched > longest) {
        longest = pattern.num_matched;
        matched_idx_ = i;
      }
    }
    if (!stopped()) continue;
    std::string before = held_.substr(0, held_.size() - longest);
    held_.clear();
    return before;
  }
  size_t num_keep = 0;
  for (const Pattern& pattern : patterns_) num_keep = std::max(num_keep, pattern.num_matched);
  std::string safe = held_.substr(0, held_.size() - num_keep);
  held_.erase(0, safe.size());
  return safe;
}

std::string StopMatcher::Flush() {
  for (Pattern& pattern : patterns_) pattern.num_matched = 0;
  return std::exchange(held_, {});
}

}  // namespace baton
