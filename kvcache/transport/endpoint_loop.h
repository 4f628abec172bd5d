// EndpointLoop: the body of a KvEndpoint: all connections, the peers to dial, the messages that
// wait for a peer, and the loop that serves them. Made by one thread, then run by the transport's
// thread; only the functions under "any thread" may be called beside it.
#ifndef BATON_KVCACHE_TRANSPORT_ENDPOINT_LOOP_H_
#define BATON_KVCACHE_TRANSPORT_ENDPOINT_LOOP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "kvcache/transport/connection.h"
#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/peer_set.h"
#include "kvcache/transport/receive_table.h"
#include "kvcache/transport/transport_counters.h"
#include "kvcache/transport/transport_inbox.h"
#include "src/base/mutex.h"
#include "src/base/unique_fd.h"
#include "src/tls/tls_watch.h"

namespace baton::kv {

// The sockets of a KvEndpoint, made before its loop; either listener may be absent.
struct EndpointSockets {
  UniqueFd wake;  // eventfd
  UniqueFd epoll;
  UniqueFd tcp_listener;
  UniqueFd unix_listener;
  std::unique_ptr<tls::TlsWatch> tls;  // null = plaintext
};

// See the file comment.
class EndpointLoop final : public ConnectionOwner {
 public:
  EndpointLoop(const KvEndpointOptions& options, const KvArena* arena, EndpointSockets sockets);
  ~EndpointLoop() override;

  // Serves until RequestStop. The transport's thread; `sink` outlives it.
  void Run(KvTransportSink* sink);

  // Any thread.
  void RequestStop();
  void SetPeers(std::vector<ResolvedPeer> peers);
  TransportInbox* inbox() { return &inbox_; }
  TransportStats Stats() const { return counters_.Snapshot(); }
  std::vector<LinkInfo> Links() const { return links_.Read(); }

  // ConnectionOwner, on the transport's thread.
  bool HasRoomFor(const Connection& connection) override;
  void OnReady(Connection* connection) override;
  void OnControl(Connection* connection, std::string bytes) override;

 private:
  // A connection and what epoll knows of it.
  struct Slot {
    std::unique_ptr<Connection> connection;
    uint32_t interest = 0;
    bool ended = false;  // its end was reported
    std::string origin;  // the address it was accepted from; "" = dialled

    // Accepted, and not introduced yet.
    bool is_stranger() const {
      return !connection->dialled() && !connection->was_ready() && !connection->closed();
    }
  };
  // A control message that waits for its peer.
  struct ParkedControl {
    std::string bytes;
    int64_t deadline_us = 0;
  };
  void Wake();
  bool AddToEpoll(int fd, uint32_t events, uint64_t id);
  void Turn();
  int WaitMs() const;
  void HandleEvent(uint64_t id, uint32_t events);
  // Accepts the connections that wait at a listener, as far as this turn has room for them.
  void AcceptSome(TransportKind kind);
  void PauseAccepting();
  void ResumeAccepting();
  void AddConnection(ConnectionStart start, std::string origin);
  // Refuses the oldest strangers beyond the limits.
  void RefuseExcessStrangers();
  // Connections that are ready or were dialled.
  size_t NumEstablished() const;
  void TakeNewPeers();
  void DialDuePeers();
  void ExecuteCommands();
  void Execute(TransportCommand* command);
  void SendOrParkControl(Incarnation peer, std::string bytes);
  void DropExpiredControls();
  void ServeConnections();
  void ReapConnections();
  void EndConnection(Slot* slot);
  void LogEnd(const Connection& connection);
  // How it crosses and what for, for the log.
  std::string WayOf(const Connection& connection) const;
  void PublishLinks();
  Connection* FindReady(Incarnation peer);

  const KvEndpointOptions options_;
  const KvArena* const arena_;
  const EndpointSockets sockets_;
  const std::vector<std::byte> zeroes_;
  TransportCounters counters_;
  TransportInbox inbox_;
  LinkBoard links_;
  std::atomic<bool> stop_{false};

  // The transport's thread.
  ReceiveTable receives_;
  PeerSet peers_;
  ConnectionServices services_;
  KvTransportSink* sink_ = nullptr;
  TransportBatch batch_;
  absl::flat_hash_map<uint64_t, Slot> connections_;  // by id
  absl::flat_hash_map<Incarnation, Connection*> ready_;
  absl::flat_hash_map<Incarnation, std::deque<ParkedControl>> parked_;
  uint64_t next_id_;
  int tls_steps_left_ = 0;        // of this turn
  bool tcp_waits_ = false;        // this turn's events name the listener
  bool unix_waits_ = false;       // as above
  std::vector<Slot*> strangers_;  // of RefuseExcessStrangers
  int64_t now_us_ = 0;
  int64_t progress_due_us_ = 0;
  int64_t accept_again_us_ = 0;  // 0 = accepting
  int64_t refusal_logged_us_ = 0;

  Mutex mutex_;
  std::optional<std::vector<ResolvedPeer>> new_peers_ BATON_GUARDED_BY(mutex_);
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_ENDPOINT_LOOP_H_
