// StreamSweep: looks for silent streams among all of one event loop, with one timer for all. A
// timer for each would be moved by every token. Used on the thread of its event loop.
//
// Internal to src/http.
#ifndef BATON_HTTP_STREAM_SWEEP_H_
#define BATON_HTTP_STREAM_SWEEP_H_

#include <cstdint>
#include <memory>
#include <unordered_set>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "src/http/http_exchange.h"

namespace baton::http {

// See the file comment.
class StreamSweep {
 public:
  // `io` outlives this.
  explicit StreamSweep(boost::asio::io_context* io) : timer_(*io) {}

  // Looks at the stream (HttpExchange::FillSilence) at least every eighth of `silence_ms` until it
  // is removed. One that is there already stays.
  void Add(const std::shared_ptr<HttpExchange>& stream, int64_t silence_ms);
  void Remove(const std::shared_ptr<HttpExchange>& stream);

 private:
  void Arm();
  void Look();

  boost::asio::steady_timer timer_;
  bool is_armed_ = false;
  int64_t period_ms_ = 0;
  std::unordered_set<std::shared_ptr<HttpExchange>> streams_;
};

}  // namespace baton::http

#endif  // BATON_HTTP_STREAM_SWEEP_H_
