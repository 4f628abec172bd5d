// Streams over HTTP/1.1 to one server: one thread, one epoll set, connections kept and reused.
#ifndef BATON_LOADGEN_HTTP_STREAMS_H_
#define BATON_LOADGEN_HTTP_STREAMS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "src/loadgen/http_reply.h"
#include "src/loadgen/stream_answer.h"
#include "src/loadgen/stream_backend.h"

namespace baton::loadgen {

// A resolved address: sockaddr bytes.
using SocketAddress = std::vector<uint8_t>;

// The first of the addresses where something accepts a connection now, each given 2 s (one alone is
// not tried); Unavailable with the last reason otherwise. A name like localhost may stand for an
// address of each family while the server listens on one.
StatusOr<SocketAddress> FirstReachable(const std::vector<SocketAddress>& addresses);

// Where and how to ask.
struct HttpTarget {
  std::string host;
  std::string port;
  std::string base_path;  // before "/v1/...", "" for none
  std::string model;      // "" = not sent
  std::string api_key;    // "" = no Authorization
};

// The OpenAI API of one server. One thread. Arrival times are the kernel's receive stamps where it
// gives them (SO_TIMESTAMPNS), so that a busy client does not add its own delay to them; that delay
// is reported apart (OnLag).
class HttpStreams final : public StreamBackend {
 public:
  // Resolves the host and raises the limit of open files. NotFound for an unknown host, Unavailable
  // when none of several addresses answers.
  static StatusOr<std::unique_ptr<HttpStreams>> Create(const HttpTarget& target);
  ~HttpStreams() override;

  std::string Encode(std::string_view name, const StreamRequest& request) const override;
  void Start(uint64_t id, std::string encoded, StreamSink& sink) override;
  void Cancel(uint64_t id) override;
  void Poll(int64_t until_us, StreamSink& sink) override;

 private:
  // Where a connection is in its life; kDraining: the stream is over, the end of the HTTP answer is
  // not there yet.
  enum class Phase : uint8_t { kSending, kReading, kDraining, kIdle };
  // One connection and the stream on it.
  struct Connection {
    UniqueFd fd;
    Phase phase = Phase::kSending;
    bool reused = false;  // it has answered before: the server may close it at any moment
    uint64_t id = 0;
    std::string out;
    size_t out_sent = 0;
    int64_t sent_at_us = 0;  // the first byte of `out`
    HttpReply reply;
    StreamAnswer answer;
    bool answer_begun = false;
  };

  // A stream that could not even begin, to be told by the next Poll.
  struct EarlyEnd {
    uint64_t id;
    RequestOutcome outcome;
    std::string error;
  };
  // The bytes of one read, and the time when they arrived at this machine.
  struct Arrival {
    std::string_view bytes;
    int64_t at_us;
  };

  HttpStreams(const HttpTarget& target, SocketAddress address, UniqueFd epoll);
  // A new connection on its way to the server; its errors become early ends.
  Connection* Open(uint64_t id);
  void Assign(Connection& connection, uint64_t id, std::string encoded);
  void Watch(Connection& connection, uint32_t events, int operation);
  void OnReady(Connection& connection, uint32_t events, StreamSink& sink);
  void Send(Connection& connection, StreamSink& sink);
  void Receive(Connection& connection, StreamSink& sink);
  void Take(Connection& connection, const Arrival& arrival, StreamSink& sink);
  // True when a close without an answer is the end of an idle connection that crossed the request.
  static bool CrossedClose(const Connection& connection);
  void OnClosed(Connection& connection, const Status& why, StreamSink& sink);
  // Ends the stream on a connection; the connection is drained, kept or closed.
  void EndStream(Connection& connection, int64_t at_us, const Status& transport, StreamSink& sink);
  // After a stream: idle when the answer is over, else draining.
  void Recycle(Connection& connection);
  void Close(Connection& connection);

  const HttpTarget target_;
  const SocketAddress address_;
  UniqueFd epoll_;
  bool exact_waits_ = true;  // the kernel lets this process wait in microseconds
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;  // by fd
  std::unordered_map<uint64_t, Connection*> by_id_;
  std::vector<int> idle_;  // fds, the last used last
  // Connections closed during this Poll: events of the same batch may still point at them.
  std::vector<std::unique_ptr<Connection>> graveyard_;
  std::vector<EarlyEnd> early_ends_;
  std::vector<char> buffer_;
};

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_HTTP_STREAMS_H_
