// TlsSocket: the server's end of TLS over a non-blocking socket, for clients of the HTTP port. It
// waits for nothing: who uses it waits for what the socket wants, and calls again. One thread.
//
// Bytes that Read has not handed over yet may be in here (has_unread), where no poll announces
// them. A Write that wants the socket to be writable has taken nothing: the next one begins with
// the same bytes.
#ifndef BATON_TLS_TLS_SOCKET_H_
#define BATON_TLS_TLS_SOCKET_H_

#include <openssl/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/tls/tls_identity.h"

namespace baton::tls {

// How a call ended.
enum class TlsIo : uint8_t {
  kDone,
  kWantsRead,   // again once the socket is readable
  kWantsWrite,  // again once the socket is writable
  kEnd,         // the peer sends nothing more; Write may go on
  kFailed,      // nothing goes any more
};

// See the file comment.
class TlsSocket {
 public:
  // The largest record of TLS: more bytes are not taken by one call.
  static constexpr size_t kRecordBytes = size_t{16} << 10;

  // `fd` stays the caller's, and is open while calls are made. Unavailable: no memory is left.
  static StatusOr<std::unique_ptr<TlsSocket>> Create(const TlsIdentity& identity, int fd);
  ~TlsSocket();
  TlsSocket(const TlsSocket&) = delete;
  TlsSocket& operator=(const TlsSocket&) = delete;

  // Goes on with the handshake. A failure has been told to the peer.
  TlsIo Handshake();
  // After the handshake. kDone: 1 to `size` bytes were read.
  TlsIo Read(char* out, size_t size, size_t* num_read);
  // After the handshake, of 1 byte or more. kDone: so many were taken.
  TlsIo Write(std::string_view bytes, size_t* num_written);
  // Tells the peer that nothing more will be sent, where the socket has room for that.
  void SendEnd();

  bool has_unread() const;
  // "TLSv1.3", after the handshake.
  std::string_view version() const;
  // Why the handshake failed.
  const std::string& failure() const { return failure_; }

 private:
  struct Bio;  // OpenSSL's view of the socket

  explicit TlsSocket(int fd) : fd_(fd) {}
  TlsIo OutcomeOf(int result);

  const int fd_;
  SSL* ssl_ = nullptr;
  bool at_end_ = false;  // the socket's end was read
  std::string failure_;
};

}  // namespace baton::tls

#endif  // BATON_TLS_TLS_SOCKET_H_
