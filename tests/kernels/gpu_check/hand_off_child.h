// The other side of a hand-off as a process of its own: this program with a hidden argument. It
// dials who started it and obeys that one's words, JSON of one verb and a transfer each:
//   grant  {first, generations}: it is to send that (HandOffSender::Prepare); "ready" is the answer
//   go     sends it
//   flood  HandOffSender::Flood
//   close  ends the sending; "closed" is the answer
//   take   {blocks}: it is to receive so many; "ready" is the answer
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_CHILD_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_CHILD_H_

#include <string>

#include "src/base/thread.h"
#include "tests/kernels/gpu_check/hand_off_side.h"
#include "tests/kernels/gpu_check/program.h"

namespace baton::kernels::gpu_check {

inline constexpr char kHandOffChildFlag[] = "--hand-off-child";

// The work of main with that flag and its text; returns an exit status. The process dies with the
// process that started it.
int RunHandOffChild(const std::string& text);

// A running one. It is killed with this object; no child outlives its parent.
class HandOffChild {
 public:
  HandOffChild() = default;
  ~HandOffChild() { Output(); }

  // It dials `starter`, which outlives it and whose sink hears of its end. `is_wrong`: its blocks
  // hold other bytes than they should.
  Status Start(HandOffSide* starter, const SideOptions& options, bool is_wrong);
  void Kill() { program_.Kill(); }
  // Kills it; the last line that it said.
  std::string Output();

 private:
  Program program_;
  std::string output_;  // the reader's, until it is joined
  Thread reader_;
};

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_CHILD_H_
