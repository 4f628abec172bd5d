#include "src/loadgen/quantity.h"

#include <charconv>
#include <cmath>
#include <utility>

namespace baton::loadgen {

StatusOr<double> ParseNumber(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return InvalidArgument("'{}' is not a number", text);
  }
  return value;
}

StatusOr<uint64_t> ParseWhole(std::string_view text, WholeRange range) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < range.low ||
      value > range.high) {
    return InvalidArgument("'{}' is not a whole number in [{}, {}]", text, range.low, range.high);
  }
  return value;
}

StatusOr<int64_t> ParseTimeUs(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"us", 1.0}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {"h", 3600e6}};
  const size_t unit_at = text.find_last_of("0123456789.");
  const std::string_view unit = unit_at == std::string_view::npos ? text : text.substr(unit_at + 1);
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    const StatusOr<double> number = ParseNumber(text.substr(0, text.size() - unit.size()));
    // Ten years are far beyond any run and keep the product inside an int64.
    if (!number.ok() || *number < 0 || *number * factor > 3.2e14) break;
    return std::llround(*number * factor);
  }
  return InvalidArgument("'{}' is not a time like 30ms, 1.5s or 2m", text);
}

StatusOr<double> ParseShare(std::string_view text) {
  const bool percent = text.ends_with('%');
  const StatusOr<double> number = ParseNumber(text.substr(0, text.size() - (percent ? 1 : 0)));
  const double share = number.ok() ? *number / (percent ? 100.0 : 1.0) : -1.0;
  if (share < 0.0 || share > 1.0) {
    return InvalidArgument("'{}' is not a share like 99% or 0.99", text);
  }
  return share;
}

std::vector<std::string_view> SplitAt(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (true) {
    const size_t at = text.find(separator);
    pieces.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return pieces;
    text.remove_prefix(at + 1);
  }
}

std::string FormatUs(double us) {
  if (std::isnan(us)) return "-";
  if (us < 1000.0) return fmt::format("{:.0f} us", us);
  if (us < 1e5) return fmt::format("{:.2f} ms", us / 1e3);
  if (us < 1e6) return fmt::format("{:.1f} ms", us / 1e3);
  return fmt::format("{:.2f} s", us / 1e6);
}

}  // namespace baton::loadgen
