#include "kvcache/transport/send_queue.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/xxh3.h"

namespace baton::kv {
namespace {

// Slices that become frames at a time: 512 references are one 32 KiB write; 64 inline slices of
// 12 KiB are 768 KiB in 128 parts (the kernel takes 1024 parts).
constexpr size_t kBatchReferences = 512;
constexpr size_t kBatchInline = 64;

}  // namespace

Status ValidateSlices(std::span<const SliceRef> slices, const KvMemory& memory) {
  for (const SliceRef& slice : slices) {
    if (slice.source.value() >= memory.num_blocks || slice.layer >= memory.layout.num_layers) {
      return InvalidArgument(
          "slice of block {} layer {} is outside an arena of {} blocks, {} layers", slice.source,
          slice.layer, memory.num_blocks, memory.layout.num_layers);
    }
  }
  return OkStatus();
}

// Lays frames into iovecs; neighbouring headers become one part.
class SendQueue::Layout {
 public:
  Layout(std::span<iovec> parts, std::vector<Step>* steps) : parts_(parts), steps_(steps) {}

  // Two parts a frame at most.
  bool HasRoom() const { return parts_.size() - used_ >= 2; }
  size_t used() const { return used_; }
  size_t total_bytes() const { return total_bytes_; }

  // Adds the frame's bytes behind the first `skip`.
  void Add(bool is_message, const std::array<std::byte, kFrameHeaderBytes>& header,
           std::span<const std::byte> payload, size_t skip) {
    const size_t before = total_bytes_;
    if (skip < kFrameHeaderBytes) AddPart(std::span(header).subspan(skip));
    const size_t payload_skip = skip > kFrameHeaderBytes ? skip - kFrameHeaderBytes : 0;
    if (payload_skip < payload.size()) AddPart(payload.subspan(payload_skip));
    steps_->push_back({is_message, total_bytes_ - before});
  }

