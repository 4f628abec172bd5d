// FrameReader: turns the bytes of one connection into frames. It owns the buffers and the position
// in the stream; it makes no system call and judges only what frame.h judges. The connection's
// thread.
//
// Payload of slices goes straight to where the caller says (the destination block), or nowhere; all
// other payload is collected in a buffer that grows only as bytes really arrive.
//
//   while (recv into Prepare()) { Commit(n); while (more) switch (Next()) ... }
#ifndef BATON_KVCACHE_TRANSPORT_FRAME_READER_H_
#define BATON_KVCACHE_TRANSPORT_FRAME_READER_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/transport/frame.h"

namespace baton::kv {

// See the file comment.
class FrameReader {
 public:
  // The result of Next.
  enum class Event : uint8_t {
    kNeedBytes,  // read on
    kHeader,     // header() is new; if it has payload, say where that goes before the next call
    kPayload,    // the payload of header() is complete
    kBad,        // error() says why; the stream is unusable
  };

  // With `read_ahead` it takes as many bytes as come (frames without inline payload are small: one
  // call brings a thousand). Without, it never reads beyond a header, so that payload can be read
  // in place.
  explicit FrameReader(bool read_ahead);

  // Fills `parts` with where the next bytes go and returns how many parts (1..2) are used.
  int Prepare(iovec (&parts)[2]);
  // `size_bytes` >= 1 bytes were written into the parts, in order.
  void Commit(size_t size_bytes);

  Event Next();

  const FrameHeader& header() const { return header_; }
  // After kHeader with payload_bytes > 0, exactly one of:
  void ReadInto(std::byte* dest);  // [payload_bytes]; stays valid until kPayload or Discard
  void ReadIntoBuffer();
  void Discard();  // also later, to let go of `dest` in the middle of a payload

  // After kPayload of ReadIntoBuffer; valid until the next call of Next.
  std::span<const std::byte> payload() const { return {payload_.data(), payload_have_}; }
  // True when a frame was begun and is not complete.
  bool inside_frame() const { return payload_left_ > 0 || begin_ != end_; }
  const Status& error() const { return error_; }
  // Bytes that came and are not part of a frame yet; after kBad the bytes that are no frame.
  std::span<const std::byte> unread() const { return {buffer_.data() + begin_, end_ - begin_}; }

 private:
  // Where payload goes.
  enum class Target : uint8_t { kNone, kPlace, kBuffer, kNowhere };

  void StartPayload(Target target);
  std::span<std::byte> PayloadRoom();
  void TakeBufferedPayload();

  const bool read_ahead_;
  std::vector<std::byte> buffer_;  // [begin_, end_) is unread
  size_t begin_ = 0;
  size_t end_ = 0;
  FrameHeader header_;
  bool in_payload_ = false;
  Target target_ = Target::kNone;
  std::byte* place_ = nullptr;
  size_t payload_left_ = 0;
  size_t payload_have_ = 0;
  std::vector<std::byte> payload_;
  Status error_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_FRAME_READER_H_
