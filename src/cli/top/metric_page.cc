#include "src/cli/top/metric_page.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/numbers.h"

namespace baton::cli {
namespace {

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == ':';
}

std::string_view TakeName(std::string_view* rest) {
  size_t size = 0;
  while (size < rest->size() && IsNameByte((*rest)[size])) ++size;
  const std::string_view name = rest->substr(0, size);
  rest->remove_prefix(size);
  return name;
}

bool TakeByte(std::string_view* rest, char byte) {
  if (rest->empty() || rest->front() != byte) return false;
  rest->remove_prefix(1);
  return true;
}

// A label's value up to its closing quote; nothing when that is missing.
std::optional<std::string> TakeQuoted(std::string_view* rest) {
  std::string value;
  while (!rest->empty()) {
    const char byte = rest->front();
    rest->remove_prefix(1);
    if (byte == '"') return value;
    if (byte == '\\' && !rest->empty()) {
      value.push_back(rest->front() == 'n' ? '\n' : rest->front());
      rest->remove_prefix(1);
    } else {
      value.push_back(byte);
    }
  }
  return std::nullopt;
}

// name="value",... up to the closing brace.
bool TakeLabels(std::string_view* rest, MetricSample* sample) {
  while (!TakeByte(rest, '}')) {
    const std::string_view name = TakeName(rest);
    if (name.empty() || !TakeByte(rest, '=') || !TakeByte(rest, '"')) return false;
    std::optional<std::string> value = TakeQuoted(rest);
    if (!value) return false;
    sample->labels.insert_or_assign(std::string(name), *std::move(value));
    if (!TakeByte(rest, ',') && (rest->empty() || rest->front() != '}')) return false;
  }
  return true;
}

std::optional<double> ParseValue(std::string_view text) {
  text = text.substr(0, text.find(' '));  // a time stamp may follow
  if (text == "+Inf") return std::numeric_limits<double>::infinity();
  double value = 0;
  if (!absl::SimpleAtod(absl::string_view(text.data(), text.size()), &value)) return std::nullopt;
  return value;
}

bool Matches(const MetricSample& sample, const std::optional<LabelIs>& label) {
  if (!label) return true;
  const auto found = sample.labels.find(label->name);
  return found != sample.labels.end() && found->second == label->value;
}

// Observations of each bucket between two pages, by upper bound; not cumulative.
std::map<double, double> BucketGrowth(const std::map<double, double>& before,
                                      const std::map<double, double>& now) {
  std::map<double, double> growth;
  double last = 0;
  for (const auto& [bound, count] : now) {
    const auto old = before.find(bound);
    const double grown = count - (old == before.end() ? 0 : old->second);
    growth[bound] = std::max(0.0, grown - last);
    last = grown;
  }
  return growth;
}

}  // namespace

StatusOr<MetricPage> MetricPage::Parse(std::string_view text) {
  MetricPage page;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty() || line.front() == '#') continue;
    std::string_view rest = line;
    const std::string_view name = TakeName(&rest);
    MetricSample sample;
    const bool has_labels = TakeByte(&rest, '{');
    bool valid = !name.empty() && (!has_labels || TakeLabels(&rest, &sample));
    valid = valid && TakeByte(&rest, ' ');
    const std::optional<double> value = valid ? ParseValue(rest) : std::nullopt;
    if (!value) return DataLoss("line {} of the metrics is no sample: {}", number, line);
    sample.value = *value;
    page.samples_[std::string(name)].push_back(std::move(sample));
  }
  return page;
}

std::optional<double> MetricPage::Sum(std::string_view name, std::optional<LabelIs> label) const {
  const auto family = samples_.find(name);
  if (family == samples_.end()) return std::nullopt;
  std::optional<double> sum;
  for (const MetricSample& sample : family->second) {
    if (Matches(sample, label)) sum = sum.value_or(0) + sample.value;
  }
  return sum;
}

std::map<double, double> MetricPage::Buckets(std::string_view name) const {
  std::map<double, double> buckets;
  const auto family = samples_.find(fmt::format("{}_bucket", name));
  if (family == samples_.end()) return buckets;
  for (const MetricSample& sample : family->second) {
    const auto bound = sample.labels.find("le");
    if (bound == sample.labels.end()) continue;
    const std::optional<double> value = ParseValue(bound->second);
    if (value && !std::isnan(*value)) buckets[*value] += sample.value;
  }
  return buckets;
}

std::optional<double> Growth(const MetricPage& before, const MetricPage& now, std::string_view name,
                             std::optional<LabelIs> label) {
  const std::optional<double> first = before.Sum(name, label);
  const std::optional<double> last = now.Sum(name, label);
  if (!first || !last || *last < *first) return std::nullopt;
  return *last - *first;
}

std::optional<double> QuantileBetween(const MetricPage& before, const MetricPage& now,
                                      std::string_view name, double quantile) {
  const std::map<double, double> growth = BucketGrowth(before.Buckets(name), now.Buckets(name));
  double total = 0;
  for (const auto& [bound, count] : growth) total += count;
  if (total <= 0) return std::nullopt;
  const double rank = quantile * total;
  double below = 0;
  double low = 0;
  for (const auto& [bound, count] : growth) {
    if (std::isinf(bound)) return low;
    if (below + count >= rank && count > 0) return low + (bound - low) * (rank - below) / count;
    below += count;
    low = bound;
  }
  return low;
}

std::optional<double> MeanBetween(const MetricPage& before, const MetricPage& now,
                                  std::string_view name, std::optional<LabelIs> label) {
  const auto sum = Growth(before, now, fmt::format("{}_sum", name), label);
  const auto count = Growth(before, now, fmt::format("{}_count", name), label);
  if (!sum || !count || *count <= 0) return std::nullopt;
  return *sum / *count;
}

}  // namespace baton::cli
