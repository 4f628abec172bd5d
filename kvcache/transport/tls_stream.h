// TlsStream: TLS 1.3 between a connection and its non-blocking socket, as the calls of socket_io.h:
// frames go in and come out, records cross. The connection's thread.
//
// Invariants
//  1. Bytes that Send has taken are encrypted: the places they came from are not read again.
//     Ciphertext that the socket does not take yet waits here (has_output), kMaxOutputBytes and a
//     record at most.
//  2. Receive leaves no bytes that epoll would have to announce, as long as it is called until it
//     would block: bytes that the socket gave and nobody asked for yet wait here.
//  3. No call takes more from the socket than its turn allows, whatever the peer writes. After the
//     handshake a peer may send data and, seldom, change its key; the rest is a failure.
//  4. After a failure every call fails; failure() says why, in this side's words.
//  5. The buffers are those of the start (buffer_bytes).
#ifndef BATON_KVCACHE_TRANSPORT_TLS_STREAM_H_
#define BATON_KVCACHE_TRANSPORT_TLS_STREAM_H_

#include <openssl/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvcache/transport/socket_io.h"
#include "kvcache/transport/transport_types.h"
#include "src/tls/tls_identity.h"

namespace baton::kv {

// Where a handshake stands.
enum class TlsStep : uint8_t { kDone, kGoesOn, kFailed };

// Why a stream broke.
struct TlsFailure {
  CloseReason reason = CloseReason::kNone;
  Status status;
};

// See the file comment.
class TlsStream {
 public:
  // The largest record of TLS.
  static constexpr size_t kRecordBytes = size_t{16} << 10;
  // Enough for the socket to be filled by one call; stays in the second-level cache.
  static constexpr size_t kMaxOutputBytes = size_t{128} << 10;
  // One AES-GCM key is good for 2^24.5 records, 388 GB at most; long before, this side takes a new
  // one (OpenSSL leaves that to the application).
  static constexpr uint64_t kRecordsPerKey = uint64_t{1} << 22;
  // A record carries a byte at least, so a peer has sent kRecordsPerKey bytes before it takes a new
  // key. A peer that takes one after less than this part of them only wants to keep the thread busy
  // (OpenSSL would follow it for as long as it writes).
  static constexpr uint64_t kEarlyKeyDivisor = 4;
  // Bytes that one step of a handshake may read; a flight of a chain of ten certificates is 20 KiB.
  static constexpr int64_t kStepBytes = int64_t{64} << 10;
  // Counted for each record beside its bytes, so that a turn of tiny ones ends too (0.7 us each).
  static constexpr int64_t kRecordTurnBytes = 512;

  // `fd` stays the caller's and outlives the stream.
  TlsStream(const tls::TlsIdentity& identity, int fd, bool dialled,
            uint64_t records_per_key = kRecordsPerKey);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // Goes on as far as the socket and kStepBytes let it.
  TlsStep Handshake();

  // Takes as much as goes; with no parts it only offers what waits. kDone with 0 bytes: nothing
  // waits any more. kError with errno 0: see failure().
  IoOutcome Send(std::span<const iovec> parts);
  // As ReceiveParts, but the end of the stream is kError as well: failure() is kPeerClosed then.
  // Lessens `*turn_bytes` by what it took from the socket, at most by one buffer and its records
  // below 0. A turn that ends early leaves bytes in the socket, which epoll announces again.
  IoOutcome Receive(std::span<iovec> parts, int64_t* turn_bytes);

  // Bytes that its buffers hold beside OpenSSL's own (two of a record each).
  size_t buffer_bytes() const { return input_.size() + output_.capacity() + record_.size(); }
  bool has_output() const { return output_begin_ < output_.size(); }
  const std::optional<TlsFailure>& failure() const { return failure_; }
  // How often this side took a new key.
  uint64_t num_key_updates() const { return num_key_updates_; }

 private:
  // OpenSSL's view of the socket: reads come from input_, writes end in output_.
  struct Bio;
  // A walk over the parts of one Send.
  struct Cursor {
    std::span<const iovec> parts;
    size_t offset = 0;  // in the first of them
  };

  int ReadInput(char* out, int size);
  void WriteOutput(std::span<const std::byte> bytes);
  // A whole message of the peer's TLS after the handshake: a change of its key, or it is refused.
  void OnPeerMessage(std::span<const std::byte> message);
  std::span<const std::byte> NextRecord(Cursor* cursor);
  bool Encrypt(std::span<const std::byte> record);
  // Offers output_ to the socket; the errno that ended the socket, 0 = none.
  int Flush();
  // Notes why the last call of OpenSSL failed.
  void Fail(int ssl_error);

  const int fd_;
  const uint64_t records_per_key_;
  SSL* ssl_;
  bool handshaken_ = false;
  std::optional<TlsFailure> failure_;
  bool at_end_ = false;       // the socket's end was read
  int socket_error_ = 0;      // errno of the last read, if that failed
  int first_byte_ = -1;       // that ever came: the kind of a TLS record, unless it is none
  uint64_t num_records_ = 0;  // under the present key
  uint64_t num_key_updates_ = 0;
  uint64_t peer_key_bytes_ = 0;    // received under the peer's present key
  const char* refused_ = nullptr;  // what the peer's TLS did that no peer of ours does
  int64_t turn_left_ = 0;          // bytes that the present call may still read

  std::vector<std::byte> input_;  // [input_begin_, input_end_) is unread
  size_t input_begin_ = 0;
  size_t input_end_ = 0;
  std::vector<std::byte> output_;  // [output_begin_, size) is unsent; keeps its capacity
  size_t output_begin_ = 0;
  std::array<std::byte, kRecordBytes> record_;  // joins parts that are shorter
};

// True for the first bytes of a TLS record: what a peer with TLS says to one without.
bool LooksLikeTls(std::span<const std::byte> bytes);

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_TLS_STREAM_H_
