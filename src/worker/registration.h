// Registration: keeps this worker registered with its routers: one lease stream each, a heartbeat,
// and reconnection with back-off; and takes the routers' lists of peers.
//
// Threads: one thread ("register") builds heartbeats, reconnects and tells of peer lists; gRPC's
// threads only store what arrived and wake it.
//
// Invariants
//  1. Every stream begins with the same hello; the first report follows at once.
//  2. A lost or silent router changes nothing for the others.
//  3. The peers given to `on_peers` are the union of what the connected routers named.
//  4. A refused worker asks again; once every router has refused it for refused_give_up_us without
//     a break, `on_refused` is called, once.
#ifndef BATON_WORKER_REGISTRATION_H_
#define BATON_WORKER_REGISTRATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "baton/v1/worker.grpc.pb.h"
#include "src/base/mutex.h"
#include "src/base/status.h"
#include "src/base/thread.h"
#include "src/engine/prefix_journal.h"
#include "src/tls/tls_files.h"
#include "src/worker/prefix_teller.h"

namespace baton::worker {

class RouterStream;

// The parts that a registration needs from its worker; the callbacks run on the registration
// thread.
struct RegistrationConfig {
  std::vector<std::string> routers;  // "host:port" each
  tls::TlsFiles tls;                 // empty = plaintext
  v1::WorkerHello hello;
  std::function<v1::WorkerLoad()> load;
  engine::PrefixJournal* prefixes = nullptr;  // outlives the registration; null: no prefix cache
  std::function<void(const std::vector<v1::Peer>&)> on_peers;
  std::function<void(int64_t timeout_ms)> on_drain;
  std::function<void(const Status& why)> on_refused;  // FailedPrecondition with the router's words
  // A refusal names a fault of the set-up that a restart of others may mend.
  int64_t refused_retry_us = 2'000'000;
  int64_t refused_give_up_us = 15'000'000;
};

// See the file comment.
class Registration {
 public:
  explicit Registration(RegistrationConfig config);
  // Ends all streams (the routers see the worker leave) and joins the thread.
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // Sends a report now instead of at the next heartbeat, unless reports wait already.
  void ReportNow();
  // Ends the streams and joins the thread, which then calls nothing of the config any more. Not by
  // two threads at once; a second call does nothing. The destructor does it too.
  void Stop();
  // Ok while at least one router has accepted this worker; otherwise Unavailable with what each
  // router said, or that it does not answer. Any thread.
  Status state() const;

 private:
  friend class RouterStream;
  // One router and what we know of it; the registration thread alone, but for what RouterStream
  // holds.
  struct Router {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::RouterRegistry::Stub> stub;
    std::unique_ptr<RouterStream> stream;
    int64_t retry_us = 0;
    int64_t backoff_us = 0;
    bool was_up = false;
    bool told_silent = false;      // that it does not answer, since it last did
    std::string refusal;           // its last answer; "" = it accepted or did not answer
    std::string failure;           // why the last stream could not begin; "" = it could
    int64_t refused_since_us = 0;  // first of the refusals without a break
    uint32_t heartbeat_ms = 0;     // what it asked for
    std::vector<v1::Peer> peers;
    PrefixTeller prefixes;
  };

  void Loop();
  // `beats`: a heartbeat is due. Other turns send a report only where there is room for it.
  void Tick(int64_t now_us, bool beats);
  void TickRouter(Router& router, const v1::WorkerLoad& load, int64_t now_us, bool beats);
  void TellPrefixes();
  void TakeAck(Router& router, const v1::RegisterAck& ack, int64_t now_us);
  void Retry(Router& router, int64_t now_us);
  void Close(Router& router);
  void LetGoOfClosed();
  Status StateOf(const Router& router) const;
  void GiveUpIfRefused(int64_t now_us);
  int64_t HeartbeatMs() const;
  void ApplyPeers();
  void Wake();

  RegistrationConfig config_;
  std::vector<Router> routers_;
  std::vector<std::unique_ptr<RouterStream>> closing_;  // cancelled, gRPC still holds them
  uint64_t sequence_number_ = 0;
  std::vector<kv::PrefixChange> prefix_changes_;  // of this tick
  PrefixCopy prefix_copy_;
  bool peers_changed_ = false;
  bool gave_up_ = false;

  mutable Mutex mutex_;
  CondVar wake_;
  bool woken_ BATON_GUARDED_BY(mutex_) = false;
  bool stop_ BATON_GUARDED_BY(mutex_) = false;
  Status state_ BATON_GUARDED_BY(mutex_);
  Thread thread_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_REGISTRATION_H_
