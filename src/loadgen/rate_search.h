// The search for the largest rate at which something still holds. Pure; any thread.
#ifndef BATON_LOADGEN_RATE_SEARCH_H_
#define BATON_LOADGEN_RATE_SEARCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "src/base/status.h"

namespace baton::loadgen {

// Where to look; 0 < lowest <= highest.
struct RateSearchSpec {
  double lowest = 0.5;
  double highest = 1000.0;
  double resolution = 0.05;  // the answer and the next failing rate differ by at most this share
};

// One run of the search.
struct RateTrial {
  double rate = 0;
  bool held = false;
};

// The result of a search.
struct RateSearchResult {
  // The largest rate that held in two trials; nothing when the lowest rate did not.
  std::optional<double> best;
  bool at_highest = false;  // `best` is the end of the range: the true answer may be above
  std::vector<RateTrial> trials;
};

// Doubles the rate from the lowest until a trial fails, halves the distance (in ratio) until it is
// within the resolution, then tries the answer once more with another load: a noisy pass must not
// become the answer. A failed confirmation makes that rate the upper end and the search goes on
// below it. `holds(rate, trial)` runs one trial (`trial` counts from 0, to seed it); its error ends
// the search.
StatusOr<RateSearchResult> FindMaxRate(
    const RateSearchSpec& spec, const std::function<StatusOr<bool>(double, uint32_t)>& holds);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_RATE_SEARCH_H_
