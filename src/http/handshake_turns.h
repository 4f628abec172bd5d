// HandshakeTurns: the TLS handshakes of one event loop, one step a turn of it. A step takes a
// millisecond of the processor: the streams of the loop go on between two of them, however many
// clients come at once. Used on the thread of its event loop.
//
// Internal to src/http.
#ifndef BATON_HTTP_HANDSHAKE_TURNS_H_
#define BATON_HTTP_HANDSHAKE_TURNS_H_

#include <deque>
#include <utility>

#include "absl/functional/any_invocable.h"
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

namespace baton::http {

// See the file comment.
class HandshakeTurns {
 public:
  // `io` outlives this.
  explicit HandshakeTurns(boost::asio::io_context* io) : io_(io) {}

  // Runs `step` in a turn of its own.
  void Add(absl::AnyInvocable<void()> step) {
    steps_.push_back(std::move(step));
    if (steps_.size() == 1) Post();
  }

 private:
  void Post() {
    boost::asio::post(*io_, [this] { RunOne(); });
  }
  void RunOne() {
    std::exchange(steps_.front(), nullptr)();  // stays in line, so that what it adds posts nothing
    steps_.pop_front();
    if (!steps_.empty()) Post();
  }

  boost::asio::io_context* const io_;
  std::deque<absl::AnyInvocable<void()>> steps_;
};

}  // namespace baton::http

#endif  // BATON_HTTP_HANDSHAKE_TURNS_H_
