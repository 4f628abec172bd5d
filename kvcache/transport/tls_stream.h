// TlsStream: TLS 1.3 between a connection and its non-blocking socket, as the calls of socket_io.h:
// frames go in and come out, records cross. The connection's thread.
//
// Invariants
//  1. What Send has taken is encrypted: the places it came from are not read again. Ciphertext that
//     the socket does not take yet waits here (has_output), kMaxOutputBytes and a record at most.
//  2. Receive leaves nothing behind that epoll would have to announce, as long as it is called
//  until
//     it would block: bytes that the socket gave and nobody asked for yet wait here.
//  3. After a failure every call fails; failure() says why, in this side's words.
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

namespace baton {

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

  // `fd` stays the caller's and outlives the stream.
  TlsStream(const TlsIdentity& identity, int fd, bool dialled,
            uint64_t records_per_key = kRecordsPerKey);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // Goes on as far as the socket lets it.
  TlsStep Handshake();

  // Takes as much as goes; with no parts it only offers what waits. kDone with 0 bytes: nothing
  // waits any more. kError with errno 0: see failure().
  IoOutcome Send(std::span<const iovec> parts);
  // As ReceiveParts, but the end of the stream is kError as well: failure() is kPeerClosed then.
  IoOutcome Receive(std::span<iovec> parts);

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

  std::vector<std::byte> input_;  // [input_begin_, input_end_) is unread
  size_t input_begin_ = 0;
  size_t input_end_ = 0;
  std::vector<std::byte> output_;  // [output_begin_, size) is unsent
  size_t output_begin_ = 0;
  std::array<std::byte, kRecordBytes> record_;  // joins parts that are shorter
};

// True for the first bytes of a TLS record: what a peer with TLS says to one without.
bool LooksLikeTls(std::span<const std::byte> bytes);

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_TLS_STREAM_H_
