#include "src/http/http_connection.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>

#include "src/base/log.h"

namespace baton::http {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

// Bytes of later requests kept while one is handled; then reading pauses.
constexpr size_t kMaxPipelinedBytes = size_t{64} * 1024;
// How long a closing connection is drained, so that the client can read its last answer: closing
// with unread input makes the kernel send a reset that may overtake the answer.
constexpr int64_t kLingerMs = 2'000;

// Beast ends at the second of two fields that exclude each other, and calls it malformed.
bool HasTwoLengths(std::string_view header) {
  return RawField(header, "Content-Length") && RawField(header, "Transfer-Encoding");
}

HttpRefusal RefusalOf(const boost::system::error_code& error) {
  if (error == http::error::header_limit) return {431, "the request header is too large"};
  if (error == http::error::body_limit) return {413, "the request body is too large"};
  if (error == http::error::bad_version) return {505, "only HTTP/1.0 and HTTP/1.1 are spoken"};
  if (error == http::error::bad_transfer_encoding) {
    return {400, "the Transfer-Encoding field is malformed"};
  }
  if (error == http::error::bad_content_length) {
    return {400, "Content-Length is not a number of bytes"};
  }
  if (error == http::error::bad_chunk || error == http::error::bad_chunk_extension) {
    return {400, "the chunked body is malformed"};
  }
  return {400, "the request is not valid HTTP/1.1"};
}

}  // namespace

HttpConnection::HttpConnection(const std::shared_ptr<asio::io_context>& io, HttpWire wire,
                               StreamSweep* sweep, HttpServerShared* shared,
                               std::function<void(HttpConnection*)> on_closed)
    : io_(io),
      wire_(std::move(wire)),
      read_timer_(*io),
      write_timer_(*io),
      sweep_(sweep),
      shared_(shared),
      on_closed_(std::move(on_closed)),
      peer_address_(wire_.PeerAddress()) {}

void HttpConnection::Start(bool is_refused) {
  is_refused_ = is_refused;
  if (!wire_.is_tls()) return BeginFirst();
  state_ = State::kHandshake;
  ArmReadTimer(shared_->options.handshake_timeout_ms);
  SetPatience(shared_->options.patience.first_ms);
  AwaitGreeting();
}

void HttpConnection::BeginFirst() {
  if (is_refused_) return Refuse({503, "too many open connections; try again later"});
  BeginRequest();
  SetPatience(shared_->options.patience.first_ms);
}

void HttpConnection::AwaitGreeting() {
  wire_.WaitForGreeting([self = shared_from_this()](const ErrorCode& error) {
    if (self->state_ == State::kClosed) return;
    if (error) return self->Close();
    self->OnGreeting();
  });
}

void HttpConnection::OnGreeting() {
  SetPatience(shared_->options.patience.request_ms);
  switch (wire_.Greet()) {
    case Greeting::kDone:
      return BeginFirst();
    case Greeting::kGoesOn:
      return AwaitGreeting();
    case Greeting::kIsPlain:
      return Refuse({400, "this port speaks TLS: its address begins with https://", kTlsOnly});
    case Greeting::kFailed:
      BATON_LOG_DEBUG("no TLS with {}: {}", peer_address_, wire_.failure());
      return Linger();
  }
}

void HttpConnection::SetPatience(int64_t patience_ms) {
  patience_ends_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
}

void HttpConnection::BeginRequest() {
  state_ = State::kHeader;
  scanned_ = 0;
  request_ = HttpRequest{};
  site_ = SiteVerdict{};
  request_id_.clear();
  const HttpServerOptions& options = shared_->options;
  ArmReadTimer(buffer_.empty() ? options.idle_timeout_ms : options.header_timeout_ms);
  SetPatience(buffer_.empty() ? options.patience.next_ms : options.patience.request_ms);
  ContinueHeader();
}

void HttpConnection::ContinueHeader() {
  const HeaderScan scan = ScanHeader(buffer_, shared_->options.max_header_bytes, &scanned_);
  switch (scan.state) {
    case HeaderScan::State::kNeedMore:
      Read();
      break;
    case HeaderScan::State::kRefused:
      Refuse(scan.refusal);
      break;
    case HeaderScan::State::kComplete:
      ParseHeader(scan.header_bytes);
      break;
  }
}

