// LineAllowance: how many lines of one source reach the log, so that peers who cause such lines do
// not fill it. Any thread.
#ifndef BATON_RPC_LINE_ALLOWANCE_H_
#define BATON_RPC_LINE_ALLOWANCE_H_

#include <cstdint>
#include <optional>

#include "src/base/mutex.h"

namespace baton::rpc {

// See the file comment.
class LineAllowance {
 public:
  // At most `max_lines` in each window, which begins with its first line.
  LineAllowance(uint32_t max_lines, int64_t window_us)
      : max_lines_(max_lines), window_us_(window_us) {}

  // Asked for each line. The line may be logged: how many were held back since the last one that
  // was. Nothing: the line is held back.
  std::optional<uint64_t> Take(int64_t now_us);

 private:
  const uint32_t max_lines_;
  const int64_t window_us_;
  Mutex mutex_;
  std::optional<int64_t> begin_us_ BATON_GUARDED_BY(mutex_);  // of the window
  uint32_t num_logged_ BATON_GUARDED_BY(mutex_) = 0;          // in the window
  uint64_t num_held_back_ BATON_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::rpc

#endif  // BATON_RPC_LINE_ALLOWANCE_H_
