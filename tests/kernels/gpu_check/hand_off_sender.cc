#include "tests/kernels/gpu_check/hand_off_sender.h"

#include <thread>

#include "kvcache/transport/slice_copy.h"

namespace baton::kernels::gpu_check {

using kv::KvMemory;
using kv::SliceChecksum;
using kv::SliceRef;

Status HandOffSender::FillBlocks(bool is_wrong) {
  const KvMemory& memory = side_->memory();
  const size_t slice_bytes = memory.layout.SliceBytes();
  checksums_.clear();
  for (uint32_t block = 0; block < memory.num_blocks; ++block) {
    std::vector<std::byte> bytes = PatternOf(memory.layout, BlockIndex(block));
    if (is_wrong) bytes.back() ^= std::byte{1};
    BATON_RETURN_IF_ERROR(side_->WriteBlock(BlockIndex(block), bytes));
    for (uint32_t layer = 0; layer < memory.layout.num_layers; ++layer) {
      checksums_.push_back(SliceChecksum(bytes.data() + layer * slice_bytes, slice_bytes));
    }
  }
  return side_->Wait();
}

void HandOffSender::Prepare(const HandOffGrant& grant) {
  const KvMemory& memory = side_->memory();
  transfer_ = grant.transfer;
  slices_.clear();
  for (uint32_t layer = 0; layer < memory.layout.num_layers; ++layer) {
    for (uint32_t ordinal = 0; ordinal < grant.generations.size(); ++ordinal) {
      SliceRef& slice = slices_.emplace_back();
      slice.transfer = transfer_;
      slice.attempt = 1;
      slice.ordinal = ordinal;
      slice.layer = layer;
      slice.generation = grant.generations[ordinal];
      slice.source = BlockIndex((grant.first + ordinal) % memory.num_blocks);
      slice.checksum = checksums_[slice.source.value() * memory.layout.num_layers + layer];
    }
  }
}

void HandOffSender::Flood(const std::function<bool()>& is_enough) {
  const size_t num_blocks = slices_.size() / side_->memory().layout.num_layers;
  for (SliceRef& slice : slices_) slice.checksum ^= slice.ordinal >= num_blocks / 2 ? 1 : 0;
  while (!is_enough() && !side_->sink()->Snapshot().down_us.contains(receiver_)) {
    // Refused while the queue is full.
    if (!Send().ok()) std::this_thread::yield();
  }
}

Status HandOffSender::Close(int64_t patience_us) {
  side_->transport()->CloseSend(receiver_, transfer_);
  return side_->sink()->WaitFor("the end of a sending", patience_us, [&](const auto& events) {
    return events.sends_closed.contains(transfer_);
  });
}

}  // namespace baton::kernels::gpu_check
