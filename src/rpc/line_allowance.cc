#include "src/rpc/line_allowance.h"

#include <utility>

namespace baton::rpc {

std::optional<uint64_t> LineAllowance::Take(int64_t now_us) {
  MutexLock lock(mutex_);
  if (!begin_us_ || now_us - *begin_us_ >= window_us_) {
    begin_us_ = now_us;
    num_logged_ = 0;
  }
  if (num_logged_ >= max_lines_) {
    ++num_held_back_;
    return std::nullopt;
  }
  ++num_logged_;
  return std::exchange(num_held_back_, 0);
}

}  // namespace baton::rpc
