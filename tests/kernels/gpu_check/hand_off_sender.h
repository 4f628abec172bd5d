// HandOffSender: a side whose blocks hold what the other one expects, and what it does to send
// them. One thread.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_SENDER_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_SENDER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/kernels/gpu_check/hand_off_side.h"

namespace baton::kernels::gpu_check {

// The grant of a receiver: a block for each generation. The sender fills them from its block
// `first` on, in a circle.
struct HandOffGrant {
  TransferId transfer;
  uint32_t first = 0;
  std::vector<uint32_t> generations;
};

// See the file comment. `side` outlives it.
class HandOffSender {
 public:
  HandOffSender(HandOffSide* side, Incarnation receiver) : side_(side), receiver_(receiver) {}

  // PatternOf every block; `is_wrong`: with another last byte.
  Status FillBlocks(bool is_wrong);
  // The transfer of the calls below.
  void Prepare(const HandOffGrant& grant);
  Status Send() { return side_->transport()->SendSlices(receiver_, slices_); }
  // Sends it again and again, the second half with wrong checksums: such a transfer never ends, and
  // bytes always move. Until the receiver is gone or it is enough.
  void Flood(const std::function<bool()>& is_enough);
  // Until nothing reads the blocks any more.
  Status Close(int64_t patience_us);

 private:
  HandOffSide* const side_;
  const Incarnation receiver_;
  std::vector<uint64_t> checksums_;  // [blocks][layers]
  TransferId transfer_;
  std::vector<kv::SliceRef> slices_;
};

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_SENDER_H_
