#include "src/cli/objective_flag.h"

#include <cstdint>
#include <span>

#include "src/base/nearest_name.h"
#include "src/loadgen/quantity.h"

namespace baton::cli {

using loadgen::ParseTimeUs;
using loadgen::SplitAt;
using router::ServiceObjective;

namespace {

// A part of the objective.
struct Part {
  std::string_view name;
  int64_t ServiceObjective::*limit_us;
  int64_t most_us;
};

constexpr int64_t kLeastUs = 1'000;
constexpr Part kParts[] = {{"ttft", &ServiceObjective::ttft_us, 600'000'000},
                           {"itl", &ServiceObjective::itl_us, 60'000'000}};

Status UnknownPart(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Part& part : kParts) names.push_back(part.name);
  const std::string nearest = NearestName(name, std::span<const std::string_view>(names));
  return InvalidArgument("'{}' is not one of ttft, itl{}", name,
                         nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

Status ParsePart(std::string_view piece, ServiceObjective& objective) {
  const size_t equals = piece.find('=');
  const std::string_view name = piece.substr(0, equals);
  for (const Part& part : kParts) {
    if (part.name != name) continue;
    if (equals == std::string_view::npos) {
      return InvalidArgument("{} has no time, e.g. {}=50ms", name, name);
    }
    const std::string_view value = piece.substr(equals + 1);
    if (objective.*part.limit_us != 0) return InvalidArgument("{} is given twice", name);
    const StatusOr<int64_t> time_us = ParseTimeUs(value);
    if (!time_us.ok()) return WithPrefix(time_us.status(), std::string(name));
    if (*time_us < kLeastUs || *time_us > part.most_us) {
      return InvalidArgument("{}: '{}' is not a time from 1ms to {}s", name, value,
                             part.most_us / 1'000'000);
    }
    objective.*part.limit_us = *time_us;
    return OkStatus();
  }
  return UnknownPart(name);
}

}  // namespace

void DeclareObjective(FlagSet& flags, std::string& text) {
  flags.AddJoined(
      "--slo", text,
      "latencies to keep, such as ttft=500ms,itl=50ms; either part alone. ttft: the router answers "
      "429 at once where the first token would come later for what waits before it. itl: workers "
      "run so many streams, and compute such parts of prompts beside them, as fit into that time "
      "between two tokens");
}

StatusOr<ServiceObjective> ParseObjective(std::string_view text) {
  ServiceObjective objective;
  if (text.empty()) return objective;
  for (const std::string_view piece : SplitAt(text, ',')) {
    if (const Status s = ParsePart(piece, objective); !s.ok()) {
      return WithPrefix(s, fmt::format("--slo '{}'", text));
    }
  }
  return objective;
}

void AppendObjective(const std::string& text, std::vector<std::string>& args) {
  if (!text.empty()) args.push_back("--slo=" + text);
}

}  // namespace baton::cli