void HttpConnection::ParseHeader(size_t header_bytes) {
  const HttpServerOptions& options = shared_->options;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(options.max_header_bytes + 1));
  // CheckHead looks at the length, so that its refusal has the fields of site_.
  parser_->body_limit(boost::none);
  parser_->eager(false);
  ErrorCode error;
  const size_t start = buffer_.find_first_not_of("\r\n");  // past empty lines before the request
  const std::string header = buffer_.substr(start, header_bytes - start);
  buffer_.erase(0, header_bytes);
  request_id_ = RawRequestId(header);
  const auto refuse = [&](const HttpRefusal& refusal) {
    request_.path = RawPath(header);
    Refuse(refusal);
  };
  parser_->put(asio::buffer(header), error);
  if (error == http::error::bad_version && !NamesHttpVersion(header)) {
    return refuse({400, "the request line is malformed"});
  }
  if (error && error != http::error::need_more) {
    const bool is_length =
        error == http::error::bad_content_length || error == http::error::bad_transfer_encoding;
    return refuse(is_length && HasTwoLengths(header) ? kTwoLengths : RefusalOf(error));
  }
  if (!parser_->is_header_done()) return refuse({400, "the request is not valid HTTP/1.1"});

  const auto& message = parser_->get();
  for (const auto& field : message) request_.headers.Add(field.name_string(), field.value());
  request_.method = std::string(message.method_string());
  request_.target = std::string(message.target());
  request_.peer_address = peer_address_;
  const int minor_version = static_cast<int>(message.version()) - 10;
  if (request_.headers.fields().size() > options.max_header_fields) {
    return refuse({431, "the request has too many header fields"});
  }
  if (const auto refusal = CheckHead(minor_version)) return Refuse(*refusal);
  parser_->body_limit(options.max_body_bytes);
  traits_ = ExchangeTraits{.head = request_.method == "HEAD",
                           .http_1_0 = minor_version == 0,
                           .keep_alive = framing_.keep_alive,
                           .max_buffered_bytes = options.max_buffered_bytes,
                           .idle_timeout_ms = options.idle_timeout_ms,
                           .fields = site_.fields,
                           .draining = [shared = shared_] { return shared->draining.load(); }};
  BeginBody();
}

// Checks the request line and the fields: framing, target, and whose page sent it.
std::optional<HttpRefusal> HttpConnection::CheckHead(int minor_version) {
  std::optional<TargetParts> target = SplitTarget(request_.target);
  if (target) {  // first, because the form of a refusal is the path's
    request_.path = std::move(target->path);
    request_.query = std::move(target->query);
  }
  if (const auto refusal = CheckFraming(request_.headers, minor_version, &framing_)) {
    return refusal;
  }
  if (!target) {
    return HttpRefusal{400, "the request target is neither a path nor an http:// address"};
  }
  site_ = JudgeSite(shared_->options.sites, {.method = request_.method,
                                             .authority = target->authority,
                                             .headers = &request_.headers,
                                             .on_loopback = shared_->on_loopback,
                                             .own_host = shared_->options.host});
  if (site_.refusal) return site_.refusal;
  if (framing_.content_length > shared_->options.max_body_bytes) {
    return HttpRefusal{413, "the request body is too large"};
  }
  return std::nullopt;
}

void HttpConnection::BeginBody() {
  if (parser_->is_done() || (!framing_.chunked && framing_.content_length == 0)) return Dispatch();
  state_ = State::kBody;
  parser_->eager(true);
  ArmReadTimer(shared_->options.body_timeout_ms);
  if (framing_.expects_continue && buffer_.empty()) {
    // 25 bytes into an empty send buffer; a client whose window is closed here gets no reminder,
    // and sends its body anyway after its own time-out.
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    wire_.WriteNow(kContinue);
  }
  ContinueBody();
}

void HttpConnection::ContinueBody() {
  // The parser sees this much at a time, so that a chunk header or trailer meets the same limit
  // whether it comes in one piece or in many.
  const size_t window = shared_->options.max_header_bytes;
  size_t done = 0;
  while (done < buffer_.size() && !parser_->is_done()) {
    const size_t shown = std::min(window, buffer_.size() - done);
    ErrorCode error;
    const size_t used = parser_->put(asio::buffer(buffer_.data() + done, shown), error);
    done += used;
    if (error && error != http::error::need_more) return Refuse(RefusalOf(error));
    if (used > 0) continue;
    // One incomplete chunk header or trailer.
    if (shown == window) return Refuse({400, "the chunked body is malformed"});
    break;
  }
  buffer_.erase(0, done);
  if (!LeaseBody()) {
    return Refuse({503, "the bodies of other requests leave no room; try again later"});
  }
  if (parser_->is_done()) return Dispatch();
  Read();
}

// False: the server's budget has not what the body has grown by.
bool HttpConnection::LeaseBody() {
  const size_t num_bytes = parser_->get().body().size();
  if (num_bytes <= kFreeBodyBytes) return true;
  if (body_lease_ == nullptr) body_lease_ = std::make_shared<BodyLease>(shared_->bodies);
  return body_lease_->GrowTo(num_bytes);
}

