#include "tests/nccl/loopback_comm.h"

#include <algorithm>
#include <cstring>

namespace baton::kv::nccl {
namespace {

using nccl_test::Operation;
using nccl_test::Segment;

// Moved under the mutex at once, so that an abort waits no longer than for this.
constexpr size_t kTurnBytes = size_t{256} << 10;

// Copies between an operation's memory and the ring from stream position `at` on.
void CopyRing(std::byte* ring, uint64_t at, std::byte* memory, size_t size, bool to_ring) {
  while (size > 0) {
    const size_t offset = at % Segment::kRingBytes;
    const size_t piece = std::min(size, Segment::kRingBytes - offset);
    if (to_ring) {
      std::memcpy(ring + offset, memory, piece);
    } else {
      std::memcpy(memory, ring + offset, piece);
    }
    at += piece;
    memory += piece;
    size -= piece;
  }
}

}  // namespace

bool Comm::MoveFront(std::deque<Operation>* operations, bool is_send, int64_t now_us) {
  if (operations->empty() || operations->front().not_before_us > now_us) return false;
  Operation& operation = operations->front();
  Segment::Channel& channel = segment->channels[is_send ? rank : 1 - rank];
  const uint64_t put = channel.put.load(std::memory_order_acquire);
  const uint64_t taken = channel.taken.load(std::memory_order_acquire);
  const size_t room = is_send ? Segment::kRingBytes - (put - taken) : put - taken;
  const size_t end = std::min(operation.size, operation.stop_at);
  const size_t size = std::min({room, end - operation.done, kTurnBytes});
  std::byte* const memory = operation.memory + operation.done;
  CopyRing(channel.ring, is_send ? put : taken, memory, size, is_send);
  if (is_send && operation.corrupts && size > 0) {
    operation.corrupts = false;
    channel.ring[put % Segment::kRingBytes] ^= std::byte{0x40};
  }
  (is_send ? channel.put : channel.taken).fetch_add(size, std::memory_order_acq_rel);
  operation.done += size;
  if (operation.done == operation.size) {
    operation.stream->num_done.fetch_add(1, std::memory_order_acq_rel);
    operations->pop_front();
    return true;
  }
  return size > 0;
}

bool Comm::Progress(int64_t now_us) {
  if (error == kSuccess && segment != nullptr && segment->told_remote_error[rank].load() != 0) {
    error = kRemoteError;
  }
  if (error != kSuccess || Poll() != kSuccess) return false;
  const bool sent = MoveFront(&sends, true, now_us);
  const bool received = MoveFront(&receives, false, now_us);
  return sent || received;
}

void Comm::DropOperations() {
  for (auto* const operations : {&sends, &receives}) {
    for (const Operation& operation : *operations) {
      operation.stream->num_done.fetch_add(1, std::memory_order_acq_rel);
    }
    operations->clear();
  }
}

Result Comm::Poll() const {
  if (error != kSuccess) return error;
  if (never_built || segment->joined[1 - rank].load(std::memory_order_acquire) == 0) {
    return kInProgress;
  }
  return kSuccess;
}

}  // namespace baton::kv::nccl
