#include "src/loadgen/slo.h"

#include <algorithm>
#include <span>
#include <vector>

#include "src/base/nearest_name.h"
#include "src/loadgen/quantity.h"
#include "src/loadgen/statistics.h"

namespace baton::loadgen {
namespace {

// A limit by its name.
struct NamedLimit {
  std::string_view name;
  std::optional<int64_t> Slo::*limit;
};

constexpr NamedLimit kLimits[] = {
    {"ttft", &Slo::ttft_us}, {"itl", &Slo::itl_us},
    {"tpot", &Slo::tpot_us}, {"second_token", &Slo::second_token_us},
    {"e2e", &Slo::e2e_us},
};

Status Unknown(std::string_view name) {
  std::vector<std::string_view> names = {"goodput"};
  for (const NamedLimit& limit : kLimits) names.push_back(limit.name);
  const std::string nearest = NearestName(name, std::span<const std::string_view>(names));
  return InvalidArgument("'{}' is not one of ttft, itl, tpot, second_token, e2e, goodput{}", name,
                         nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

Status ParsePiece(std::string_view piece, Slo& slo) {
  const size_t equals = piece.find('=');
  const std::string_view name = piece.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : piece.substr(equals + 1);
  if (name == "goodput") {
    BATON_ASSIGN_OR_RETURN(slo.goodput, ParseShare(value));
    return OkStatus();
  }
  for (const NamedLimit& limit : kLimits) {
    if (limit.name != name) continue;
    BATON_ASSIGN_OR_RETURN(slo.*limit.limit, ParseTimeUs(value));
    return OkStatus();
  }
  return Unknown(name);
}

bool Within(std::optional<double> value, std::optional<int64_t> limit) {
  return !limit || (value && *value <= static_cast<double>(*limit));
}

}  // namespace

StatusOr<Slo> ParseSlo(std::string_view text) {
  Slo slo;
  for (const std::string_view piece : SplitAt(text, ',')) {
    if (const Status s = ParsePiece(piece, slo); !s.ok()) {
      return WithPrefix(s, fmt::format("--slo '{}'", text));
    }
  }
  const bool any = std::any_of(std::begin(kLimits), std::end(kLimits), [&slo](const auto& limit) {
    return (slo.*limit.limit).has_value();
  });
  if (!any) return InvalidArgument("--slo '{}' limits no time, e.g. ttft=400ms", text);
  return slo;
}

std::string ToString(const Slo& slo) {
  std::string text;
  for (const NamedLimit& limit : kLimits) {
    if (!(slo.*limit.limit)) continue;
    text +=
        fmt::format("{} <= {}, ", limit.name, FormatUs(static_cast<double>(*(slo.*limit.limit))));
  }
  return text + fmt::format("goodput >= {:g} %", slo.goodput * 100.0);
}

bool MeetsSlo(const Slo& slo, const RequestRecord& record) {
  if (!record.ok() || record.golden_wrong) return false;
  if (!Within(TtftUs(record), slo.ttft_us)) return false;
  if (!Within(E2eUs(record), slo.e2e_us)) return false;
  // An answer of one token has no gap and no second token, so it meets those limits. When several
  // tokens came in one piece, nobody saw their gaps, so those limits are not met.
  if (record.token_us.size() < 2) {
    return record.NumOutput() < 2 || !(slo.itl_us || slo.tpot_us || slo.second_token_us);
  }
  std::vector<double> gaps = ItlUs(record);
  std::sort(gaps.begin(), gaps.end());
  return Within(Quantile(gaps, 0.99), slo.itl_us) && Within(TpotUs(record), slo.tpot_us) &&
         Within(SecondTokenUs(record), slo.second_token_us);
}

}  // namespace baton::loadgen
