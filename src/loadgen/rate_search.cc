#include "src/loadgen/rate_search.h"

#include <algorithm>
#include <cmath>

namespace baton::loadgen {
namespace {

// Searches a range of 2^40 with the finest resolution and every confirmation failing.
constexpr size_t kMaxTrials = 200;

// The state of one search: a rate that held and one that did not.
class RateSearch {
 public:
  RateSearch(const RateSearchSpec& spec,
             const std::function<StatusOr<bool>(double, uint32_t)>& holds)
      : spec_(spec), holds_(holds) {}

  StatusOr<RateSearchResult> Run() {
    BATON_ASSIGN_OR_RETURN(const bool lowest_holds, Try(spec_.lowest));
    if (!lowest_holds) return result_;
    low_ = spec_.lowest;
    BATON_RETURN_IF_ERROR(Climb());
    while (result_.trials.size() < kMaxTrials) {
      BATON_RETURN_IF_ERROR(Halve());
      BATON_ASSIGN_OR_RETURN(const bool confirmed, Try(low_));
      if (confirmed) {
        result_.best = low_;
        result_.at_highest = low_ >= spec_.highest;
        return result_;
      }
      if (low_ <= spec_.lowest) return result_;
      high_ = low_;
      low_ = LargestThatHeldBelow(high_);
    }
    return result_;
  }

 private:
  StatusOr<bool> Try(double rate) {
    BATON_ASSIGN_OR_RETURN(const bool held,
                           holds_(rate, static_cast<uint32_t>(result_.trials.size())));
    result_.trials.push_back({rate, held});
    return held;
  }

  // Doubles until a trial fails or the range ends; then low_ held and high_ did not (or is the
  // end).
  Status Climb() {
    high_ = INFINITY;
    while (low_ < spec_.highest && std::isinf(high_)) {
      const double next = std::min(2.0 * low_, spec_.highest);
      BATON_ASSIGN_OR_RETURN(const bool held, Try(next));
      (held ? low_ : high_) = next;
    }
    return OkStatus();
  }

  Status Halve() {
    while (std::isfinite(high_) && high_ > low_ * (1.0 + spec_.resolution) &&
           result_.trials.size() < kMaxTrials) {
      const double middle = std::sqrt(low_ * high_);
      BATON_ASSIGN_OR_RETURN(const bool held, Try(middle));
      (held ? low_ : high_) = middle;
    }
    return OkStatus();
  }

  double LargestThatHeldBelow(double rate) const {
    double largest = spec_.lowest;
    for (const RateTrial& trial : result_.trials) {
      if (trial.held && trial.rate < rate) largest = std::max(largest, trial.rate);
    }
    return largest;
  }

  const RateSearchSpec& spec_;
  const std::function<StatusOr<bool>(double, uint32_t)>& holds_;
  RateSearchResult result_;
  double low_ = 0;
  double high_ = 0;
};

}  // namespace

StatusOr<RateSearchResult> FindMaxRate(
    const RateSearchSpec& spec, const std::function<StatusOr<bool>(double, uint32_t)>& holds) {
  return RateSearch(spec, holds).Run();
}

}  // namespace baton::loadgen
