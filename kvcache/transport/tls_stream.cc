#include "kvcache/transport/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/base/errno_text.h"

namespace baton::kv {

using tls::TakeOpensslError;
using tls::TlsIdentity;

namespace {

// Four records a call; a stranger holds as much before it has proved anything.
constexpr size_t kInputBytes = size_t{64} << 10;
// Full, and then one more record with its frame, a change of key before it and an alert.
constexpr size_t kOutputBytes = TlsStream::kMaxOutputBytes + TlsStream::kRecordBytes + 512;
// The kinds of TLS records: change_cipher_spec, alert, handshake, application_data.
constexpr int kFirstRecordKind = 20;
constexpr int kLastRecordKind = 23;

// failure() says the rest.
constexpr IoOutcome kBroken{IoResult::kError, 0, 0};

// Whether a peer's alert, or our own check, is about a certificate.
bool IsAboutCertificate(int reason) {
  switch (reason) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool LooksLikeTls(std::span<const std::byte> bytes) {
  if (bytes.size() < 2) return false;
  const int kind = std::to_integer<int>(bytes[0]);
  return kind >= kFirstRecordKind && kind <= kLastRecordKind &&
         std::to_integer<int>(bytes[1]) == SSL3_VERSION_MAJOR;
}

// Writing never blocks here: Send sees to it that output_ stays short.
struct TlsStream::Bio {
  static int Read(BIO* bio, char* out, int size) {
    BIO_clear_retry_flags(bio);
    const int got = static_cast<TlsStream*>(BIO_get_data(bio))->ReadInput(out, size);
    if (got < 0) BIO_set_retry_read(bio);
    return got;
  }
  static int Write(BIO* bio, const char* data, int size) {
    BIO_clear_retry_flags(bio);
    static_cast<TlsStream*>(BIO_get_data(bio))
        ->WriteOutput({reinterpret_cast<const std::byte*>(data), static_cast<size_t>(size)});
    return size;
  }
  static long Control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }
  static const BIO_METHOD* Method() {
    static const BIO_METHOD* const method = [] {
      BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "baton-kv");
      if (made == nullptr) return made;
      BIO_meth_set_read(made, &Read);
      BIO_meth_set_write(made, &Write);
      BIO_meth_set_ctrl(made, &Control);
      return made;
    }();
    return method;
  }
};

TlsStream::TlsStream(const TlsIdentity& identity, int fd, bool dialled, uint64_t records_per_key)
    : fd_(fd),
      records_per_key_(records_per_key),
      ssl_(SSL_new(identity.ssl_context())),
      input_(kInputBytes) {
  BIO* const bio = Bio::Method() == nullptr ? nullptr : BIO_new(Bio::Method());
  if (ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    failure_ = {CloseReason::kTlsHandshake,
                ResourceExhausted("no memory for TLS: {}", TakeOpensslError())};
    return;
  }
  output_.reserve(kOutputBytes);
  SSL_set_msg_callback(ssl_, [](int is_ours, int /*version*/, int kind, const void* data,
                                size_t size, SSL* /*ssl*/, void* stream) {
    if (is_ours != 0 || kind != SSL3_RT_HANDSHAKE) return;
    static_cast<TlsStream*>(stream)->OnPeerMessage({static_cast<const std::byte*>(data), size});
  });
  SSL_set_msg_callback_arg(ssl_, this);
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  if (dialled) {
    SSL_set_connect_state(ssl_);
  } else {
    SSL_set_accept_state(ssl_);
  }
}

TlsStream::~TlsStream() { SSL_free(ssl_); }

// Bytes for OpenSSL: > 0, 0 at the end, < 0 for later or an error of the socket.
int TlsStream::ReadInput(char* out, int size) {
  // OpenSSL comes again and again, until it has data or hears that there are no bytes.
  if (refused_ != nullptr) return -1;
  if (input_begin_ == input_end_) {
    if (turn_left_ <= 0) return -1;
    ssize_t got = 0;
    do {
      got = recv(fd_, input_.data(), input_.size(), 0);
    } while (got < 0 && errno == EINTR);
    if (got == 0) at_end_ = true;
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) socket_error_ = errno;
    // An error of the socket is no end: the caller finds it in socket_error_.
    if (got <= 0) return static_cast<int>(got);
    if (first_byte_ < 0) first_byte_ = std::to_integer<int>(input_[0]);
    input_begin_ = 0;
    input_end_ = static_cast<size_t>(got);
    turn_left_ -= got;
  }
  const size_t count = std::min(static_cast<size_t>(size), input_end_ - input_begin_);
  std::memcpy(out, input_.data() + input_begin_, count);
  input_begin_ += count;
  return static_cast<int>(count);
}

