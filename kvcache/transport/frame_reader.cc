#include "kvcache/transport/frame_reader.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"

namespace baton::kv {
namespace {

// 64 KiB = 1024 headers a call. Refused payload is read in pieces of it too.
constexpr size_t kBufferBytes = size_t{64} << 10;
// A control buffer keeps at most this much between messages.
constexpr size_t kKeptPayloadBytes = size_t{256} << 10;

}  // namespace

FrameReader::FrameReader(bool read_ahead) : read_ahead_(read_ahead), buffer_(kBufferBytes) {}

// The room for the next bytes of payload; grows the buffer to at most twice what has arrived.
std::span<std::byte> FrameReader::PayloadRoom() {
  if (target_ == Target::kPlace) return {place_, payload_left_};
  if (target_ == Target::kBuffer) {
    const size_t room = std::min(payload_left_, std::max(payload_have_, kBufferBytes));
    if (payload_.size() < payload_have_ + room) payload_.resize(payload_have_ + room);
    return {payload_.data() + payload_have_,
            std::min(payload_left_, payload_.size() - payload_have_)};
  }
  return {};
}

int FrameReader::Prepare(iovec (&parts)[2]) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (payload_left_ > 0 && target_ != Target::kNowhere) {
    // All buffered bytes have moved to the payload already. The next header follows in the same
    // call.
    BATON_CHECK(begin_ == end_, "{} bytes are buffered inside a payload", end_ - begin_);
    const std::span<std::byte> room = PayloadRoom();
    parts[0] = {room.data(), room.size()};
    if (room.size() < payload_left_) return 1;
    parts[1] = {buffer_.data(), kFrameHeaderBytes};
    return 2;
  }
  if (payload_left_ > 0) {
    // Refused payload is read over and over into the same buffer, and never beyond its end.
    begin_ = end_ = 0;
    parts[0] = {buffer_.data(), std::min(payload_left_, buffer_.size())};
    return 1;
  }
  if (begin_ > 0 && buffer_.size() - begin_ < kFrameHeaderBytes) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const size_t want = read_ahead_ ? buffer_.size() - end_ : kFrameHeaderBytes - (end_ - begin_);
  parts[0] = {buffer_.data() + end_, want};
  return 1;
}

void FrameReader::Commit(size_t size_bytes) {
  if (payload_left_ > 0) {
    const size_t taken = std::min(size_bytes, payload_left_);
    payload_left_ -= taken;
    if (target_ == Target::kPlace) place_ += taken;
    if (target_ == Target::kBuffer) payload_have_ += taken;
    size_bytes -= taken;
  }
  end_ += size_bytes;
}

FrameReader::Event FrameReader::Next() {
  if (!error_.ok()) return Event::kBad;
  if (in_payload_) {
    TakeBufferedPayload();
    if (payload_left_ > 0) return Event::kNeedBytes;
    in_payload_ = false;
    target_ = Target::kNone;
    return Event::kPayload;
  }
  if (end_ - begin_ < kFrameHeaderBytes) return Event::kNeedBytes;
  const std::span<const std::byte, kFrameHeaderBytes> bytes(buffer_.data() + begin_,
                                                            kFrameHeaderBytes);
  StatusOr<FrameHeader> decoded = DecodeFrameHeader(bytes);
  if (!decoded.ok()) {
    error_ = decoded.status();
    return Event::kBad;
  }
  header_ = *decoded;
  begin_ += kFrameHeaderBytes;
  return Event::kHeader;
}

void FrameReader::StartPayload(Target target) {
  BATON_CHECK(!in_payload_ && header_.payload_bytes > 0, "no payload of {} bytes to place",
              header_.payload_bytes);
  in_payload_ = true;
  target_ = target;
  payload_left_ = header_.payload_bytes;
  payload_have_ = 0;
}

void FrameReader::ReadInto(std::byte* dest) {
  StartPayload(Target::kPlace);
  place_ = dest;
}

void FrameReader::ReadIntoBuffer() {
  if (payload_.size() > kKeptPayloadBytes) payload_ = {};
  StartPayload(Target::kBuffer);
}

void FrameReader::Discard() {
  if (!in_payload_) {
    StartPayload(Target::kNowhere);
    return;
  }
  target_ = Target::kNowhere;
  place_ = nullptr;
}

void FrameReader::TakeBufferedPayload() {
  while (payload_left_ > 0 && begin_ != end_) {
    size_t taken = std::min(payload_left_, end_ - begin_);
    if (target_ != Target::kNowhere) {
      const std::span<std::byte> room = PayloadRoom();
      taken = std::min(taken, room.size());
      std::memcpy(room.data(), buffer_.data() + begin_, taken);
    }
    begin_ += taken;
    payload_left_ -= taken;
    if (target_ == Target::kPlace) place_ += taken;
    if (target_ == Target::kBuffer) payload_have_ += taken;
  }
}

}  // namespace baton::kv
