#include "src/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <future>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "src/base/bind_fault.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/host_port.h"
#include "src/base/log.h"
#include "src/base/open_files.h"
#include "src/base/thread.h"
#include "src/http/http_connection.h"
#include "src/tls/tls_watch.h"

namespace baton::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// Connections above max_connections that may wait for their 503 at the same time; more are closed
// unanswered.
constexpr size_t kMaxRefusing = 32;
// Connections that their event loop has not looked at yet, or that stand where an overdue one goes.
constexpr size_t kMaxNew = 32;
// Pause after accept failed for want of descriptors or memory.
constexpr std::chrono::milliseconds kAcceptPause(100);

// One event loop with its thread and its connections. `connections` is touched on its thread only.
struct EventLoop {
  // Shared for the time of a wake: an answer's thread may wake a connection while the server ends.
  const std::shared_ptr<asio::io_context> io = std::make_shared<asio::io_context>(1);
  asio::executor_work_guard<asio::io_context::executor_type> work{io->get_executor()};
  StreamSweep sweep{io.get()};
  HandshakeTurns handshakes{io.get()};
  std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>> connections;
  Thread thread;

  // Closes the connection that has been beyond the server's patience for longest; false: none is.
  bool CloseMostOverdue();
};

bool EventLoop::CloseMostOverdue() {
  HttpConnection* most = nullptr;
  auto ends = std::chrono::steady_clock::now();
  for (const auto& [key, connection] : connections) {
    if (connection->patience_ends() > ends || connection->HasUnread()) continue;
    most = key;
    ends = connection->patience_ends();
  }
  if (most != nullptr) most->Close();
  return most != nullptr;
}

StatusOr<tcp::endpoint> Resolve(const std::string& host, uint16_t port) {
  asio::io_context io;
  tcp::resolver resolver(io);
  ErrorCode error;
  const auto results = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || results.empty()) {
    return InvalidArgument("the name {} cannot be resolved: {}", host, error.message());
  }
  return results.begin()->endpoint();
}

// True also for an IPv4 address in its IPv6 form, such as ::ffff:127.0.0.1.
bool IsLoopback(const asio::ip::address& address) {
  const bool is_mapped = address.is_v6() && address.to_v6().is_v4_mapped();
  if (!is_mapped) return address.is_loopback();
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
}

// The implementation of the interface; see http_server.h.
class BeastServer final : public HttpServer {
 public:
  BeastServer(HttpServerOptions options, HttpHandler handler) {
    shared_.options = std::move(options);
    shared_.handler = std::move(handler);
    shared_.bodies = std::make_shared<BodyBudget>(shared_.options.max_bodies_bytes);
    if (!shared_.options.error_formatter) shared_.options.error_formatter = PlainTextError;
    const int num_threads = std::max(1, shared_.options.num_threads);
    for (int i = 0; i < num_threads; ++i) loops_.push_back(std::make_unique<EventLoop>());
    acceptor_.emplace(*loops_[0]->io);
    accept_timer_.emplace(*loops_[0]->io);
  }
  ~BeastServer() override { Stop(); }

  // Before Listen.
  void CapConnections(uint64_t open_files_limit);
  Status Listen();

  uint16_t port() const override { return port_; }
  std::string address() const override {
    return fmt::format("{}:{}", BracketedHost(shared_.options.host), port_);
  }
  void BeginDrain() override;
  size_t num_connections() const override { return shared_.num_connections.load(); }
  size_t num_active_requests() const override { return shared_.num_active_requests.load(); }
  size_t num_body_bytes() const override { return shared_.bodies->num_taken(); }
  void Stop() override;

 private:
  void Accept();
  void OnAccepted(const ErrorCode& error, tcp::socket socket, EventLoop* loop);
  void Adopt(tcp::socket socket, EventLoop* loop);
  bool MakeRoom(EventLoop* loop);

  HttpServerShared shared_;
  std::vector<std::unique_ptr<EventLoop>> loops_;  // constant after construction
  uint16_t port_ = 0;                              // constant after Listen
  // Used on the first loop's thread only.
  std::optional<tcp::acceptor> acceptor_;
  std::optional<asio::steady_timer> accept_timer_;
  size_t next_loop_ = 0;
  std::unique_ptr<tls::TlsWatch> tls_;  // null = plaintext
  // Parts of num_connections, by all event loops.
  std::atomic<size_t> num_served_{0};
  std::atomic<size_t> num_refusing_{0};
  std::atomic<uint64_t> num_closed_{0};  // for newcomers
  uint64_t num_not_accepted_ = 0;        // by the first loop, which accepts
  std::once_flag stopped_;
};

void BeastServer::CapConnections(uint64_t open_files_limit) {
  size_t& limit = shared_.options.max_connections;
  const size_t wanted = std::exchange(limit, MaxConnectionsWithin(open_files_limit, limit));
  if (limit == wanted) return;
  BATON_LOG_WARN(
      "{}:{} takes at most {} connections instead of {}: this process may have {} files open "
      "(ulimit -n, LimitNOFILE of a systemd unit)",
      shared_.options.host, shared_.options.port, limit, wanted, open_files_limit);
}

