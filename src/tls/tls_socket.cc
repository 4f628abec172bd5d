#include "src/tls/tls_socket.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace baton::tls {

// See the header. OpenSSL's own BIO of sockets would raise SIGPIPE where the peer has gone.
struct TlsSocket::Bio {
  static TlsSocket& OwnerOf(BIO* bio) { return *static_cast<TlsSocket*>(BIO_get_data(bio)); }

  static int Read(BIO* bio, char* out, int size) {
    TlsSocket& owner = OwnerOf(bio);
    BIO_clear_retry_flags(bio);
    const ssize_t got = ::recv(owner.fd_, out, static_cast<size_t>(size), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
    owner.at_end_ = owner.at_end_ || got == 0;
    return static_cast<int>(got);
  }

  static int Write(BIO* bio, const char* bytes, int size) {
    BIO_clear_retry_flags(bio);
    const ssize_t sent = ::send(OwnerOf(bio).fd_, bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
    return static_cast<int>(sent);
  }

  static long Control(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
    if (command == BIO_CTRL_FLUSH) return 1;  // every write goes to the socket
    return command == BIO_CTRL_EOF && OwnerOf(bio).at_end_ ? 1 : 0;
  }

  static BIO_METHOD* Make() {
    BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    if (method == nullptr) return nullptr;
    BIO_meth_set_read(method, &Read);
    BIO_meth_set_write(method, &Write);
    BIO_meth_set_ctrl(method, &Control);
    return method;
  }
};

StatusOr<std::unique_ptr<TlsSocket>> TlsSocket::Create(const TlsIdentity& identity, int fd) {
  static BIO_METHOD* const method = Bio::Make();  // for the life of the process
  std::unique_ptr<TlsSocket> socket(new TlsSocket(fd));
  BIO* const bio = method == nullptr ? nullptr : BIO_new(method);
  socket->ssl_ = bio == nullptr ? nullptr : SSL_new(identity.ssl_context());
  if (socket->ssl_ == nullptr) {
    BIO_free(bio);
    return Unavailable("no TLS for a connection: {}", TakeOpensslError());
  }
  BIO_set_data(bio, socket.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(socket->ssl_, bio, bio);  // takes it over
  SSL_set_accept_state(socket->ssl_);
  return socket;
}

TlsSocket::~TlsSocket() { SSL_free(ssl_); }

TlsIo TlsSocket::OutcomeOf(int result) {
  if (result > 0) return TlsIo::kDone;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return TlsIo::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return TlsIo::kWantsWrite;
    case SSL_ERROR_ZERO_RETURN:
      return TlsIo::kEnd;
    default:
      return TlsIo::kFailed;
  }
}

TlsIo TlsSocket::Handshake() {
  ERR_clear_error();
  const TlsIo outcome = OutcomeOf(SSL_do_handshake(ssl_));
  if (outcome == TlsIo::kFailed || outcome == TlsIo::kEnd) {
    failure_ = at_end_ ? "the client closed the connection" : TakeOpensslError();
    return TlsIo::kFailed;
  }
  return outcome;
}

TlsIo TlsSocket::Read(char* out, size_t size, size_t* num_read) {
  ERR_clear_error();
  return OutcomeOf(SSL_read_ex(ssl_, out, size, num_read));
}

TlsIo TlsSocket::Write(std::string_view bytes, size_t* num_written) {
  ERR_clear_error();
  const size_t size = std::min(bytes.size(), kRecordBytes);
  return OutcomeOf(SSL_write_ex(ssl_, bytes.data(), size, num_written));
}

void TlsSocket::SendEnd() {
  ERR_clear_error();
  if (SSL_is_init_finished(ssl_) == 1) SSL_shutdown(ssl_);
  ERR_clear_error();
}

bool TlsSocket::has_unread() const { return SSL_pending(ssl_) > 0; }

std::string_view TlsSocket::version() const { return SSL_get_version(ssl_); }

}  // namespace baton::tls
