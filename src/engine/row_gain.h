// RowGain: whether more rows in a decode step give more tokens a second, by measured steps. Pure;
// engine thread.
//
// 1. A step time is an average for each number of rows, of steps without prompts.
// 2. More rows pay when they raise the tokens a second, as expected, by kMargin.
// 3. Rows whose time nobody has measured are tried when the balance pays for it. The balance gets
//    kAllowance of the time of every step, and what guesses won or lost, as measured. It is
//    never above kMaxBalanceSteps steps. Nothing is guessed while it is negative. So guesses cost
//    at most kAllowance of the time, and the last kMaxBalanceSteps steps' worth of what they won.
#ifndef BATON_ENGINE_ROW_GAIN_H_
#define BATON_ENGINE_ROW_GAIN_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace baton::engine {

// See the file comment.
class RowGain {
 public:
  static constexpr double kMargin = 1.02;
  static constexpr double kAllowance = 0.005;
  static constexpr double kMaxBalanceSteps = 16;

  // A step of `num_rows` rows without guesses, `num_guesses` guesses and no prompts took
  // `elapsed_us` and gave `num_more` tokens more than it has rows without guesses.
  void Measure(uint32_t num_rows, uint32_t num_guesses, uint32_t num_more, int64_t elapsed_us);

  // Whether `num_more` rows of guesses pay in a step of `num_rows` rows that is expected to give
  // `expected` tokens. After right guesses the next one is right with probability `acceptance`.
  // `may_try`: rows may be tried whose time is not known, or whose guesses were wrong.
  bool Pays(uint32_t num_rows, uint32_t num_more, double expected, double acceptance,
            bool may_try) const;

  // Average time of a step of so many rows; 0 = not known.
  double StepUs(uint32_t num_rows) const;
  double balance_us() const { return balance_us_; }
  // Tokens that `num_guesses` guesses give beyond the step's own.
  static double Expected(uint32_t num_guesses, double acceptance);

 private:
  static constexpr size_t kNumExact = 33;  // rows 0..32 one by one, then 8 to a slot
  static constexpr size_t kNumSlots = kNumExact + 48;
  static size_t SlotOf(uint32_t num_rows);

  std::array<double, kNumSlots> step_us_{};
  double balance_us_ = 0;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ROW_GAIN_H_
