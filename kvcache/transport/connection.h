// Connection: one socket of a KvEndpoint, from the first byte to the last: TLS where it is asked
// for, introduction, frames in, frames out, deadlines. Owned and called by the endpoint's thread
// only.
//
// Invariants
//  1. No call blocks, and each moves a bounded number of bytes: kTurnBytes, with TLS counted as
//     they come from the socket. So many connections share one thread fairly. has_work() tells that
//     a turn ended early.
//  2. A slice's bytes go to a block only between ReceiveTable::Admit and Finish; AbandonReceive
//     takes the block out of the stream at once.
//  3. Nothing is delivered before the introduction is complete, and nothing after Close.
#ifndef BATON_KVCACHE_TRANSPORT_CONNECTION_H_
#define BATON_KVCACHE_TRANSPORT_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/kv_arena.h"
#include "kvcache/transport/frame_reader.h"
#include "kvcache/transport/handshake.h"
#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/receive_table.h"
#include "kvcache/transport/send_queue.h"
#include "kvcache/transport/tls_stream.h"
#include "kvcache/transport/transport_counters.h"
#include "kvcache/transport/transport_inbox.h"
#include "src/base/unique_fd.h"

namespace baton::kv {

class Connection;

// Receives the events of a connection, on the endpoint's thread; the endpoint is one.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  // Whether an accepted connection whose peer is proven may become ready.
  virtual bool HasRoomFor(const Connection& connection) = 0;
  // The introduction is complete: frames may be sent.
  virtual void OnReady(Connection* connection) = 0;
  // A control message arrived: at most limits::kMaxControlBytes.
  virtual void OnControl(Connection* connection, std::string bytes) = 0;
};

// The objects that all connections of an endpoint share; they outlive the connections.
struct ConnectionServices {
  const KvEndpointOptions* options = nullptr;
  const KvArena* arena = nullptr;
  const std::vector<std::byte>* zeroes = nullptr;  // [SliceBytes]
  ReceiveTable* receives = nullptr;
  TransportInbox* inbox = nullptr;
  TransportCounters* counters = nullptr;
  ConnectionOwner* owner = nullptr;
  // Steps of TLS handshakes of accepted connections that this turn has left; null = no limit.
  int* tls_steps_left = nullptr;
};

// How a connection begins.
struct ConnectionStart {
  uint64_t id = 0;  // unique in the endpoint; also the epoch that an accepting side gives
  UniqueFd fd;
  TransportKind kind = TransportKind::kTcp;
  bool dialled = false;
  Incarnation expected;                   // whom the dialler wants; 0 on the accepting side
  const tls::TlsIdentity* tls = nullptr;  // null = plaintext; needed for the start only
};

// See the file comment.
class Connection {
 public:
  Connection(const ConnectionServices& services, ConnectionStart start, int64_t now_us);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The socket has news (EPOLL* bits).
  void OnEvents(uint32_t events, int64_t now_us);
  // Goes on with a turn that ended early, and with what was queued since.
  void Work(int64_t now_us);
  // Closes when a deadline has passed.
  void CheckDeadlines(int64_t now_us);
  // The earliest deadline, 0 = none.
  int64_t NextDeadlineUs() const;
  // True when Work would do something now.
  bool has_work() const;
  // The EPOLL* bits to wait for.
  uint32_t interest() const;

  // QueueControl and QueueSlices are only for a connection that is ready.
  void QueueControl(std::string bytes);
  void QueueSlices(std::span<const SliceRef> slices);
  // Stops reading blocks of `transfer`.
  void DropSend(TransferId transfer);
  // Stops writing into blocks of `transfer`.
  void AbandonReceive(TransferId transfer);

  // Ends the connection for a reason of this side and tells the peer if that is possible at once.
  void Close(CloseReason reason, Status status);

