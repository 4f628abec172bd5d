// Plain data of the KV transports: who a peer is, what a slice to send and a transfer to receive
// are, why a slice or a connection was refused. Pure values; any thread.
#ifndef BATON_KVCACHE_TRANSPORT_TRANSPORT_TYPES_H_
#define BATON_KVCACHE_TRANSPORT_TRANSPORT_TYPES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"

namespace baton::kv {

// How bytes cross between two workers.
enum class TransportKind : uint8_t {
  kAuto = 0,
  kLocal = 1,
  kShm = 2,
  kTcp = 3,
  kNccl = 4,
  kCudaIpc = 5,
};

// "auto", "local", "shm", "tcp", "nccl", "cuda_ipc".
std::string_view TransportKindName(TransportKind kind);
// "auto", "shm", "tcp", "nccl" or "cuda_ipc"; InvalidArgument otherwise, naming the choices.
StatusOr<TransportKind> ParseTransportKind(std::string_view text);

// Where one life of a listening worker is reached. A peer is named by its incarnation alone: it is
// drawn at random at process start, so it never names two processes.
struct PeerAddress {
  std::string worker_id;  // 1..limits::kMaxWorkerIdBytes
  Incarnation incarnation;
  std::string host_id;    // HostId() of the peer; equal to ours = shared memory may work
  std::string tcp;        // "host:port", "" = none
  std::string unix_name;  // abstract socket name without the leading NUL, "" = none

  friend bool operator==(const PeerAddress&, const PeerAddress&) = default;
};

// One (block, layer) slice that the prefill worker offers to the decode worker. Its bytes stay
// constant until CloseSend is confirmed.
struct SliceRef {
  TransferId transfer;      // from the grant
  uint32_t attempt = 0;     // from the grant
  uint32_t ordinal = 0;     // position of the block in the grant
  uint32_t layer = 0;       // [0, num_layers)
  uint32_t generation = 0;  // of the decode worker's block at `ordinal`, from the grant
  BlockIndex source;        // the prefill worker's block
  uint64_t checksum = 0;    // SliceChecksum of the bytes
};

// One reserved block of the decode worker; the caller holds a transfer reference on it until
// OnReceiveClosed.
struct ReceiveBlock {
  BlockIndex index;
  uint32_t generation = 0;
};

// A transfer that the decode worker expects.
struct ReceiveSpec {
  TransferId transfer;  // not open now; never used before in this incarnation
  uint32_t attempt = 0;
  Incarnation peer;                  // the only prefill worker whose frames are taken
  std::vector<ReceiveBlock> blocks;  // by ordinal; 1..limits::kMaxSlicesPerTransfer / num_layers
  // Progress is reported when this many layers more are complete in all blocks.
  uint32_t layers_per_group = 5;
};

// Why a slice frame was not taken. Each is counted; kBadChecksum and kStaleGeneration are reported.
enum class BadSliceReason : uint8_t {
  kUnknownTransfer = 0,  // not open (any more): late frames after a close are normal
  kWrongPeer = 1,        // open, but for another prefill worker
  kWrongAttempt = 2,     // of another placement of the request
  kWrongEpoch = 3,       // of another connection than the transfer is bound to
  kOutOfRange = 4,       // ordinal, layer, source block or size outside the tables
  kStaleGeneration = 5,  // not the generation that the grant named
  kDuplicate = 6,        // already filled
  kBadChecksum = 7,      // the bytes are not those that the prefill worker hashed
};
inline constexpr size_t kNumBadSliceReasons = 8;
std::string_view BadSliceReasonName(BadSliceReason reason);

// A slice of an open transfer that must be sent again (kBadChecksum) or will never fit
// (kStaleGeneration).
struct BadSlice {
  TransferId transfer;
  uint32_t ordinal = 0;
  uint32_t layer = 0;
  BadSliceReason reason = BadSliceReason::kBadChecksum;
};

// Why a connection ended or was refused. Each is counted.
enum class CloseReason : uint8_t {
  kNone = 0,
  kPeerClosed = 1,       // end of file or reset: the process is gone or hung up
  kProtocol = 2,         // bad magic, header checksum, kind, size, or a frame out of turn
  kFrameGap = 3,         // a frame was begun and did not go on
  kWriteStall = 4,       // the peer does not read
  kHelloTimeout = 5,     // connected, but not introduced in time
  kWireVersion = 6,      // no common version
  kWrongSecret = 7,      // the cluster secrets differ
  kLayout = 8,           // the KV layouts differ
  kNumerics = 9,         // the numerics differ and not both sides allow that
  kWrongPeer = 10,       // another worker or incarnation answers at this address
  kArena = 11,           // the peer's arena cannot be mapped
  kCredentials = 12,     // the process at the other end runs as another user
  kReplaced = 13,        // a newer connection or incarnation of the same worker
  kRemoved = 14,         // no longer in the peer set
  kShutdown = 15,        // this side stops
  kUnreachable = 16,     // connect failed or timed out
  kTooMany = 17,         // the limit of connections is reached
  kControlCorrupt = 18,  // a control message's checksum is wrong
  kTlsMissing = 19,      // one side speaks TLS and the other does not
  kTlsCertificate = 20,  // a side refuses the other's certificate: authority, dates, usage, none
  kTlsHandshake = 21,    // TLS broke for any other reason
};
inline constexpr size_t kNumCloseReasons = 22;
std::string_view CloseReasonName(CloseReason reason);

// A connection that is ready to carry frames.
struct PeerUp {
  Incarnation peer;
  std::string worker_id;
  TransportKind kind = TransportKind::kAuto;
  bool dialled = false;  // this side connected
  bool tls = false;      // encrypted
};

// One connection, or a peer that is dialled and not connected; for metrics and topology.
struct LinkInfo {
  Incarnation peer;
  std::string worker_id;
  TransportKind kind = TransportKind::kAuto;  // kAuto while not connected
  bool dialled = false;
  bool tls = false;
  bool up = false;
  std::string last_failure;     // why the last attempt or connection ended; "" = it did not
  uint64_t bytes_sent = 0;      // payload offered: inline bytes, or bytes named by reference
  uint64_t bytes_received = 0;  // payload verified into own blocks
};

// Counters since Start; they only grow.
struct TransportStats {
  std::array<uint64_t, kNumBadSliceReasons> bad_slices{};
  std::array<uint64_t, kNumCloseReasons> closes{};
  uint64_t slices_received = 0;  // verified
  uint64_t bytes_received = 0;   // of these
  uint64_t slices_sent = 0;      // handed to the kernel, or to the peer for `local`
  uint64_t controls_sent = 0;
  uint64_t controls_received = 0;
  uint64_t controls_expired = 0;    // parked for a peer that did not come in time
  uint64_t connections = 0;         // that became ready
  uint64_t tls_connections = 0;     // of these, encrypted
  uint64_t tls_bytes_received = 0;  // of bytes_received, over them
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_TRANSPORT_TYPES_H_
