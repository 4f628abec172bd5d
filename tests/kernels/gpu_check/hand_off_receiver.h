// HandOffReceiver: a side that grants blocks of its pool to transfers and looks at what has come:
// the ledger of blocks and generations is that of a decode worker. One thread.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_RECEIVER_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_RECEIVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kvcache/block_pool.h"
#include "tests/kernels/gpu_check/hand_off_sender.h"
#include "tests/kernels/gpu_check/hand_off_side.h"

namespace baton::kernels::gpu_check {

// One transfer, from its grant to its end; the blocks are its own for as long.
struct GrantedTransfer {
  TransferId id;
  Incarnation peer;
  uint32_t first = 0;  // of the sender's blocks, which are taken in a circle
  std::vector<kv::BlockHandle> blocks;
};

// See the file comment. `side` outlives it.
class HandOffReceiver {
 public:
  HandOffReceiver(HandOffSide* side, bool on_runner)
      : side_(side),
        patience_us_(HandOffPatienceUs(on_runner)),
        pool_(side->memory().num_blocks),
        poison_(side->memory().layout.BlockBytes(), std::byte{0xFF}) {}

  HandOffSide* side() const { return side_; }
  int64_t patience_us() const { return patience_us_; }
  uint32_t NumLeaked() const { return pool_.Counts().total - pool_.num_free(); }
  uint32_t NumSlices(const GrantedTransfer& transfer) const {
    return static_cast<uint32_t>(transfer.blocks.size()) * side_->memory().layout.num_layers;
  }

  // Poisoned blocks that may be filled, and a sender that is ready.
  Status Grant(Incarnation peer, uint32_t num_blocks, GrantedTransfer* transfer);
  // Microseconds from here to completion.
  StatusOr<int64_t> Go(const GrantedTransfer& transfer);
  Status Flood(const GrantedTransfer& transfer);
  // The first `num_blocks` have the bytes that the sender's must have.
  Status Compare(const GrantedTransfer& transfer, size_t num_blocks);
  // Nothing writes the blocks any more, and they are given back.
  Status End(const GrantedTransfer& transfer, bool peer_lives);
  // The other way round: the peer is ready to take so many blocks.
  Status AskToTake(Incarnation peer, uint32_t num_blocks, HandOffGrant* grant);
  // All of it: the time of one transfer.
  StatusOr<int64_t> Move(Incarnation peer, uint32_t num_blocks);

  // Until it holds, or the peer is gone, which is an error.
  Status WaitWith(const char* what, Incarnation peer,
                  const std::function<bool(const HandOffEvents&)>& condition);

 private:
  Status Say(const GrantedTransfer& transfer, const char* verb, nlohmann::json word = {}) {
    word["verb"] = verb;
    word["transfer"] = transfer.id.value();
    return side_->transport()->SendControl(transfer.peer, word.dump());
  }
  Status WaitAnswer(const GrantedTransfer& transfer, const char* verb);

  HandOffSide* const side_;
  const int64_t patience_us_;
  kv::BlockPool pool_;
  const std::vector<std::byte> poison_;
  uint64_t last_transfer_ = 0;
};

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_RECEIVER_H_
