// Recorded request traces, and what they become when they are stretched.
#include <vector>

#include "src/loadgen/lengths.h"
#include "src/loadgen/random_draws.h"
#include "src/loadgen/trace_reader.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace baton::fuzz {

using loadgen::kMaxLength;
using loadgen::TraceRow;

namespace {

void CheckRows(const std::vector<TraceRow>& rows) {
  BATON_CHECK(!rows.empty() && rows.front().start_us >= 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    BATON_CHECK(i == 0 || rows[i].start_us >= rows[i - 1].start_us, "row {} goes back in time", i);
    BATON_CHECK(rows[i].num_input >= 1 && rows[i].num_input <= kMaxLength &&
                    rows[i].num_output >= 1 && rows[i].num_output <= kMaxLength,
                "row {} has {} and {} tokens", i, rows[i].num_input, rows[i].num_output);
  }
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(trace) {
  using namespace baton;           // NOLINT: the whole target
  using namespace baton::loadgen;  // NOLINT
  using namespace baton::fuzz;     // NOLINT
  auto rows = ParseTrace(TextOf(input), "trace");
  if (!rows.ok()) return CheckRefusal(rows.status());
  CheckRows(*rows);
  BATON_CHECK(rows->front().start_us == 0, "the first row starts at {}", rows->front().start_us);
  RandomDraws draws(1);
  ScaleTrace({.time = 2.5, .length = 0.1, .spread = true}, draws, *rows);
  CheckRows(*rows);
}
