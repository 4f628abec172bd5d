#include "src/cli/shadow_flag.h"

#include "benchmarks/loadgen/quantity.h"

namespace baton {

void DeclareShadow(FlagSet& flags, std::string& share) {
  flags.Add("--shadow", share,
            "share (0..1) of the disaggregated requests that idle decode workers run again alone, "
            "to compare every token; baton_shadow_total of the router counts");
}

StatusOr<double> ParseShadow(const std::string& share) {
  const StatusOr<double> number = ParseNumber(share);
  if (!number.ok() || !(*number >= 0.0 && *number <= 1.0)) {
    return InvalidArgument("--shadow: '{}' is not a number from 0 to 1", share);
  }
  return number;
}

}  // namespace baton
