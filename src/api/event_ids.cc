#include "src/api/event_ids.h"

#include <algorithm>
#include <iterator>

#include "fmt/format.h"

namespace baton::api {

namespace {

constexpr std::string_view kEventEnd = "\n\n";
constexpr std::string_view kDone = "data: [DONE]\n\n";

bool IsNumber(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The place of the dot before CHOICE; npos = there is none.
size_t DotBeforeChoice(std::string_view id) {
  const size_t last = id.rfind('.');
  return last == std::string_view::npos || last == 0 ? std::string_view::npos
                                                     : id.rfind('.', last - 1);
}

}  // namespace

void EventIds::GoTo(uint32_t choice, uint32_t token_idx) {
  choice_ = choice;
  Place& place = places_[choice];
  if (place.token_idx != token_idx) place = {token_idx, 0};
}

void EventIds::Insert(size_t begin, bool is_token, std::string* events) {
  const std::string text = events->substr(begin);
  events->resize(begin);
  std::string_view rest = text;
  Place& place = places_[choice_];
  while (!rest.empty()) {
    const size_t size = std::min(rest.find(kEventEnd), rest.size() - kEventEnd.size()) + 2;
    const std::string_view event = rest.substr(0, size);
    rest.remove_prefix(size);
    if (event != kDone) {
      const size_t num_zeros = is_token && rest.empty() ? 0 : ++place.num_others;
      fmt::format_to(std::back_inserter(*events), "id: {}.{}.{:0>{}}{}\n", stream_, choice_, "",
                     num_zeros, place.token_idx);
    }
    events->append(event);
  }
}

bool IsEventId(std::string_view id) {
  const size_t dot = DotBeforeChoice(id);
  if (dot == std::string_view::npos || dot == 0) return false;
  const std::string_view numbers = id.substr(dot + 1);
  const size_t middle = numbers.find('.');
  return IsNumber(numbers.substr(0, middle)) && IsNumber(numbers.substr(middle + 1));
}

std::string_view StreamOfEventId(std::string_view id) { return id.substr(0, DotBeforeChoice(id)); }

}  // namespace baton::api
