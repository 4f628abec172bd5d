// A service level objective: limits that one request meets or not, and the share that must. Pure;
// any thread.
#ifndef BATON_LOADGEN_SLO_H_
#define BATON_LOADGEN_SLO_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/loadgen/request_record.h"

namespace baton::loadgen {

// Limits in microseconds; a limit that is not set always holds.
struct Slo {
  std::optional<int64_t> ttft_us;          // from the intended start
  std::optional<int64_t> itl_us;           // 99 % of the gaps of the stream (below 100 gaps: all)
  std::optional<int64_t> tpot_us;          // average gap
  std::optional<int64_t> second_token_us;  // from the intended start
  std::optional<int64_t> e2e_us;
  double goodput = 0.99;  // share of the attempted requests that must meet every limit
};

// "ttft=400ms,itl=30ms,goodput=99%": any of ttft, itl, tpot, second_token, e2e with a time, goodput
// with a share; at least one time. InvalidArgument naming the piece, and the nearest name for an
// unknown one.
StatusOr<Slo> ParseSlo(std::string_view text);
std::string ToString(const Slo& slo);

// True when the request ended well and met every limit. Limits on gaps and on the second token are
// not met by an answer of several tokens that came in one piece.
bool MeetsSlo(const Slo& slo, const RequestRecord& record);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_SLO_H_
