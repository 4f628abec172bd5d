#include "src/base/nearest_name.h"

#include <algorithm>
#include <vector>

namespace baton {

size_t EditDistance(std::string_view a, std::string_view b) {
  // Rows i-2, i-1 and i of the table: distance of a[0, i) and b[0, j).
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replace});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

namespace {

// The characters of `name` in their order, from the first on, with others between: "kv-mem" and
// "max-ctx" are "kv-memory" and "max-context".
bool IsAbbreviation(std::string_view name, std::string_view candidate) {
  for (std::string_view* text : {&name, &candidate}) {
    text->remove_prefix(std::min(text->find_first_not_of('-'), text->size()));
  }
  if (name.size() < 3 || candidate.empty() || name.front() != candidate.front()) return false;
  size_t num_found = 0;
  for (const char c : candidate) {
    if (num_found < name.size() && c == name[num_found]) ++num_found;
  }
  return num_found == name.size();
}

}  // namespace

std::string NearestName(std::string_view name, std::span<const std::string_view> candidates) {
  constexpr size_t kMaxNameBytes = 256;  // the table is quadratic and the name is the user's
  if (name.empty() || name.size() > kMaxNameBytes) return "";
  size_t best = std::max<size_t>(1, name.size() / 3);
  std::string_view nearest;
  for (const std::string_view candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best || (distance == best && nearest.empty())) {
      best = distance;
      nearest = candidate;
    }
  }
  if (!nearest.empty()) return std::string(nearest);
  for (const std::string_view candidate : candidates) {
    const bool is_nearer = nearest.empty() || candidate.size() < nearest.size();
    if (is_nearer && IsAbbreviation(name, candidate)) nearest = candidate;
  }
  return std::string(nearest);
}

std::string NearestName(std::string_view name, std::span<const std::string> candidates) {
  const std::vector<std::string_view> views(candidates.begin(), candidates.end());
  return NearestName(name, std::span<const std::string_view>(views));
}

}  // namespace baton
