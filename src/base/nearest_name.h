// The known name that an unknown one was probably meant to be. Pure; any thread.
#ifndef BATON_BASE_NEAREST_NAME_H_
#define BATON_BASE_NEAREST_NAME_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace baton {

// Number of single-character insertions, deletions, replacements and swaps of neighbours between a
// and b (optimal string alignment). O(|a| * |b|).
size_t EditDistance(std::string_view a, std::string_view b);

// The candidate nearest to `name` (first one on a tie). When even that one is further than
// max(1, |name| / 3) edits, the shortest that `name` (3 characters or more) abbreviates by leaving
// characters out; else "". Names above 256 characters have no nearest name.
std::string NearestName(std::string_view name, std::span<const std::string_view> candidates);
std::string NearestName(std::string_view name, std::span<const std::string> candidates);

}  // namespace baton

#endif  // BATON_BASE_NEAREST_NAME_H_
