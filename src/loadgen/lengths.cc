#include "src/loadgen/lengths.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/loadgen/quantity.h"

namespace baton::loadgen {
namespace {

StatusOr<uint32_t> ParseTokens(std::string_view text) {
  BATON_ASSIGN_OR_RETURN(const uint64_t count, ParseWhole(text, {1, kMaxLength}));
  return static_cast<uint32_t>(count);
}

StatusOr<LengthSpec> Parse(const std::vector<std::string_view>& parts) {
  LengthSpec spec;
  if (parts.size() == 1) {
    BATON_ASSIGN_OR_RETURN(spec.low, ParseTokens(parts[0]));
    spec.max = spec.low;
    return spec;
  }
  if (parts[0] == "uniform" && parts.size() == 3) {
    spec.kind = LengthKind::kUniform;
    BATON_ASSIGN_OR_RETURN(spec.low, ParseTokens(parts[1]));
    BATON_ASSIGN_OR_RETURN(spec.max, ParseTokens(parts[2]));
    if (spec.low > spec.max) return InvalidArgument("{} is above {}", spec.low, spec.max);
    return spec;
  }
  if (parts[0] == "lognormal" && (parts.size() == 3 || parts.size() == 4)) {
    spec.kind = LengthKind::kLogNormal;
    BATON_ASSIGN_OR_RETURN(spec.low, ParseTokens(parts[1]));
    BATON_ASSIGN_OR_RETURN(spec.sigma, ParseNumber(parts[2]));
    if (spec.sigma < 0.0 || spec.sigma > 5.0) {
      return InvalidArgument("sigma {} is outside [0, 5]", spec.sigma);
    }
    spec.max = std::min(kMaxLength, 8 * spec.low);
    if (parts.size() == 4) {
      BATON_ASSIGN_OR_RETURN(spec.max, ParseTokens(parts[3]));
    }
    return spec;
  }
  return InvalidArgument("it is none of N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA[:MAX]");
}

}  // namespace

uint32_t LengthSpec::Draw(RandomDraws& draws) const {
  if (kind == LengthKind::kUniform) return static_cast<uint32_t>(draws.Between(low, max));
  if (kind == LengthKind::kFixed) return low;
  const double value = low * std::exp(sigma * draws.Normal());
  return static_cast<uint32_t>(std::clamp(std::round(value), 1.0, static_cast<double>(max)));
}

StatusOr<LengthSpec> ParseLength(std::string_view flag, std::string_view text) {
  StatusOr<LengthSpec> spec = Parse(SplitAt(text, ':'));
  if (!spec.ok()) return WithPrefix(spec.status(), fmt::format("{} '{}'", flag, text));
  return spec;
}

}  // namespace baton::loadgen
