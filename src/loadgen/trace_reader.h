// Recorded request traces, to be replayed: Mooncake's JSON lines and Azure's CSV, plain or gzip.
// Pure but for the reading of the file; any thread.
#ifndef BATON_LOADGEN_TRACE_READER_H_
#define BATON_LOADGEN_TRACE_READER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/loadgen/random_draws.h"

namespace baton::loadgen {

// Tokens of one entry of Mooncake's `hash_ids`.
inline constexpr uint32_t kTraceBlockTokens = 512;

// One request of a trace.
struct TraceRow {
  int64_t start_us = 0;  // from the first row
  uint32_t num_input = 0;
  uint32_t num_output = 0;
  // Mooncake only: ids of the prompt's blocks of kTraceBlockTokens; equal ids at equal positions
  // are a shared prefix.
  std::vector<uint32_t> block_ids;
};

// How a trace is stretched.
struct TraceScale {
  double time = 1.0;    // 2 = twice as long, half the rate
  double length = 1.0;  // 0.1 = a tenth of the tokens, at least one
  // Rows of one timestamp are spread evenly (seeded) up to the next timestamp: Mooncake's
  // conversation trace is quantised to 3 s.
  bool spread = false;
};

// Rows of either format, told apart by the first line. InvalidArgument with `name`, the number of
// the line and what is wrong in it: a field missing or no number, time that goes back, a list of
// blocks that does not fit the length, no row at all.
StatusOr<std::vector<TraceRow>> ParseTrace(std::string_view text, std::string_view name);

// ParseTrace of a file, unpacked when it is gzip. NotFound, DataLoss (damaged gzip),
// ResourceExhausted above 1 GiB unpacked.
StatusOr<std::vector<TraceRow>> ReadTraceFile(const std::string& path);

// Applies `scale`; starts stay ascending.
void ScaleTrace(const TraceScale& scale, RandomDraws& draws, std::vector<TraceRow>& rows);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_TRACE_READER_H_