void HttpConnection::Dispatch() {
  request_.body = std::move(parser_->get().body());
  request_.body_lease = std::exchange(body_lease_, nullptr);
  parser_.reset();
  exchange_ = MakeExchange(traits_);
  if (!wire_.is_tls()) exchange_->LendSocket(wire_.descriptor());
  state_ = State::kHandling;
  patience_ends_ = TimePoint::max();
  counts_as_active_ = true;
  shared_->num_active_requests.fetch_add(1);
  ArmReadTimer(0);
  Read();
  auto responder = MakeResponder(exchange_, [formatter = shared_->options.error_formatter,
                                             id = std::move(request_id_), path = request_.path] {
    return formatter({500, "the request was dropped", "", path}, id);
  });
  if (site_.is_preflight) {
    responder->Respond({204, {}, ""});
    return;
  }
  try {
    shared_->handler(std::move(request_), std::move(responder));
  } catch (const std::exception& error) {
    // The dropped responder has answered 500; a request must not end the process.
    BATON_LOG_ERROR("HTTP handler threw: {}", error.what());
  }
}

void HttpConnection::Refuse(HttpRefusal refusal) {
  traits_ = ExchangeTraits{.head = request_.method == "HEAD",
                           .http_1_0 = false,
                           .keep_alive = false,
                           .max_buffered_bytes = shared_->options.max_buffered_bytes,
                           .idle_timeout_ms = 0,
                           .fields = site_.fields,
                           .draining = [] { return true; }};
  exchange_ = MakeExchange(traits_);
  // No header was cut from the buffer: it begins with the refused request, and not with the next.
  if (state_ == State::kHeader && !parser_.has_value()) {
    request_id_ = RawRequestId(buffer_);
    request_.path = RawPath(buffer_);
  }
  state_ = State::kHandling;
  patience_ends_ = TimePoint::max();
  parser_.reset();  // a refused body is not kept until the client has read why
  body_lease_.reset();
  ArmReadTimer(0);
  refusal.path = request_.path;
  HttpResponse response = shared_->options.error_formatter(refusal, request_id_);
  if (refusal.status == 503) response.headers.Set("Retry-After", "1");
  exchange_->Respond(std::move(response));
}

void HttpConnection::Read() {
  const bool paused = state_ == State::kHandling && buffer_.size() >= kMaxPipelinedBytes;
  if (reading_ || paused || peer_closed_ || state_ == State::kClosed) return;
  reading_ = true;
  // Read when it is handled and not before, so that HasUnread knows.
  wire_.WaitReadable(
      [self = shared_from_this()](const ErrorCode& error) { self->OnReadable(error); });
}

void HttpConnection::OnReadable(ErrorCode error) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  size_t size = 0;
  if (!error) size = wire_.Read(incoming_, &error);
  if (error == asio::error::would_block) return Read();
  OnRead(error, size);
}

void HttpConnection::OnRead(const ErrorCode& error, size_t size) {
  if (error) return OnPeerClosed(error);
  const bool first_bytes = state_ == State::kHeader && buffer_.empty();
  if (state_ != State::kLinger) buffer_.append(incoming_.data(), size);
  switch (state_) {
    case State::kHeader:
      SetPatience(shared_->options.patience.request_ms);
      if (first_bytes) ArmReadTimer(shared_->options.header_timeout_ms);
      ContinueHeader();
      break;
    case State::kBody:
      SetPatience(shared_->options.patience.request_ms);
      ContinueBody();
      break;
    case State::kHandling:
    case State::kLinger:
      Read();
      break;
    case State::kHandshake:
    case State::kClosed:
      break;
  }
}

void HttpConnection::OnPeerClosed(const ErrorCode& error) {
  peer_closed_ = true;
  // After an orderly end of its input a client may still be reading; after a reset nobody is.
  if (state_ != State::kHandling || error != asio::error::eof) return Close();
  exchange_->PeerClosed();
}

std::shared_ptr<HttpExchange> HttpConnection::MakeExchange(ExchangeTraits traits) {
  std::weak_ptr<HttpConnection> weak = weak_from_this();
  return std::make_shared<HttpExchange>(std::move(traits), [weak, weak_io = io_] {
    const std::shared_ptr<asio::io_context> io = weak_io.lock();
    if (io == nullptr) return;
    asio::post(*io, [weak] {
      if (const auto self = weak.lock()) self->Flush();
    });
  });
}

