#include "src/cli/doctor/proc_text.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "src/base/trimmed_text.h"

namespace baton::cli {
namespace {

constexpr std::string_view kBlanks = " \t\n\v\f\r";

}  // namespace

std::optional<uint64_t> MeminfoValue(std::string_view text, std::string_view key) {
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (!line.starts_with(key) || line.substr(key.size(), 1) != ":") continue;
    std::string_view value = Trimmed(line.substr(key.size() + 1), kBlanks);
    const bool is_kb = value.ends_with(" kB");
    if (is_kb) value.remove_suffix(3);
    const std::optional<uint64_t> number = ParseCount(value);
    if (!number) return std::nullopt;
    return is_kb ? *number * 1024 : *number;
  }
  return std::nullopt;
}

std::set<int> ParseCpuList(std::string_view text) {
  std::set<int> cpus;
  const std::string list(Trimmed(text, kBlanks));
  for (const absl::string_view part : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    int first = 0;
    int last = 0;
    const bool valid = ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &first) &&
                       absl::SimpleAtoi(ends.back(), &last) && first >= 0 && last < (1 << 16);
    if (!valid) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

std::optional<uint64_t> ParseCount(std::string_view text) {
  const std::string_view trimmed = Trimmed(text, kBlanks);
  uint64_t number = 0;
  if (!absl::SimpleAtoi(absl::string_view(trimmed.data(), trimmed.size()), &number)) {
    return std::nullopt;
  }
  return number;
}

std::string ChosenWord(std::string_view text) {
  const size_t begin = text.find('[');
  const size_t end = text.find(']', begin == std::string_view::npos ? 0 : begin);
  if (begin == std::string_view::npos || end == std::string_view::npos) return "";
  return std::string(text.substr(begin + 1, end - begin - 1));
}

std::optional<double> ParseStealRatio(std::string_view stat_text) {
  constexpr size_t kSteal = 8;  // the word after the name is 1
  const std::string line(stat_text.substr(0, stat_text.find('\n')));
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (words.size() <= kSteal || words[0] != "cpu") return std::nullopt;
  double total = 0;
  double steal = 0;
  for (size_t i = 1; i <= kSteal; ++i) {
    const std::optional<uint64_t> ticks = ParseCount(words[i]);
    if (!ticks) return std::nullopt;
    total += static_cast<double>(*ticks);
    if (i == kSteal) steal = static_cast<double>(*ticks);
  }
  if (total <= 0) return std::nullopt;
  return steal / total;
}

std::optional<std::string> CgroupPath(std::string_view text, std::string_view controller) {
  const std::string all(text);
  for (const absl::string_view line : absl::StrSplit(all, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> names = absl::StrSplit(fields[1], ',');
    for (const std::string& name : names) {
      if (name == controller) return fields[2];
    }
  }
  return std::nullopt;
}

std::vector<std::string> WithAncestors(std::string_view path) {
  std::vector<std::string> paths;
  while (path.ends_with('/')) path.remove_suffix(1);
  while (!path.empty()) {
    paths.emplace_back(path);
    path = path.substr(0, path.rfind('/') == std::string_view::npos ? 0 : path.rfind('/'));
  }
  paths.emplace_back();
  return paths;
}

}  // namespace baton::cli
