// How many tokens a prompt or an answer is meant to have. Pure; any thread.
#ifndef BATON_LOADGEN_LENGTHS_H_
#define BATON_LOADGEN_LENGTHS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/loadgen/random_draws.h"

namespace baton::loadgen {

// The law of a length.
enum class LengthKind : uint8_t { kFixed, kUniform, kLogNormal };

// A distribution of lengths; every draw is in [1, max].
struct LengthSpec {
  LengthKind kind = LengthKind::kFixed;
  uint32_t low = 1;    // the fixed length; least of kUniform; median of kLogNormal
  uint32_t max = 1;    // largest; the fixed length too
  double sigma = 0.0;  // kLogNormal: standard deviation of the logarithm

  uint32_t Draw(RandomDraws& draws) const;
};

inline constexpr uint32_t kMaxLength = 10'000'000;

// "128", "uniform:64:256", "lognormal:MEDIAN:SIGMA" or "lognormal:MEDIAN:SIGMA:MAX" (default 8 *
// MEDIAN). `flag` names the flag in the InvalidArgument.
StatusOr<LengthSpec> ParseLength(std::string_view flag, std::string_view text);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_LENGTHS_H_
