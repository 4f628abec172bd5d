// A model server that computes nothing: it streams a known text at known times, and can misbehave
// on request. One thread of its own.
#ifndef BATON_TESTS_LOADGEN_TOY_SERVER_H_
#define BATON_TESTS_LOADGEN_TOY_SERVER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "src/base/thread.h"
#include "src/base/unique_fd.h"
#include "src/loadgen/random_draws.h"

namespace baton::loadgen {

// The fault that the server makes in every fault_every-th request.
enum class ToyFault {
  kNone,
  kMalformedEvent,  // an event that is no JSON
  kBareJson,        // a line that is no field
  kErrorEvent,
  kBreakOff,  // closes in the middle of the answer
  kNoDone,    // ends the answer without [DONE]
  kStatus503,
  kNotStreamed,  // a whole JSON answer
  kSilent,       // never answers
  kWrongText,
  kShortAnswer,      // one token less than asked for
  kCloseUnanswered,  // closes instead of the first token
  kEndless,          // as many tokens as it can
};

// How the server answers: token 0 after ttft_us, then one each itl_us, both scaled by
// exp(noise * normal) once per request.
struct ToyOptions {
  int64_t ttft_us = 20'000;
  int64_t itl_us = 5'000;
  double noise = 0.0;
  uint64_t seed = 1;
  ToyFault fault = ToyFault::kNone;
  uint64_t fault_every = 1;
  uint64_t gone_after = 0;  // > 0: after so many requests closes everything, the listener too
};

// The server. Start in the constructor; Stop (or the destructor) joins.
class ToyServer {
 public:
  explicit ToyServer(const ToyOptions& options);
  ~ToyServer();

  int port() const { return port_; }
  void Stop();
  // After Stop: when each token was sent (SystemClock), by the request's X-Request-Id.
  const std::map<std::string, std::vector<int64_t>>& sent_us() const { return sent_us_; }
  // Bodies of all requests, in order of arrival. After Stop.
  const std::vector<std::string>& bodies() const { return bodies_; }

  // The text of token `i` of every answer.
  static std::string Token(uint64_t i);
  static std::string Text(uint64_t count);

 private:
  // One connection and the answer it is getting.
  struct Peer {
    UniqueFd fd;
    std::string in;
    std::string name;
    uint64_t serial = 0;  // of the request, from 1
    ToyFault fault = ToyFault::kNone;
    uint64_t num_tokens = 0;
    uint64_t next_token = 0;
    double first_us = 0;
    double gap_us = 0;
    std::vector<int64_t>* log = nullptr;
  };
  // The next token of a peer.
  struct Due {
    int64_t at_us;
    int fd;
    uint64_t serial;
    bool operator>(const Due& other) const { return at_us > other.at_us; }
  };

  void Run();
  void Accept();
  void Read(Peer& peer);
  void Begin(Peer& peer, const std::string& head, std::string body);
  void SendToken(Peer& peer);
  void SendEnd(Peer& peer);
  void SendBytes(Peer& peer, const std::string& bytes);
  void SendDue();

  const ToyOptions options_;
  RandomDraws draws_;
  UniqueFd listener_;
  UniqueFd epoll_;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::map<int, Peer> peers_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  uint64_t num_requests_ = 0;
  std::map<std::string, std::vector<int64_t>> sent_us_;
  std::vector<std::string> bodies_;
  Thread thread_;
};

}  // namespace baton::loadgen

#endif  // BATON_TESTS_LOADGEN_TOY_SERVER_H_
