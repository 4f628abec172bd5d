// RowGain: how many guesses a decode step should verify, by what steps of each number of rows took.
// Pure; engine thread.
//
// 1. The time of a number of rows is the average of its last steps without prompts. It is known for
//    kKeptSteps steps, and the fewer steps it is the average of, the shorter. Between two known
//    numbers of rows the time lies on the line between them, and fewer rows never take longer.
// 2. Guesses are verified where they raise the tokens a second, as expected, by kMargin. Their
//    number is the one that raises them most: rows up to the end of a kernel's tile may cost
//    nothing, and the next one much.
// 3. More rows than any known step had are tried where they would pay if they took no longer, and
//    where the balance can lose their possible cost, less half of the time that they should win.
// 4. The balance gets kAllowance of the time of every step, and what guesses won or lost, as
//    measured. It is never above kMaxBalanceSteps steps. Nothing is guessed while it is negative.
//    So guesses that never pay cost kAllowance of the time and a few steps more.
#ifndef BATON_ENGINE_ROW_GAIN_H_
#define BATON_ENGINE_ROW_GAIN_H_

#include <array>
#include <cstdint>
#include <span>

#include "scheduler/proposer.h"
#include "src/base/limits.h"

namespace baton::engine {

// See the file comment.
class RowGain {
 public:
  static constexpr double kMargin = 1.02;
  static constexpr double kAllowance = 0.0025;
  static constexpr double kMaxBalanceSteps = 8;
  // 5 to 10 s of one stream: machines change their speed, and texts grow. An eighth of it for one
  // step, which may have been held up.
  static constexpr uint32_t kKeptSteps = 2048;
  static constexpr uint32_t kMaxRows = limits::kMaxRunning + scheduler::kMaxProposalRows;

  // A step of `num_rows` (> 0) rows without guesses, `num_guesses` guesses and no prompts took
  // `elapsed_us` and gave `num_more` tokens more than it has rows without guesses. About 1 us.
  void Measure(uint32_t num_rows, uint32_t num_guesses, uint32_t num_more, int64_t elapsed_us);

  // How many of gains.size() guesses of one choice to add to a step of `num_rows` rows that is
  // expected to give `expected` tokens. `gains`: tokens that the first 1, 2 .. of them give.
  uint32_t Choose(uint32_t num_rows, double expected, std::span<const double> gains) const;

  // The time of a step of so many rows; 0 = not known.
  double StepUs(uint32_t num_rows) const;
  double balance_us() const { return balance_us_; }

 private:
  // Steps of an average: the newest one has an eighth of the weight.
  static constexpr uint32_t kAveraged = 8;

  // Steps of one number of rows.
  struct Steps {
    double average_us = 0;
    uint32_t num = 0;   // at most kAveraged
    uint32_t last = 0;  // the number of the last one, of num_steps_
  };
  bool IsKnown(const Steps& steps) const {
    return num_steps_ - steps.last < kKeptSteps / kAveraged * steps.num;
  }
  // Fills step_us_.
  void DrawLines();

  std::array<Steps, kMaxRows + 1> steps_{};
  std::array<double, kMaxRows + 1> step_us_{};
  uint32_t num_steps_ = 0;
  double balance_us_ = 0;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ROW_GAIN_H_