  uint64_t id() const { return id_; }
  int fd() const { return fd_.get(); }
  TransportKind kind() const { return kind_; }
  bool dialled() const { return dialled_; }
  bool encrypted() const { return tls_ != nullptr; }
  Incarnation expected() const { return expected_; }
  // In the TLS handshake: what the other side knows is not proven by anything.
  bool securing() const { return state_ == State::kSecuring; }
  bool ready() const { return state_ == State::kReady; }
  bool closed() const { return state_ == State::kClosed; }
  // True once it was ready, also after Close.
  bool was_ready() const { return was_ready_; }
  CloseReason close_reason() const { return close_reason_; }
  const Status& close_status() const { return close_status_; }
  Incarnation peer() const { return handshake_.peer().incarnation; }
  const std::string& peer_worker_id() const { return handshake_.peer().worker_id; }
  uint64_t epoch() const { return handshake_.epoch(); }
  std::shared_ptr<const LinkCounters> counters() const { return link_; }

 private:
  // The life of a connection, in order.
  enum class State : uint8_t { kConnecting, kSecuring, kIntroducing, kReady, kClosed };

  void OnConnected(int64_t now_us);
  // Goes on with the TLS handshake.
  void Secure(int64_t now_us);
  // The handshake has failed.
  void EndUnsecured(TlsFailure failure);
  // The socket is ready for frames: the dialler says hello.
  void BeginIntroduction();
  // The socket's calls, through TLS where there is one.
  IoOutcome Send(std::span<const iovec> parts);
  IoOutcome Receive(std::span<iovec> parts, int64_t* turn_bytes);
  // Bytes wait for the socket.
  bool has_unsent() const { return !queue_.empty() || (tls_ != nullptr && tls_->has_output()); }
  // Whether the peer sent TLS in place of an introduction, while this side has no TLS.
  bool PeerSpeaksTls() const;
  void EndOnError(const char* what, const IoOutcome& outcome);
  void ReadFrames(int64_t now_us);
  // Handles what the reader holds; stops when `*turn_bytes` is used up.
  void HandleFrames(int64_t* turn_bytes, int64_t now_us);
  void OnHeader(int64_t now_us);
  void OnInlineSlice(const FrameHeader& header);
  void OnSliceReference(const FrameHeader& header, int64_t now_us);
  void OnPayload(int64_t now_us);
  void OnWholeFrame(const FrameHeader& header, std::span<const std::byte> payload);
  void OnIntroductionFrame(const FrameHeader& header, std::span<const std::byte> payload);
  void OnCloseFrame(std::span<const std::byte> payload);
  void BecomeReady();
  Status MapPeerArena();
  void Flush(int64_t now_us);
  void Release(const SendQueue::Progress& progress);
  // Ends the connection without telling the peer.
  void EndWith(CloseReason reason, Status status);

  const ConnectionServices services_;
  const uint64_t id_;
  const TransportKind kind_;
  const bool dialled_;
  const Incarnation expected_;

  UniqueFd fd_;
  std::unique_ptr<TlsStream> tls_;  // null = plaintext
  State state_;
  bool was_ready_ = false;
  CloseReason close_reason_ = CloseReason::kNone;
  Status close_status_;
  Handshake handshake_;
  FrameReader reader_;
  SendQueue queue_;
  std::shared_ptr<LinkCounters> link_;

  std::byte* place_ = nullptr;  // where the inline slice being read goes, null = nowhere
  bool unread_frames_ = false;  // the turn ended before the reader was empty
  bool write_blocked_ = false;  // the socket took less than was offered
  bool pass_arena_ = false;     // the next byte sent carries the arena's descriptor
  PassedFds passed_;            // the dialler's arena or pools, until they are mapped
  std::unique_ptr<PeerArena> peer_arena_;

  int64_t begun_us_;        // of the present state
  int64_t last_read_us_;    // bytes came
  int64_t last_write_us_;   // the socket became full, or was less full than at the last look
  int64_t num_unsent_ = 0;  // bytes that the kernel then held for the peer
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_CONNECTION_H_