void TlsStream::WriteOutput(std::span<const std::byte> bytes) {
  if (output_.size() + bytes.size() > output_.capacity()) {
    output_.erase(output_.begin(), output_.begin() + static_cast<ptrdiff_t>(output_begin_));
    output_begin_ = 0;
  }
  output_.insert(output_.end(), bytes.begin(), bytes.end());
}

void TlsStream::OnPeerMessage(std::span<const std::byte> message) {
  if (!handshaken_) return;
  // Type, three bytes of length, and whether the peer wants our key changed as well.
  const bool is_key_update = message.size() == 5 && message[0] == std::byte{SSL3_MT_KEY_UPDATE};
  if (!is_key_update) {
    refused_ = "a message that no peer of a cluster sends";
  } else if (message[4] != std::byte{SSL_KEY_UPDATE_NOT_REQUESTED}) {
    refused_ = "the peer wants a new key of ours";
  } else if (peer_key_bytes_ < records_per_key_ / kEarlyKeyDivisor) {
    refused_ = "the peer changes its key too often";
  }
  peer_key_bytes_ = 0;
}

TlsStep TlsStream::Handshake() {
  if (failure_.has_value()) return TlsStep::kFailed;
  turn_left_ = kStepBytes;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  handshaken_ = result == 1;
  if (!handshaken_) {
    const int error = SSL_get_error(ssl_, result);
    if (error != SSL_ERROR_WANT_READ || socket_error_ != 0) Fail(error);
  }
  // Also after a failure: the alert tells the peer why.
  const int broken = Flush();
  if (failure_.has_value()) return TlsStep::kFailed;
  if (broken != 0) {
    failure_ = {CloseReason::kPeerClosed, Unavailable("send: {}", ErrnoText(broken))};
    return TlsStep::kFailed;
  }
  return handshaken_ ? TlsStep::kDone : TlsStep::kGoesOn;
}

void TlsStream::Fail(int ssl_error) {
  if (refused_ != nullptr) {
    failure_ = {CloseReason::kTlsHandshake, DataLoss("TLS: {}", refused_)};
    return;
  }
  if (socket_error_ != 0) {
    failure_ = {CloseReason::kPeerClosed, Unavailable("receive: {}", ErrnoText(socket_error_))};
    return;
  }
  if (at_end_) {
    failure_ = {CloseReason::kPeerClosed,
                Unavailable("the peer closed the connection{}",
                            handshaken_ ? "" : " in the middle of the TLS handshake")};
    return;
  }
  const int reason = ERR_GET_REASON(ERR_peek_error());
  const long verdict = SSL_get_verify_result(ssl_);
  const std::string words = TakeOpensslError();
  if (!handshaken_ && (first_byte_ < kFirstRecordKind || first_byte_ > kLastRecordKind)) {
    failure_ = {
        CloseReason::kTlsMissing,
        FailedPrecondition("the peer does not speak TLS (--tls-cert, --tls-key, --tls-ca)")};
  } else if (IsAboutCertificate(reason)) {
    const bool is_ours = reason != SSL_R_CERTIFICATE_VERIFY_FAILED;
    failure_ = {CloseReason::kTlsCertificate,
                Unauthenticated("TLS: {}{}{}", words, is_ours ? "" : ": ",
                                is_ours ? "" : X509_verify_cert_error_string(verdict))};
  } else {
    failure_ = {CloseReason::kTlsHandshake, DataLoss("TLS: {} ({})", words, ssl_error)};
  }
}

