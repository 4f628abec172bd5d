// Statistics of raw samples. Pure; any thread.
#ifndef BATON_LOADGEN_STATISTICS_H_
#define BATON_LOADGEN_STATISTICS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/loadgen/random_draws.h"

namespace baton::loadgen {

// The smallest of the ascending values that at least a share q of all do not exceed (nearest rank);
// NaN of nothing.
double Quantile(std::span<const double> sorted, double q);

// A p99 of fewer samples than this is the opinion of ten of them.
inline constexpr size_t kMinP99Samples = 1000;

// Count, mean and quantiles of one kind of sample; NaN where there is none.
struct Summary {
  size_t count = 0;
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;  // to be quoted only when p99_holds()
  double max = 0;

  bool p99_holds() const { return count >= kMinP99Samples; }
};
Summary Summarize(std::vector<double> values);

// A fair sample, at most `capacity` large, of values that come without end; the largest of all is
// always in it. One thread.
class Reservoir {
 public:
  explicit Reservoir(size_t capacity) : capacity_(capacity) {}
  void Add(double value);
  // The kept values: the largest first, the rest in no order. The reservoir is empty afterwards.
  std::vector<double> Take();

 private:
  const size_t capacity_;
  std::vector<double> kept_;
  uint64_t num_seen_ = 0;
  RandomDraws draws_{1};
};

// How an interval is computed.
struct BootstrapSpec {
  double confidence = 0.99;
  uint32_t resamples = 4000;
  uint64_t seed = 1;
};

// The typical ratio of B to A over pairs, with its interval.
struct RatioInterval {
  size_t pairs = 0;
  double ratio = 1.0;
  double low = 1.0;
  double high = 1.0;
};

// The exponential of the trimmed mean (a tenth off each end) of log(b[i] / a[i]). The interval is a
// symmetric bootstrap-t interval (Efron and Tibshirani, chapter 12). Its resampled unit is the
// pair. A pair is one block of neighbouring rounds, so values that are correlated within a round
// stay together. InvalidArgument for fewer than 4 pairs, unequal sizes, or a value that is not
// positive and finite.
StatusOr<RatioInterval> PairedRatio(std::span<const double> a, std::span<const double> b,
                                    const BootstrapSpec& spec);

// The answer of a comparison.
enum class RatioVerdict : uint8_t { kNoDifference, kLower, kHigher };
// B is called different from A when the whole interval is on one side of 1 and the ratio is at
// least `min_effect` (0.01 = 1 %) away from it.
RatioVerdict Judge(const RatioInterval& interval, double min_effect);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_STATISTICS_H_
