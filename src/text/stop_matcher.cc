#include "src/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "src/base/limits.h"
#include "src/text/utf8.h"

namespace baton::text {

using limits::kMaxStopBytes;
using limits::kMaxStopStrings;

StatusOr<StopMatcher> StopMatcher::Create(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStopStrings) {
    return InvalidArgument("stop has {} strings, more than {}", stops.size(), kMaxStopStrings);
  }
  Patterns patterns;
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string& text = stops[i];
    if (text.empty() || text.size() > kMaxStopBytes) {
      return InvalidArgument("stop[{}] has {} bytes, outside [1, {}]", i, text.size(),
                             kMaxStopBytes);
    }
    if (ValidUtf8Prefix(text) != text.size()) return InvalidArgument("stop[{}] is not UTF-8", i);
    Pattern pattern{text, std::vector<size_t>(text.size(), 0)};
    size_t border = 0;
    for (size_t j = 1; j < text.size(); ++j) {
      while (border > 0 && text[j] != text[border]) border = pattern.border[border - 1];
      if (text[j] == text[border]) ++border;
      pattern.border[j] = border;
    }
    patterns.push_back(std::move(pattern));
  }
  StopMatcher matcher;
  matcher.num_matched_.resize(patterns.size());
  matcher.patterns_ = std::make_shared<const Patterns>(std::move(patterns));
  return matcher;
}

void StopMatcher::Advance(const Pattern& pattern, char c, size_t* num_matched) {
  // A whole match ends the stream, so num_matched is below the text's size here.
  while (*num_matched > 0 && pattern.text[*num_matched] != c) {
    *num_matched = pattern.border[*num_matched - 1];
  }
  if (pattern.text[*num_matched] == c) ++*num_matched;
}

std::string StopMatcher::Push(std::string_view text, bool may_stop) {
  if (stopped()) return {};
  for (const char c : text) {
    held_.push_back(c);
    size_t longest = 0;
    for (size_t i = 0; i < num_matched_.size(); ++i) {
      const Pattern& pattern = (*patterns_)[i];
      size_t& num_matched = num_matched_[i];
      Advance(pattern, c, &num_matched);
      const bool whole = num_matched == pattern.text.size();
      if (whole && !may_stop) num_matched = pattern.border.back();
      if (whole && may_stop && num_matched > longest) {
        longest = num_matched;
        matched_idx_ = i;
      }
    }
    if (!stopped()) continue;
    std::string before = held_.substr(0, held_.size() - longest);
    held_.clear();
    return before;
  }
  size_t num_keep = 0;
  for (const size_t num_matched : num_matched_) num_keep = std::max(num_keep, num_matched);
  std::string safe = held_.substr(0, held_.size() - num_keep);
  held_.erase(0, safe.size());
  return safe;
}

std::string StopMatcher::Flush() {
  std::ranges::fill(num_matched_, 0);
  return std::exchange(held_, {});
}

}  // namespace baton::text