// The next bytes to encrypt, a record at most: in place when they are one long run, else joined.
std::span<const std::byte> TlsStream::NextRecord(Cursor* cursor) {
  size_t joined = 0;
  while (!cursor->parts.empty() && joined < kRecordBytes) {
    const iovec& part = cursor->parts.front();
    const auto* const begin = static_cast<const std::byte*>(part.iov_base) + cursor->offset;
    const size_t left = part.iov_len - cursor->offset;
    const size_t count = std::min(left, kRecordBytes - joined);
    cursor->offset += count;
    if (count == left) {
      cursor->parts = cursor->parts.subspan(1);
      cursor->offset = 0;
    }
    if (count == kRecordBytes) return {begin, count};
    std::memcpy(record_.data() + joined, begin, count);
    joined += count;
  }
  return {record_.data(), joined};
}

bool TlsStream::Encrypt(std::span<const std::byte> record) {
  ERR_clear_error();
  if (++num_records_ >= records_per_key_) {
    // Goes out before this record, and the peer's own sending is not touched.
    if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
      num_records_ = 0;
      ++num_key_updates_;
    }
  }
  size_t taken = 0;
  const int result = SSL_write_ex(ssl_, record.data(), record.size(), &taken);
  if (result == 1 && taken == record.size()) return true;
  Fail(SSL_get_error(ssl_, result));
  return false;
}

int TlsStream::Flush() {
  while (has_output()) {
    const ssize_t sent =
        send(fd_, output_.data() + output_begin_, output_.size() - output_begin_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return errno;
    if (sent < 0) break;
    output_begin_ += static_cast<size_t>(sent);
  }
  if (!has_output()) {
    output_.clear();
    output_begin_ = 0;
  }
  return 0;
}

IoOutcome TlsStream::Send(std::span<const iovec> parts) {
  if (failure_.has_value()) return kBroken;
  Cursor cursor{parts};
  size_t taken = 0;
  while (output_.size() - output_begin_ < kMaxOutputBytes) {
    const std::span<const std::byte> record = NextRecord(&cursor);
    if (record.empty()) break;
    if (!Encrypt(record)) return kBroken;
    taken += record.size();
  }
  const int error = Flush();
  if (error != 0) return {IoResult::kError, 0, error};
  if (taken == 0 && has_output()) return {IoResult::kWouldBlock, 0, 0};
  return {IoResult::kDone, taken, 0};
}

IoOutcome TlsStream::Receive(std::span<iovec> parts, int64_t* turn_bytes) {
  if (failure_.has_value()) return kBroken;
  turn_left_ = *turn_bytes;
  size_t total = 0;
  for (const iovec& part : parts) {
    size_t filled = 0;
    while (filled < part.iov_len) {
      ERR_clear_error();
      size_t got = 0;
      const int result = SSL_read_ex(ssl_, static_cast<std::byte*>(part.iov_base) + filled,
                                     part.iov_len - filled, &got);
      filled += got;
      total += got;
      peer_key_bytes_ += got;
      if (result == 1) {
        turn_left_ -= kRecordTurnBytes;
        continue;
      }
      *turn_bytes = turn_left_;
      const int error = SSL_get_error(ssl_, result);
      if (error == SSL_ERROR_ZERO_RETURN) at_end_ = true;
      if (error != SSL_ERROR_WANT_READ || socket_error_ != 0 || refused_ != nullptr) Fail(error);
      // Bytes that came before are handed over first; a failure is told by the next call.
      if (total > 0) return {IoResult::kDone, total, 0};
      return failure_.has_value() ? kBroken : IoOutcome{IoResult::kWouldBlock, 0, 0};
    }
  }
  *turn_bytes = turn_left_;
  return {IoResult::kDone, total, 0};
}

}  // namespace baton::kv
