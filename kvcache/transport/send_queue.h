// SendQueue: what one connection still has to write, as frames: introduction and control frames
// first, then slices in the order they were posted. It makes no system call. The connection's
// thread.
//
// Slices wait as SliceRefs; a bounded batch of them is turned into headers and places at a time. An
// inline slice is written straight from its block.
//
// Invariants
//  1. Gather and Commit walk the same bytes: the stream is a sequence of whole frames.
//  2. After DropTransfer no block of that transfer is read any more: a frame of it that is half
//     written ends with zeroes (its checksum then fails at the peer, for a transfer that is over).
//  3. Each slice and control message leaves the queue once, counted in `Progress`.
#ifndef BATON_KVCACHE_TRANSPORT_SEND_QUEUE_H_
#define BATON_KVCACHE_TRANSPORT_SEND_QUEUE_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "kvcache/kv_arena.h"
#include "kvcache/transport/frame.h"

namespace baton::kv {

// InvalidArgument when a slice names a block or layer outside the arena. Pure; any thread.
Status ValidateSlices(std::span<const SliceRef> slices, const KvMemory& memory);

// The queue; see the file comment.
class SendQueue {
 public:
  // Numbers of slices and control messages that left the queue; the caller releases them from the
  // peer's limits.
  struct Progress {
    uint32_t slices = 0;
    uint32_t controls = 0;
    uint64_t control_bytes = 0;
  };

  // `zeroes` holds at least SliceBytes. Both outlive the queue.
  SendQueue(const KvArena* arena, const std::vector<std::byte>* zeroes);

  // How the slices of this connection travel, and its epoch; before the first slice.
  void SetUp(bool by_reference, uint64_t epoch);

  // A frame of the introduction or a Close; not counted in Progress.
  void PushFrame(const FrameHeader& header, std::span<const std::byte> payload);
  void PushControl(std::string bytes);
  void PushSlices(std::span<const SliceRef> slices);

  // Fills `parts` (>= 2) with the next bytes to write, about `max_bytes` (a frame more at most),
  // and returns how many parts are used; 0 = nothing waits. The places stay valid until Commit.
  size_t Gather(std::span<iovec> parts, size_t max_bytes);
  // The first `size_bytes` of what was gathered are written.
  Progress Commit(size_t size_bytes);

  // Drops what waits of one transfer; see invariant 2.
  Progress DropTransfer(TransferId transfer);
  // Everything that waits, for a connection that is gone.
  Progress Remaining() const;

  bool empty() const {
    return messages_.empty() && batch_begin_ == batch_.size() && slices_.empty();
  }

 private:
  // A frame with its own payload.
  struct Message {
    std::array<std::byte, kFrameHeaderBytes> header;
    std::string payload;
    bool is_control = false;

    size_t size() const { return kFrameHeaderBytes + payload.size(); }
  };
  // A slice that is being written.
  struct Item {
    SliceRef slice;
    const std::byte* payload = nullptr;  // null = by reference
  };

  // Where the front of the stream is: between frames, inside a message or inside a slice.
  enum class Front : uint8_t { kBoundary, kMessage, kSlice };
  // One frame in the order Gather laid out, with the bytes of it that are left.
  struct Step {
    bool is_message = false;
    size_t left_bytes = 0;
  };
  // Builds the iovecs of one Gather.
  class Layout;

  void FillBatch();

  const KvArena* const arena_;
  const std::vector<std::byte>* const zeroes_;
  bool by_reference_ = false;
  uint64_t epoch_ = 0;

  std::deque<Message> messages_;
  std::deque<SliceRef> slices_;  // behind the batch
  // The slices that are frames already: [batch_begin_, size) is left; headers_[i] is of batch_[i].
  std::vector<Item> batch_;
  std::vector<std::array<std::byte, kFrameHeaderBytes>> headers_;
  size_t batch_begin_ = 0;
  Front front_ = Front::kBoundary;
  size_t offset_ = 0;        // bytes written of the frame at the front
  std::vector<Step> steps_;  // of the last Gather
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_SEND_QUEUE_H_
