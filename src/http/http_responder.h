// HttpResponder: the right to answer one request, now or later, from any thread.
//
// Invariants
//  1. One answer: either Respond, or StartStream + Write* + (Finish | FinishAndClose | Abort).
//     Calls that come too late (second answer, after the client has gone) do nothing and say so by
//     returning false.
//  2. Dropping the last reference unanswered answers 500; dropping it in mid-stream aborts. A
//     client is never left waiting for a responder that nobody holds.
//  3. No call blocks or waits for the network. Written bytes are buffered up to the server's
//     `max_buffered_bytes`; a Write beyond it aborts the connection.
//  4. Callbacks run on one of the server's threads, with no lock held, and must not block.
#ifndef BATON_HTTP_HTTP_RESPONDER_H_
#define BATON_HTTP_HTTP_RESPONDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"

#include "src/http/http_message.h"

namespace baton::http {

// How a client went away before its answer was complete.
enum class HttpClientGone : uint8_t {
  kLeft,     // closed, reset, or the server stops
  kStalled,  // took no byte for write_stall_timeout_ms
};

// The client's state, as NotifyBelow tells it to a producer that pauses.
enum class HttpRoom : uint8_t {
  kNow,    // few enough bytes are buffered: go on
  kLater,  // the callback will say when
  kGone,   // the client has gone or the answer was aborted: stop producing
};

// The answering side of one exchange; see the file comment. An interface, so that handlers can be
// tested without sockets.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;

  // Sends a whole answer. False: already answered, or the client has gone.
  virtual bool Respond(HttpResponse response) = 0;

  // Sends the header of a chunked answer (HTTP/1.0 clients get the bare bytes and a close).
  virtual bool StartStream(int status, const HttpHeaders& headers) = 0;
  // Queues one chunk; empty chunks are ignored. False: not streaming, the client has gone, or the
  // buffer limit was hit (the connection is then aborted). Stop producing after false.
  virtual bool Write(std::string_view chunk) = 0;
  // Ends the stream cleanly once everything queued is sent.
  virtual bool Finish() = 0;
  // As Finish, and the connection is closed after the final chunk: for an answer that is not
  // whole. The header, which could have said `Connection: close`, is long gone.
  virtual bool FinishAndClose() = 0;
  // From now on the stream gets `filler` as a chunk of its own whenever it has been silent for
  // `silence_ms` and nothing waits to be sent. The silence may be up to an eighth longer, 1 s at
  // most. Any number of such streams cost their event loop one timer. Does nothing before
  // StartStream.
  virtual void KeepAlive(std::string filler, int64_t silence_ms) = 0;
  // Closes the connection without the final chunk, so that the client sees a truncated answer.
  virtual void Abort() = 0;

  // Bytes queued and not yet taken by the kernel, also when it never will. Pause producing above
  // 256 KiB.
  virtual size_t buffered_bytes() const = 0;
  // kLater: `callback` is called once, as soon as at most `limit_bytes` are buffered or the client
  // has gone; the next Write or NotifyBelow tells which. It replaces an earlier callback that has
  // not fired. kNow and kGone: `callback` is dropped and never called.
  virtual HttpRoom NotifyBelow(size_t limit_bytes, absl::AnyInvocable<void()> callback) = 0;

  // Calls `callback` once if the client goes away (close, reset, stall beyond the limit, server
  // stop) before the answer is complete, also while nothing is being written; at once if it has
  // gone already. Never called after a complete answer. Replaces an earlier callback.
  virtual void OnClosed(absl::AnyInvocable<void(HttpClientGone)> callback) = 0;
};

// Takes a request over; runs on a server thread and must not block (hand long work on). Copyable;
// called from several threads at once.
using HttpHandler =
    std::function<void(HttpRequest request, std::shared_ptr<HttpResponder> responder)>;

}  // namespace baton::http

#endif  // BATON_HTTP_HTTP_RESPONDER_H_
