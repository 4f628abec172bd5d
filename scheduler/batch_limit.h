// BatchLimit: how many streams a worker should run at once, learnt from its measured decode steps.
// Pure; engine thread.
//
// A step of b rows takes about t = fixed + b * row: the weights are read once, and each row adds
// its own work. So b / t, tokens a second, rises with b, ever more slowly, to at most 1 / row. At
// b = kRowsPerFixed * fixed / row it is 92 % of that. More streams would add little, and each of
// them would crawl. The two costs are fitted to the steps of the last minute (weighted least
// squares over a table by batch size), around the limit that is in force: further away the line is
// none.
//
// Invariants
//  1. The limit is in [min(least, most), most].
//  2. One look raises the limit to at most twice its value and lowers it by at most a third. A
//     look needs kStepsPerLook steps that nearly filled the limit, or took longer than the
//     objective on average.
//  3. The limit stays where it is while the best one is within a quarter of it.
//  4. Equal measurements give equal limits, on any machine.
#ifndef BATON_SCHEDULER_BATCH_LIMIT_H_
#define BATON_SCHEDULER_BATCH_LIMIT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "scheduler/step_cost.h"

namespace baton::scheduler {

// Where the limit begins and how far it may go; rows.
struct BatchLimitConfig {
  uint32_t most = 256;  // >= 1
  // A stream that waits for a place has no token at all, so a crowd of clients runs at once also
  // where more streams add nothing: 32 streams then have a 32nd of the throughput each.
  uint32_t least = 32;
  uint32_t first = 32;  // before anything was measured
  // A step of more rows than fit into this time is too long for their inter-token latency; 0 = no
  // such objective. It may lower the limit to 1.
  int64_t itl_objective_us = 0;
};

// The config of a worker that runs `most` rows and expects steps to cost `first_cost`.
BatchLimitConfig BatchLimitFor(uint32_t most, const StepWeights& first_cost);

// See the file comment.
class BatchLimit {
 public:
  explicit BatchLimit(const BatchLimitConfig& config);

  // A step of `num_rows` decode rows and no prompt took `elapsed_us` (<= 0 is ignored). O(1); a
  // look is O(table).
  void Measure(uint32_t num_rows, int64_t elapsed_us, int64_t now_us);
  // Streams that may run at once.
  uint32_t limit() const { return limit_; }

  // fixed_us = 19 row_us would reach 95 %, with batches half as large again: each waiting stream
  // then begins later by what all of them gain.
  static constexpr double kRowsPerFixed = 12;
  static constexpr uint32_t kStepsPerLook = 16;

 private:
  // The measured steps of similar sizes.
  struct Level {
    uint32_t num_steps = 0;  // since they were last forgotten
    double rows = 0;         // averages of the last steps
    double us = 0;
    int64_t measured_us = 0;
  };
  // Sizes of batches, each at most half as large again as the one before.
  static constexpr std::array<uint32_t, 16> kSizes = {1,  2,  3,  4,  6,  8,   12,  16,
                                                      24, 32, 48, 64, 96, 128, 192, 256};
  // The two costs of the file comment.
  struct Line {
    double fixed_us = 0;
    double row_us = 0;
  };

  // Nothing where the sizes that were measured near the limit are too much alike.
  std::optional<Line> Fit(int64_t now_us) const;
  // The best limit by that line.
  double BestOf(const Line& line) const;
  void Look(int64_t now_us);
  // Only one size near the limit was measured.
  void LookWithoutLine();
  void Set(double limit);

  const BatchLimitConfig config_;
  const uint32_t floor_;
  uint32_t limit_;
  // Steps that count for a look, since the last one, and their time in all.
  uint32_t num_steps_ = 0;
  double steps_us_ = 0;
  std::array<Level, kSizes.size()> levels_;
};

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_BATCH_LIMIT_H_
