// The receiving half of HTTP/1.1 (RFC 9112) for a client that reads while bytes arrive. Pure; one
// thread per object.
#ifndef BATON_LOADGEN_HTTP_REPLY_H_
#define BATON_LOADGEN_HTTP_REPLY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton::loadgen {

// Reads one answer after another from a connection: status line, headers, and a body framed by
// Content-Length, by chunks, or by the end of the connection. Interim answers (1xx) are skipped.
class HttpReply {
 public:
  static constexpr size_t kMaxHeaderBytes = 64 * 1024;

  // Takes bytes and calls on_body with each piece of the body. Returns how many bytes belong to
  // this answer (all, until done()). DataLoss with the offending line when it is not HTTP/1.x.
  StatusOr<size_t> Push(std::string_view bytes,
                        const std::function<Status(std::string_view)>& on_body);
  // The connection ended: OK when that is how this answer ends, else DataLoss.
  Status PushEnd();
  // Ready for the next answer of the same connection.
  void Reset() { *this = HttpReply(); }

  bool started() const { return state_ != State::kStatusLine || !line_.empty(); }
  bool headers_done() const { return state_ > State::kHeaders; }
  bool done() const { return state_ == State::kDone; }
  int status() const { return status_; }
  // True when the connection can carry another request after this answer.
  bool keep_alive() const { return keep_alive_ && framing_ != Framing::kUntilEnd; }
  // Content-Type in lower case, without parameters.
  const std::string& content_type() const { return content_type_; }

 private:
  // Where in the answer the next byte is.
  enum class State : uint8_t {
    kStatusLine,
    kHeaders,
    kBody,
    kChunkSize,
    kChunkData,
    kChunkEnd,
    kTrailers,
    kDone,
  };
  // The rule that says where the body ends.
  enum class Framing : uint8_t { kUntilEnd, kLength, kChunked };

  Status TakeLine(std::string_view line);
  Status TakeStatusLine(std::string_view line);
  Status TakeHeader(std::string_view line);
  Status EndHeaders();
  Status TakeChunkSize(std::string_view line);
  StatusOr<size_t> TakeLineBytes(std::string_view bytes);
  StatusOr<size_t> TakeBodyBytes(std::string_view bytes,
                                 const std::function<Status(std::string_view)>& on_body);

  State state_ = State::kStatusLine;
  Framing framing_ = Framing::kUntilEnd;
  std::string line_;
  size_t header_bytes_ = 0;
  uint64_t left_ = 0;  // bytes of the body or of the chunk still to come
  int status_ = 0;
  bool keep_alive_ = true;
  std::string content_type_;
};

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_HTTP_REPLY_H_