void HttpConnection::Flush() {
  if (exchange_ == nullptr || state_ == State::kClosed) return;
  // Before looking at `writing_`: the write in progress may never end.
  if (exchange_->OnWake()) return Close();
  if (writing_) return;
  output_ = exchange_->Take(std::move(output_.text));
  if (output_.abort) return Close();
  if (output_.silence_ms > 0 && !std::exchange(is_swept_, true)) {
    sweep_->Add(exchange_, output_.silence_ms);
  }
  num_sent_ = 0;
  if (Unsent().empty()) return EndOutput();
  // Bytes that the socket takes at once need no timer and no other turn of the loop.
  if (!TellSent(wire_.WritePlain(Unsent()))) return;
  if (Unsent().empty()) return EndOutput();
  writing_ = true;
  WriteSome();
}

// The kernel took `size` bytes of output_. False: who was told of it closed the connection.
bool HttpConnection::TellSent(size_t size) {
  num_sent_ += size;
  const std::shared_ptr<HttpExchange> exchange = exchange_;
  exchange->Sent(size);
  return state_ != State::kClosed;
}

// The rest of output_, in write_buffers_.
std::span<const asio::const_buffer> HttpConnection::Unsent() {
  size_t count = 0;
  size_t skip = num_sent_;
  for (const std::string* part : {&output_.text, &output_.body}) {
    if (skip < part->size()) {
      write_buffers_[count++] = asio::buffer(part->data() + skip, part->size() - skip);
    }
    skip -= std::min(skip, part->size());
  }
  return {write_buffers_.data(), count};
}

void HttpConnection::WriteSome() {
  write_timer_.expires_after(std::chrono::milliseconds(shared_->options.write_stall_timeout_ms));
  write_timer_.async_wait([weak = weak_from_this()](const ErrorCode& error) {
    const auto self = weak.lock();
    if (error || self == nullptr) return;
    // A timer that fired just before it was moved is stale.
    if (self->writing_ && self->write_timer_.expiry() <= std::chrono::steady_clock::now()) {
      self->Close(HttpClientGone::kStalled);
    }
  });
  wire_.Write(Unsent(), [self = shared_from_this()](const ErrorCode& error, size_t size) {
    self->OnWritten(error, size);
  });
}

void HttpConnection::OnWritten(const ErrorCode& error, size_t size) {
  if (state_ == State::kClosed) return;
  if (error) return Close();
  if (!TellSent(size)) return;
  if (!Unsent().empty()) return WriteSome();
  writing_ = false;
  write_timer_.cancel();
  if (output_.complete) return EndOutput();
  Flush();
}

// All of output_ is sent.
void HttpConnection::EndOutput() {
  if (output_.complete) EndExchange(output_.close);
}

void HttpConnection::StopSweep() {
  if (std::exchange(is_swept_, false)) sweep_->Remove(exchange_);
}

void HttpConnection::EndExchange(bool close) {
  StopSweep();
  exchange_.reset();
  const HttpExchange::Output sent = std::exchange(output_, {});  // an idle connection holds none
  if (counts_as_active_) shared_->num_active_requests.fetch_sub(1);
  counts_as_active_ = false;
  if (peer_closed_) {
    wire_.EndWriting();
    return Close();
  }
  if (close) return Linger();
  BeginRequest();
}

void HttpConnection::Linger() {
  state_ = State::kLinger;
  buffer_.clear();
  wire_.EndWriting();
  ArmReadTimer(kLingerMs);
  SetPatience(shared_->options.patience.first_ms);
  Read();
}

void HttpConnection::ArmReadTimer(int64_t timeout_ms) {
  const uint64_t serial = ++read_timer_serial_;
  if (timeout_ms <= 0) {
    read_timer_.cancel();
    return;
  }
  read_timer_.expires_after(std::chrono::milliseconds(timeout_ms));
  read_timer_.async_wait([weak = weak_from_this(), serial](const ErrorCode& error) {
    const auto self = weak.lock();
    if (!error && self != nullptr && serial == self->read_timer_serial_) self->OnReadTimeout();
  });
}

void HttpConnection::OnReadTimeout() {
  const bool in_request = state_ == State::kBody || (state_ == State::kHeader && !buffer_.empty());
  if (in_request) return Refuse({408, "the request did not arrive in time"});
  Close();
}

void HttpConnection::Close(HttpClientGone how) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  const auto self = shared_from_this();  // on_closed_ drops the owner's reference
  if (exchange_ != nullptr) exchange_->ForgetSocket();
  wire_.Close();
  read_timer_.cancel();
  write_timer_.cancel();
  if (counts_as_active_) shared_->num_active_requests.fetch_sub(1);
  counts_as_active_ = false;
  StopSweep();
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->Close(how);
  on_closed_(this);
}

}  // namespace baton::http
