// Registration: keeps this worker registered with its routers: one lease stream each, a heartbeat,
// and reconnection with back-off; and takes the routers' lists of peers.
//
// Threads: one thread ("register") builds heartbeats, reconnects and applies peer lists (which may
// wait for a name look-up); gRPC's threads only store what arrived and wake it.
//
// Invariants
//  1. Every stream begins with the same hello; the first report follows at once.
//  2. A lost or silent router changes nothing for the others.
//  3. The peers given to `on_peers` are the union of what the connected routers named.
#ifndef BATON_WORKER_REGISTRATION_H_
#define BATON_WORKER_REGISTRATION_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "baton/v1/worker.grpc.pb.h"
#include "src/base/status.h"
#include "src/base/thread.h"

namespace baton {

class RouterStream;

// What a registration needs from its worker; the callbacks run on the registration thread.
struct RegistrationConfig {
  std::vector<std::string> routers;  // "host:port" each
  v1::WorkerHello hello;
  std::function<v1::WorkerLoad()> load;
  std::function<void(const std::vector<v1::Peer>&)> on_peers;
  std::function<void(int64_t timeout_ms)> on_drain;
};

// See the file comment.
class Registration {
 public:
  explicit Registration(RegistrationConfig config);
  // Ends all streams (the routers see the worker leave) and joins the thread.
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // Sends a report now instead of at the next heartbeat.
  void ReportNow();
  // Accepted by at least one router at this moment. Any thread.
  bool registered() const;
  // The last refusal, "" = none. Any thread.
  std::string refusal() const;

 private:
  friend class RouterStream;
  // One router and what we know of it; the registration thread alone, but for what RouterStream
  // holds.
  struct Router {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::RouterRegistry::Stub> stub;
    std::shared_ptr<RouterStream> stream;
    int64_t retry_us = 0;
    int64_t backoff_us = 0;
    bool was_up = false;
    std::vector<v1::Peer> peers;
  };

  void Loop();
  void Tick(int64_t now_us);
  void TickRouter(Router& router, const v1::WorkerLoad& load, int64_t now_us);
  void ApplyPeers();
  void Wake();

  RegistrationConfig config_;
  std::vector<Router> routers_;
  uint64_t sequence_number_ = 0;
  bool peers_changed_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool woken_ = false;
  bool stop_ = false;
  bool registered_ = false;
  std::string refusal_;
  Thread thread_;
};

}  // namespace baton

#endif  // BATON_WORKER_REGISTRATION_H_
