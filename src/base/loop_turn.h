// LoopTurn: since when the calling thread's loop has worked without a wait. Code far below a loop
// asks whether it may still do a thing itself, or leaves it to a thread that is free.
//
// One value for each thread. A thread without such a loop has no turn.
#ifndef BATON_BASE_LOOP_TURN_H_
#define BATON_BASE_LOOP_TURN_H_

#include <cstdint>

namespace baton {

// See the file comment.
class LoopTurn {
 public:
  // The thread's loop has stopped waiting at `now_us` of the system clock; 0 = it has no turn.
  static void Begin(int64_t now_us) { began_us_ = now_us; }
  // 0 without a turn.
  static int64_t LastedUs(int64_t now_us) { return began_us_ == 0 ? 0 : now_us - began_us_; }

 private:
  static inline thread_local int64_t began_us_ = 0;
};

}  // namespace baton

#endif  // BATON_BASE_LOOP_TURN_H_