 private:
  void AddPart(std::span<const std::byte> bytes) {
    total_bytes_ += bytes.size();
    if (used_ > 0) {
      iovec& last = parts_[used_ - 1];
      if (static_cast<std::byte*>(last.iov_base) + last.iov_len == bytes.data()) {
        last.iov_len += bytes.size();
        return;
      }
    }
    // sendmsg only reads; iovec has no const form.
    parts_[used_++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  }

  const std::span<iovec> parts_;
  std::vector<Step>* const steps_;
  size_t used_ = 0;
  size_t total_bytes_ = 0;
};

SendQueue::SendQueue(const KvArena* arena, const std::vector<std::byte>* zeroes)
    : arena_(arena), zeroes_(zeroes) {
  BATON_CHECK(zeroes->size() >= arena->layout().SliceBytes(), "{} zeroes for slices of {}",
              zeroes->size(), arena->layout().SliceBytes());
}

void SendQueue::SetUp(bool by_reference, uint64_t epoch) {
  by_reference_ = by_reference;
  epoch_ = epoch;
}

void SendQueue::PushFrame(const FrameHeader& header, std::span<const std::byte> payload) {
  Message message;
  FrameHeader full = header;
  full.payload_bytes = static_cast<uint32_t>(payload.size());
  full.checksum = payload.empty() ? 0 : Xxh3Hash64(payload.data(), payload.size());
  EncodeFrameHeader(full, message.header);
  message.payload.assign(reinterpret_cast<const char*>(payload.data()), payload.size());
  messages_.push_back(std::move(message));
}

void SendQueue::PushControl(std::string bytes) {
  Message message;
  FrameHeader header;
  header.kind = FrameKind::kControl;
  header.epoch = epoch_;
  header.payload_bytes = static_cast<uint32_t>(bytes.size());
  header.checksum = bytes.empty() ? 0 : Xxh3Hash64(bytes.data(), bytes.size());
  EncodeFrameHeader(header, message.header);
  message.payload = std::move(bytes);
  message.is_control = true;
  messages_.push_back(std::move(message));
}

void SendQueue::PushSlices(std::span<const SliceRef> slices) {
  slices_.insert(slices_.end(), slices.begin(), slices.end());
}

void SendQueue::FillBatch() {
  if (batch_begin_ < batch_.size()) return;
  batch_.clear();
  headers_.clear();
  batch_begin_ = 0;
  const size_t slice_bytes = arena_->layout().SliceBytes();
  const auto inline_bytes = static_cast<uint32_t>(by_reference_ ? 0 : slice_bytes);
  const size_t count = std::min(slices_.size(), by_reference_ ? kBatchReferences : kBatchInline);
  for (size_t i = 0; i < count; ++i) {
    const SliceRef& slice = slices_[i];
    Item item{slice, by_reference_ ? nullptr : arena_->Slice(slice.source, slice.layer)};
    batch_.push_back(item);
    EncodeFrameHeader(SliceFrameHeader(slice, epoch_, inline_bytes), headers_.emplace_back());
  }
  slices_.erase(slices_.begin(), slices_.begin() + static_cast<ptrdiff_t>(count));
}

size_t SendQueue::Gather(std::span<iovec> parts, size_t max_bytes) {
  steps_.clear();
  FillBatch();
  Layout layout(parts, &steps_);
  const size_t slice_bytes = arena_->layout().SliceBytes();
  const auto add_slice = [&](size_t index, size_t skip) {
    const Item& item = batch_[index];
    const size_t payload_bytes = item.payload == nullptr ? 0 : slice_bytes;
    layout.Add(false, headers_[index], {item.payload, payload_bytes}, skip);
  };
  size_t next = batch_begin_;
  if (front_ == Front::kSlice) add_slice(next++, offset_);
  size_t skip = front_ == Front::kMessage ? offset_ : 0;
  for (const Message& message : messages_) {
    if (!layout.HasRoom() || layout.total_bytes() >= max_bytes) return layout.used();
    const auto* const data = reinterpret_cast<const std::byte*>(message.payload.data());
    layout.Add(true, message.header, {data, message.payload.size()}, skip);
    skip = 0;
  }
  while (next < batch_.size() && layout.HasRoom() && layout.total_bytes() < max_bytes) {
    add_slice(next++, 0);
  }
  return layout.used();
}

SendQueue::Progress SendQueue::Commit(size_t size_bytes) {
  Progress progress;
  for (const Step& step : steps_) {
    if (size_bytes < step.left_bytes) {
      if (size_bytes == 0) break;
      // The frame that was at the front before, or a new one, may be cut here.
      const bool is_old_front =
          front_ == (step.is_message ? Front::kMessage : Front::kSlice) && offset_ > 0;
      offset_ = (is_old_front ? offset_ : 0) + size_bytes;
      front_ = step.is_message ? Front::kMessage : Front::kSlice;
      break;
    }
    size_bytes -= step.left_bytes;
    front_ = Front::kBoundary;
    offset_ = 0;
    if (!step.is_message) {
      ++batch_begin_;
      ++progress.slices;
      continue;
    }
    if (messages_.front().is_control) {
      ++progress.controls;
      progress.control_bytes += messages_.front().payload.size();
    }
    messages_.pop_front();
  }
  steps_.clear();
  return progress;
}

SendQueue::Progress SendQueue::DropTransfer(TransferId transfer) {
  Progress progress;
  const auto is_dropped = [transfer](const SliceRef& slice) { return slice.transfer == transfer; };
  progress.slices += static_cast<uint32_t>(std::erase_if(slices_, is_dropped));
  size_t kept = batch_begin_;
  for (size_t i = batch_begin_; i < batch_.size(); ++i) {
    const bool is_half_written = i == batch_begin_ && front_ == Front::kSlice;
    if (is_dropped(batch_[i].slice) && !is_half_written) {
      ++progress.slices;
      continue;
    }
    if (is_dropped(batch_[i].slice) && !by_reference_) batch_[i].payload = zeroes_->data();
    batch_[kept] = batch_[i];
    headers_[kept] = headers_[i];
    ++kept;
  }
  batch_.resize(kept);
  headers_.resize(kept);
  return progress;
}

SendQueue::Progress SendQueue::Remaining() const {
  Progress progress;
  progress.slices = static_cast<uint32_t>(slices_.size() + batch_.size() - batch_begin_);
  for (const Message& message : messages_) {
    if (!message.is_control) continue;
    ++progress.controls;
    progress.control_bytes += message.payload.size();
  }
  return progress;
}

}  // namespace baton::kv
