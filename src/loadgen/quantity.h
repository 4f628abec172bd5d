// Numbers with units as they are typed at the command line and in an objective. Pure; any thread.
#ifndef BATON_LOADGEN_QUANTITY_H_
#define BATON_LOADGEN_QUANTITY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton::loadgen {

// A finite decimal number, nothing before or after it; InvalidArgument with the text otherwise.
StatusOr<double> ParseNumber(std::string_view text);
// A whole number in [low, high].
struct WholeRange {
  uint64_t low;
  uint64_t high;
};
StatusOr<uint64_t> ParseWhole(std::string_view text, WholeRange range);
// Microseconds of "30ms", "1.5s", "250us", "2m", "1h"; a unit is required, negative is refused.
StatusOr<int64_t> ParseTimeUs(std::string_view text);
// A share in [0, 1] of "99%" or "0.99".
StatusOr<double> ParseShare(std::string_view text);
// "a,b,c" cut at `separator`; empty pieces stay.
std::vector<std::string_view> SplitAt(std::string_view text, char separator);

// "830 us", "12.3 ms", "4.56 s".
std::string FormatUs(double us);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_QUANTITY_H_