Status BeastServer::Listen() {
  if (!shared_.options.tls.empty()) {
    BATON_ASSIGN_OR_RETURN(tls_,
                           tls::TlsWatch::Create(shared_.options.tls, tls::TlsPeers::kHttpClients));
  }
  BATON_ASSIGN_OR_RETURN(const tcp::endpoint endpoint,
                         Resolve(shared_.options.host, shared_.options.port));
  const std::string wanted =
      fmt::format("{}:{}", BracketedHost(shared_.options.host), shared_.options.port);
  ErrorCode error;
  acceptor_->open(endpoint.protocol(), error);
  // A restarted server takes its port over from connections in TIME_WAIT.
  if (!error) acceptor_->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_->bind(endpoint, error);
  if (!error) acceptor_->listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use) {
    return FailedPrecondition("the address {} is in use; choose another port", wanted);
  }
  if (error) return FailedPrecondition("cannot listen on {}: {}", wanted, BindFault(wanted));
  port_ = acceptor_->local_endpoint(error).port();
  shared_.on_loopback = IsLoopback(endpoint.address());
  Accept();
  for (const auto& loop : loops_) {
    loop->thread = Thread(shared_.options.thread_name, [io = loop->io.get()] { io->run(); });
  }
  return OkStatus();
}

void BeastServer::Accept() {
  EventLoop* loop = loops_[next_loop_++ % loops_.size()].get();
  acceptor_->async_accept(*loop->io, [this, loop](const ErrorCode& error, tcp::socket socket) {
    OnAccepted(error, std::move(socket), loop);
  });
}

void BeastServer::OnAccepted(const ErrorCode& error, tcp::socket socket, EventLoop* loop) {
  if (!acceptor_->is_open()) return;
  if (error) {
    if (std::has_single_bit(++num_not_accepted_)) {
      BATON_LOG_WARN("cannot accept a connection on {}: {} ({} times so far)", address(),
                     error.message(), num_not_accepted_);
    }
    accept_timer_->expires_after(kAcceptPause);
    accept_timer_->async_wait([this](const ErrorCode& cancelled) {
      if (!cancelled && acceptor_->is_open()) Accept();
    });
    return;
  }
  const size_t open = shared_.num_connections.fetch_add(1);
  if (open >= shared_.options.max_connections + kMaxRefusing + kMaxNew) {
    shared_.num_connections.fetch_sub(1);
    socket.close();
  } else {
    Adopt(std::move(socket), loop);
  }
  Accept();
}

// Counts a newcomer among those that are served; false: it is one too many.
bool BeastServer::MakeRoom(EventLoop* loop) {
  const HttpServerOptions& options = shared_.options;
  if (num_served_.fetch_add(1) < options.max_connections) return true;
  if (!loop->CloseMostOverdue()) {
    num_served_.fetch_sub(1);
    return false;
  }
  const uint64_t num_closed = num_closed_.fetch_add(1) + 1;
  if (std::has_single_bit(num_closed)) {
    BATON_LOG_WARN(
        "{} has {} connections, its limit: {} that said nothing were closed for newcomers so far",
        address(), options.max_connections, num_closed);
  }
  return true;
}

// Counted in num_connections already.
void BeastServer::Adopt(tcp::socket socket, EventLoop* loop) {
  std::unique_ptr<tls::TlsSocket> tls;
  if (tls_ != nullptr) {
    auto made =
        tls::TlsSocket::Create(tls_->Current(SystemClock().NowUs()), socket.native_handle());
    if (!made.ok()) {
      BATON_LOG_WARN("cannot take a connection on {}: {}", address(),
                     std::string(made.status().message()));
      shared_.num_connections.fetch_sub(1);
      return;  // closes it
    }
    tls = *std::move(made);
  }
  HttpWire wire(std::move(socket), std::move(tls), &loop->handshakes);
  asio::post(*loop->io, [this, loop, wire = std::move(wire)]() mutable {
    const bool refuse = !MakeRoom(loop);
    if (refuse && num_refusing_.fetch_add(1) >= kMaxRefusing) {
      num_refusing_.fetch_sub(1);
      shared_.num_connections.fetch_sub(1);
      return;  // closes it
    }
    const auto forget = [this, loop, refuse](HttpConnection* closed) {
      loop->connections.erase(closed);
      (refuse ? num_refusing_ : num_served_).fetch_sub(1);
      shared_.num_connections.fetch_sub(1);
    };
    auto connection =
        std::make_shared<HttpConnection>(loop->io, std::move(wire), &loop->sweep, &shared_, forget);
    loop->connections.emplace(connection.get(), connection);
    connection->Start(refuse);
  });
}

void BeastServer::BeginDrain() {
  shared_.draining.store(true);
  asio::post(*loops_[0]->io, [this] {
    ErrorCode ignored;
    acceptor_->close(ignored);
    accept_timer_->cancel();
  });
}

void BeastServer::Stop() {
  std::call_once(stopped_, [this] {
    shared_.draining.store(true);
    if (!loops_[0]->thread.joinable()) return;  // Listen failed
    std::promise<void> closed;
    asio::post(*loops_[0]->io, [&] {
      ErrorCode ignored;
      acceptor_->close(ignored);
      accept_timer_->cancel();
      closed.set_value();
    });
    closed.get_future().wait();
    for (const auto& loop : loops_) {
      asio::post(*loop->io, [loop = loop.get()] {
        const auto connections = loop->connections;
        for (const auto& [key, connection] : connections) connection->Close();
        loop->work.reset();
      });
    }
    for (const auto& loop : loops_) loop->thread.Join();
    BATON_CHECK(shared_.num_connections.load() == 0, "{} connections outlive the server on {}",
                shared_.num_connections.load(), address());
  });
}

}  // namespace

size_t MaxConnectionsWithin(uint64_t open_files_limit, size_t wanted) {
  const uint64_t left = open_files_limit - std::min(kOtherOpenFiles, open_files_limit / 2);
  return static_cast<size_t>(std::min<uint64_t>(left, wanted));
}

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                        HttpHandler handler) {
  auto server = std::make_unique<BeastServer>(std::move(options), std::move(handler));
  server->CapConnections(OpenFilesLimit());
  BATON_RETURN_IF_ERROR(server->Listen());
  return StatusOr<std::unique_ptr<HttpServer>>(std::move(server));
}

}  // namespace baton::http
