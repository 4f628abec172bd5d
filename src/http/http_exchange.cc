#include "src/http/http_exchange.h"

#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "fmt/format.h"

#include "src/base/clock.h"
#include "src/base/loop_turn.h"

namespace baton::http {
namespace {

// Memory that a stream keeps for its next chunks.
constexpr size_t kMaxKeptBytes = size_t{4} * 1024;
// A larger chunk is the event loop's: sending it would keep its producer for longer than a wake-up
// costs.
constexpr size_t kMaxSentAtOnce = size_t{8} * 1024;
// A producer whose turn lasts longer (some 40 chunks) is late, or has many streams: the event loops
// send beside it, and several chunks of a stream together.
constexpr int64_t kMaxSendingTurnUs = 500;

// Fields that only the server may set: they describe the framing.
bool IsFramingField(std::string_view name) {
  return EqualsIgnoreCase(name, "Content-Length") || EqualsIgnoreCase(name, "Transfer-Encoding") ||
         EqualsIgnoreCase(name, "Connection") || EqualsIgnoreCase(name, "Keep-Alive") ||
         EqualsIgnoreCase(name, "Date");
}

// A field value may echo the client's text: a line break in it would start a new field.
std::string WithoutControls(std::string_view text) {
  std::string clean(text);
  std::replace_if(
      clean.begin(), clean.end(),
      [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }, ' ');
  return clean;
}

bool HasNoBody(int status) { return status == 204 || status == 304; }

}  // namespace

std::string HttpDate(int64_t unix_seconds) {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const time_t seconds = unix_seconds;
  tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday,
                     kMonths[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

HttpExchange::HttpExchange(ExchangeTraits traits, std::function<void()> wake)
    : traits_(std::move(traits)), wake_(std::move(wake)) {}

void HttpExchange::AppendHeadLocked(int status, const HttpHeaders& headers,
                                    std::string_view framing) {
  if (!traits_.keep_alive || traits_.draining()) close_ = true;
  const size_t begin = text_.size();
  fmt::format_to(std::back_inserter(text_), "HTTP/1.1 {} {}\r\nDate: {}\r\n", status,
                 HttpReason(status), HttpDate(SystemClock().WallUnixMs() / 1000));
  for (const auto& [name, value] : headers.fields()) {
    if (IsFramingField(name)) continue;
    fmt::format_to(std::back_inserter(text_), "{}: {}\r\n", WithoutControls(name),
                   WithoutControls(value));
  }
  for (const auto& [name, value] : traits_.fields.fields()) {
    fmt::format_to(std::back_inserter(text_), "{}: {}\r\n", name, WithoutControls(value));
  }
  text_ += framing;
  // Clients that pool connections drop them before we do.
  if (!close_ && traits_.idle_timeout_ms > 0) {
    fmt::format_to(std::back_inserter(text_), "Keep-Alive: timeout={}\r\n",
                   traits_.idle_timeout_ms / 1000);
  }
  if (close_) {
    text_ += "Connection: close\r\n";
  } else if (traits_.http_1_0) {
    text_ += "Connection: keep-alive\r\n";
  }
  text_ += "\r\n";
  buffered_bytes_ += text_.size() - begin;
  written_us_ = SystemClock().NowUs();
}

void HttpExchange::AppendChunkLocked(std::string_view bytes) {
  const size_t begin = text_.size();
  if (!traits_.http_1_0) fmt::format_to(std::back_inserter(text_), "{:x}\r\n", bytes.size());
  text_ += bytes;
  if (!traits_.http_1_0) text_ += "\r\n";
  buffered_bytes_ += text_.size() - begin;
  written_us_ = SystemClock().NowUs();
}

// The caller calls wake_ after it has released the lock. A thread that finds the wake pending adds
// to what that wake will deliver: OnWake, which is yet to run, clears the mark before Take.
bool HttpExchange::MustWakeLocked() { return !std::exchange(wake_pending_, true); }

bool HttpExchange::Respond(HttpResponse response) {
  // Callbacks are destroyed after the lock is released: one may own the last responder, whose
  // destructor takes the lock.
  absl::AnyInvocable<void(HttpClientGone)> unused;
  MutexLock lock(mutex_);
  if (state_ != State::kUnanswered) return false;
  const bool no_body = HasNoBody(response.status);
  const std::string framing =
      no_body ? "" : fmt::format("Content-Length: {}\r\n", response.body.size());
  AppendHeadLocked(response.status, response.headers, framing);
  if (!no_body && !traits_.head) {
    buffered_bytes_ += response.body.size();
    body_ = std::move(response.body);
  }
  state_ = State::kAnswered;
  unused = std::exchange(on_closed_, nullptr);
  const bool must_wake = MustWakeLocked();
  lock.Unlock();
  if (must_wake) wake_();
  return true;
}

bool HttpExchange::StartStream(int status, const HttpHeaders& headers) {
  MutexLock lock(mutex_);
  if (state_ != State::kUnanswered || peer_closed_) return false;
  std::string_view framing = "Transfer-Encoding: chunked\r\n";
  if (traits_.http_1_0) {
    framing = "";
    close_ = true;  // the end of the body is the end of the connection
  }
  AppendHeadLocked(status, headers, framing);
  state_ = State::kStreaming;
  const bool must_wake = MustWakeLocked();
  lock.Unlock();
  if (must_wake) wake_();
  return true;
}

bool HttpExchange::Write(std::string_view chunk) {
  MutexLock lock(mutex_);
  if (state_ != State::kStreaming || peer_closed_ || abort_) return false;
  if (chunk.empty() || traits_.head) return true;
  if (buffered_bytes_ + chunk.size() > traits_.max_buffered_bytes) {
    abort_ = true;
    const bool must_wake = MustWakeLocked();
    lock.Unlock();
    if (must_wake) wake_();
    return false;
  }
  const bool is_alone = buffered_bytes_ == 0;
  AppendChunkLocked(chunk);
  if (is_alone && SendNowLocked(written_us_)) return true;
  const bool must_wake = MustWakeLocked();
  lock.Unlock();
  if (must_wake) wake_();
  return true;
}

// True if the kernel took all. The connection finds what is wrong with a socket that takes none.
bool HttpExchange::SendNowLocked(int64_t now_us) {
  if (socket_ < 0 || text_.size() > kMaxSentAtOnce) return false;
  if (LoopTurn::LastedUs(now_us) > kMaxSendingTurnUs) return false;
  const ssize_t num_sent = ::send(socket_, text_.data(), text_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (num_sent <= 0) return false;
  text_.erase(0, static_cast<size_t>(num_sent));
  buffered_bytes_ -= static_cast<size_t>(num_sent);
  return text_.empty();
}

void HttpExchange::LendSocket(int fd) {
  MutexLock lock(mutex_);
  socket_ = fd;
}

void HttpExchange::ForgetSocket() {
  MutexLock lock(mutex_);
  socket_ = -1;
}

void HttpExchange::KeepAlive(std::string filler, int64_t silence_ms) {
  MutexLock lock(mutex_);
  if (state_ != State::kStreaming || traits_.head || filler.empty()) return;
  filler_ = std::move(filler);
  silence_ms_ = silence_ms;
  const bool must_wake = MustWakeLocked();
  lock.Unlock();
  if (must_wake) wake_();
}

void HttpExchange::FillSilence(int64_t now_us) {
  MutexLock lock(mutex_);
  const bool streams = state_ == State::kStreaming && !peer_closed_ && !abort_;
  // A client that has not taken all its bytes needs no sign of life from us.
  if (!streams || filler_.empty() || buffered_bytes_ > 0) return;
  if (now_us - written_us_ < silence_ms_ * 1000) return;
  AppendChunkLocked(filler_);
  const bool must_wake = MustWakeLocked();
  lock.Unlock();
  if (must_wake) wake_();
}

bool HttpExchange::Finish(bool close) {
  absl::AnyInvocable<void(HttpClientGone)> unused;
  MutexLock lock(mutex_);
  if (state_ != State::kStreaming || abort_) return false;
  if (close) close_ = true;
  if (!traits_.http_1_0 && !traits_.head) AppendChunkLocked("");
  state_ = State::kAnswered;
  unused = std::exchange(on_closed_, nullptr);
  const bool must_wake = MustWakeLocked();
  lock.Unlock();
  if (must_wake) wake_();
  return true;
}

void HttpExchange::Abort() {
  absl::AnyInvocable<void(HttpClientGone)> unused;
  MutexLock lock(mutex_);
  if (state_ == State::kAnswered || state_ == State::kClosed) return;
  unused = std::exchange(on_closed_, nullptr);
  abort_ = true;
  const bool must_wake = MustWakeLocked();
  lock.Unlock();
  if (must_wake) wake_();
}

size_t HttpExchange::buffered_bytes() const { return buffered_bytes_; }

HttpRoom HttpExchange::NotifyBelow(size_t limit_bytes, absl::AnyInvocable<void()> callback) {
  MutexLock lock(mutex_);
  if (state_ == State::kClosed || peer_closed_ || abort_) return HttpRoom::kGone;
  if (buffered_bytes_ <= limit_bytes) return HttpRoom::kNow;
  notify_below_ = limit_bytes;
  std::swap(on_below_, callback);  // the replaced one is destroyed after the lock
  return HttpRoom::kLater;
}

void HttpExchange::OnClosed(absl::AnyInvocable<void(HttpClientGone)> callback) {
  HttpClientGone gone = HttpClientGone::kLeft;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kAnswered) return;
    if (state_ != State::kClosed && !peer_closed_) {
      std::swap(on_closed_, callback);
      return;
    }
    gone = gone_;
  }
  callback(gone);
}

void HttpExchange::Abandon(const std::function<HttpResponse()>& error) {
  bool unanswered = false;
  {
    MutexLock lock(mutex_);
    // A client that has gone gets no answer, and none is counted.
    unanswered = state_ == State::kUnanswered && !peer_closed_;
  }
  if (unanswered) {
    Respond(error());
  } else {
    Abort();
  }
}

bool HttpExchange::OnWake() {
  MutexLock lock(mutex_);
  wake_pending_ = false;
  return abort_;
}

HttpExchange::Output HttpExchange::Take(std::string used) {
  if (used.capacity() > kMaxKeptBytes) std::string().swap(used);  // an assignment would keep it
  used.clear();
  MutexLock lock(mutex_);
  Output output;
  output.text = std::exchange(text_, std::move(used));
  output.body = std::exchange(body_, {});
  output.complete = state_ == State::kAnswered;
  output.abort = abort_;
  output.close = close_;
  output.silence_ms = state_ == State::kStreaming && !filler_.empty() ? silence_ms_ : 0;
  return output;
}

void HttpExchange::Sent(size_t size) {
  absl::AnyInvocable<void()> below;
  {
    MutexLock lock(mutex_);
    buffered_bytes_ -= std::min<size_t>(size, buffered_bytes_);
    if (on_below_ && buffered_bytes_ <= notify_below_) below = std::exchange(on_below_, nullptr);
  }
  if (below) below();
}

void HttpExchange::Close(HttpClientGone how) {
  absl::AnyInvocable<void(HttpClientGone)> closed;
  absl::AnyInvocable<void()> below;
  {
    MutexLock lock(mutex_);
    state_ = State::kClosed;
    gone_ = how;
    text_.clear();
    body_.clear();
    closed = std::exchange(on_closed_, nullptr);
    below = std::exchange(on_below_, nullptr);
  }
  if (closed) closed(how);
  if (below) below();
}

void HttpExchange::PeerClosed() {
  absl::AnyInvocable<void(HttpClientGone)> closed;
  absl::AnyInvocable<void()> below;
  bool must_wake = false;
  {
    MutexLock lock(mutex_);
    peer_closed_ = true;
    if (state_ == State::kStreaming) {
      abort_ = true;
      must_wake = MustWakeLocked();
    }
    closed = std::exchange(on_closed_, nullptr);
    below = std::exchange(on_below_, nullptr);
  }
  if (must_wake) wake_();
  if (closed) closed(HttpClientGone::kLeft);
  if (below) below();
}

namespace {

// See MakeResponder.
class ExchangeResponder final : public HttpResponder {
 public:
  ExchangeResponder(std::shared_ptr<HttpExchange> exchange, std::function<HttpResponse()> on_drop)
      : exchange_(std::move(exchange)), on_drop_(std::move(on_drop)) {}
  ~ExchangeResponder() override { exchange_->Abandon(on_drop_); }

  bool Respond(HttpResponse response) override { return exchange_->Respond(std::move(response)); }
  bool StartStream(int status, const HttpHeaders& headers) override {
    return exchange_->StartStream(status, headers);
  }
  bool Write(std::string_view chunk) override { return exchange_->Write(chunk); }
  bool Finish() override { return exchange_->Finish(false); }
  bool FinishAndClose() override { return exchange_->Finish(true); }
  void Abort() override { exchange_->Abort(); }
  void KeepAlive(std::string filler, int64_t silence_ms) override {
    exchange_->KeepAlive(std::move(filler), silence_ms);
  }
  size_t buffered_bytes() const override { return exchange_->buffered_bytes(); }
  HttpRoom NotifyBelow(size_t limit_bytes, absl::AnyInvocable<void()> callback) override {
    return exchange_->NotifyBelow(limit_bytes, std::move(callback));
  }
  void OnClosed(absl::AnyInvocable<void(HttpClientGone)> callback) override {
    exchange_->OnClosed(std::move(callback));
  }

 private:
  const std::shared_ptr<HttpExchange> exchange_;
  const std::function<HttpResponse()> on_drop_;
};

}  // namespace

std::shared_ptr<HttpResponder> MakeResponder(std::shared_ptr<HttpExchange> exchange,
                                             std::function<HttpResponse()> on_drop) {
  return std::make_shared<ExchangeResponder>(std::move(exchange), std::move(on_drop));
}

}  // namespace baton::http
