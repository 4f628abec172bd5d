// HttpExchange: one request's answer on its way from any thread to the connection's thread.
//
// Invariants
//  1. State only moves forward: kUnanswered -> kStreaming -> kAnswered, and to kClosed from each.
//  2. `wake` is called without the mutex, by any thread, also shortly after kClosed: the connection
//     and its event loop may be gone by then.
//  3. buffered_bytes = bytes appended and not yet reported by Sent, also once it is closed: a
//     producer that is paused must not take the close for a client that has caught up, and end the
//     answer as whole before it hears of the close.
//  4. A filler is written between two chunks of the producer, never in one: each Write is whole.
//  5. While nothing is buffered, Write sends a small chunk itself, and the connection is not woken
//     (not late in a long turn of the producer's loop). Bytes keep their order: a write of the
//     connection counts as buffered until Sent.
//  6. The text of small writes is kept, so that a token takes no memory from the heap.
//
// Internal to src/http.
#ifndef BATON_HTTP_HTTP_EXCHANGE_H_
#define BATON_HTTP_HTTP_EXCHANGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"

#include "src/base/mutex.h"
#include "src/http/http_message.h"
#include "src/http/http_responder.h"

namespace baton::http {

// Facts on which the answer's form depends; fixed when the request is complete.
struct ExchangeTraits {
  bool head = false;       // no body on the wire
  bool http_1_0 = false;   // no chunks on the wire
  bool keep_alive = true;  // what the client asked for
  size_t max_buffered_bytes = 0;
  int64_t idle_timeout_ms = 0;     // what Keep-Alive promises; 0 = it is not sent
  HttpHeaders fields;              // for the header of every answer (site_rules.h)
  std::function<bool()> draining;  // true: this answer says `Connection: close`
};

// See the file comment. The first group is for responders (any thread), the second for the
// connection (its thread).
class HttpExchange {
 public:
  HttpExchange(ExchangeTraits traits, std::function<void()> wake);

  bool Respond(HttpResponse response);
  bool StartStream(int status, const HttpHeaders& headers);
  bool Write(std::string_view chunk);
  bool Finish(bool close);
  void Abort();
  void KeepAlive(std::string filler, int64_t silence_ms);
  size_t buffered_bytes() const;
  HttpRoom NotifyBelow(size_t limit_bytes, absl::AnyInvocable<void()> callback);
  void OnClosed(absl::AnyInvocable<void(HttpClientGone)> callback);
  // The last responder is gone: `error` answers an unanswered request, a stream is aborted.
  void Abandon(const std::function<HttpResponse()>& error);

  // The connection's socket without TLS, to which Write may send until ForgetSocket.
  void LendSocket(int fd);
  // The socket is about to be closed: no thread sends to it after this returns.
  void ForgetSocket();
  // Bytes that the connection has to send next: the text, then the body.
  struct Output {
    std::string text;        // heads and chunks
    std::string body;        // of a whole answer
    bool complete = false;   // nothing follows them
    bool abort = false;      // close without sending
    bool close = false;      // close once complete
    int64_t silence_ms = 0;  // > 0: FillSilence wants to be called (KeepAlive)
  };
  // `used` is an earlier text, all sent: its memory is for later chunks.
  Output Take(std::string used);
  // Writes the filler if the stream has been silent for long enough and nothing waits to be sent.
  void FillSilence(int64_t now_us);
  // The connection has been woken: true if it must close at once, whatever is still being sent.
  bool OnWake();
  // `size` bytes were taken by the kernel.
  void Sent(size_t size);
  // The client is gone or the connection is given up: fires the callbacks unless complete.
  void Close(HttpClientGone how);
  // The client will send nothing more; the stream, if any, has lost its reader. As Close, but a
  // whole answer is still delivered.
  void PeerClosed();

 private:
  enum class State : uint8_t { kUnanswered, kStreaming, kAnswered, kClosed };

  void AppendHeadLocked(int status, const HttpHeaders& headers, std::string_view framing)
      BATON_REQUIRES(mutex_);
  void AppendChunkLocked(std::string_view bytes) BATON_REQUIRES(mutex_);
  bool MustWakeLocked() BATON_REQUIRES(mutex_);
  bool SendNowLocked(int64_t now_us) BATON_REQUIRES(mutex_);

  const ExchangeTraits traits_;
  const std::function<void()> wake_;

  // Held for moving strings, and for a send that does not wait: the socket must not be closed
  // meanwhile, and its number given to another connection.
  mutable Mutex mutex_;
  State state_ BATON_GUARDED_BY(mutex_) = State::kUnanswered;
  bool peer_closed_ BATON_GUARDED_BY(mutex_) = false;
  bool abort_ BATON_GUARDED_BY(mutex_) = false;
  bool close_ BATON_GUARDED_BY(mutex_) = false;
  bool wake_pending_ BATON_GUARDED_BY(mutex_) = false;
  int socket_ BATON_GUARDED_BY(mutex_) = -1;         // -1 = the connection sends everything
  std::string filler_ BATON_GUARDED_BY(mutex_);      // "" = none
  int64_t silence_ms_ BATON_GUARDED_BY(mutex_) = 0;  // before the filler is written
  int64_t written_us_ BATON_GUARDED_BY(mutex_) = 0;  // the last chunk, or the head
  std::atomic<size_t> buffered_bytes_ = 0;           // written under the mutex
  size_t notify_below_ BATON_GUARDED_BY(mutex_) = 0;
  std::string text_ BATON_GUARDED_BY(mutex_);  // not taken yet
  std::string body_ BATON_GUARDED_BY(mutex_);  // of a whole answer, after text_
  HttpClientGone gone_ BATON_GUARDED_BY(mutex_) = HttpClientGone::kLeft;  // once it is closed
  absl::AnyInvocable<void(HttpClientGone)> on_closed_ BATON_GUARDED_BY(mutex_);
  absl::AnyInvocable<void()> on_below_ BATON_GUARDED_BY(mutex_);
};

// The responder handed to a handler: forwards to its exchange, abandons it when dropped; `on_drop`
// then makes the answer.
std::shared_ptr<HttpResponder> MakeResponder(std::shared_ptr<HttpExchange> exchange,
                                             std::function<HttpResponse()> on_drop);

// "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110 section 5.6.7).
std::string HttpDate(int64_t unix_seconds);

}  // namespace baton::http

#endif  // BATON_HTTP_HTTP_EXCHANGE_H_
