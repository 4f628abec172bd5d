#include "kvcache/transport/endpoint_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "kvcache/transport/socket_io.h"
#include "src/base/check.h"
#include "src/base/log.h"

namespace baton::kv {
namespace {

// Values of epoll_data below kFirstConnectionId.
constexpr uint64_t kWakeId = 1;
constexpr uint64_t kTcpListenerId = 2;
constexpr uint64_t kUnixListenerId = 3;
constexpr uint64_t kFirstConnectionId = 16;
constexpr size_t kEventsPerTurn = 64;
// New connections per listener and turn, so that a flood of them does not starve the ready ones.
constexpr int kAcceptsPerTurn = 16;
// Steps of TLS handshakes, each of which may cost a signature (0.1 ms with P-256, 1 ms with RSA):
// whoever floods the port with handshakes slows transfers, but does not stop them.
constexpr int kTlsStepsPerTurn = 4;
// How long no connection is accepted after the process ran out of descriptors.
constexpr int64_t kAcceptPauseUs = 100'000;
// Refused strangers are logged this often at most; all are counted.
constexpr int64_t kRefusalLogIntervalUs = 1'000'000;

TransportInboxLimits InboxLimits(const KvEndpointLimits& limits) {
  TransportInboxLimits result;
  result.max_slices = limits.max_queued_slices;
  result.max_controls = limits.max_queued_controls;
  result.max_control_bytes = limits.max_queued_control_bytes;
  result.max_absent_peers = limits.max_parked_peers;
  result.max_open_transfers = limits.max_open_transfers;
  return result;
}

int64_t EarlierDeadline(int64_t a_us, int64_t b_us) {
  if (a_us == 0 || b_us == 0) return a_us + b_us;
  return std::min(a_us, b_us);
}

}  // namespace

EndpointLoop::EndpointLoop(const KvEndpointOptions& options, const KvArena* arena,
                           EndpointSockets sockets)
    : options_(options),
      arena_(arena),
      sockets_(std::move(sockets)),
      zeroes_(arena->layout().SliceBytes()),
      inbox_(InboxLimits(options.limits), [this] { Wake(); }),
      receives_(arena->memory(), &counters_),
      peers_(options.kind, HostId(), options.timers),
      next_id_(kFirstConnectionId) {
  services_ = {&options_, arena_,     &zeroes_, &receives_,
               &inbox_,   &counters_, this,     &tls_steps_left_};
}

EndpointLoop::~EndpointLoop() = default;

void EndpointLoop::Wake() {
  const uint64_t one = 1;
  // A full counter (EAGAIN) wakes as well.
  (void)!write(sockets_.wake.get(), &one, sizeof(one));
}

void EndpointLoop::RequestStop() {
  inbox_.Close();
  stop_.store(true, std::memory_order_release);
  Wake();
}

void EndpointLoop::SetPeers(std::vector<ResolvedPeer> peers) {
  {
    MutexLock lock(mutex_);
    new_peers_ = std::move(peers);
  }
  Wake();
}

bool EndpointLoop::AddToEpoll(int fd, uint32_t events, uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(sockets_.epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void EndpointLoop::Run(KvTransportSink* sink) {
  sink_ = sink;
  receives_.set_sink(sink);
  now_us_ = options_.clock->NowUs();
  BATON_CHECK(AddToEpoll(sockets_.wake.get(), EPOLLIN, kWakeId), "epoll: errno {}", errno);
  ResumeAccepting();
  while (!stop_.load(std::memory_order_acquire)) Turn();
  // The sink hears nothing of this: who stops a transport knows.
  for (auto& [id, slot] : connections_) {
    slot.connection->Close(CloseReason::kShutdown, Cancelled("the transport stops"));
  }
  ready_.clear();
  connections_.clear();
}

void EndpointLoop::Turn() {
  std::array<epoll_event, kEventsPerTurn> events;
  const int count =
      epoll_wait(sockets_.epoll.get(), events.data(), static_cast<int>(events.size()), WaitMs());
  now_us_ = options_.clock->NowUs();
  tls_steps_left_ = kTlsStepsPerTurn;
  tcp_waits_ = unix_waits_ = false;
  for (int i = 0; i < count; ++i) {
    HandleEvent(events[static_cast<size_t>(i)].data.u64, events[static_cast<size_t>(i)].events);
  }
  // After the connections that are here already.
  if (tcp_waits_) AcceptSome(TransportKind::kTcp);
  if (unix_waits_) AcceptSome(TransportKind::kShm);
  RefuseExcessStrangers();
  TakeNewPeers();
  ExecuteCommands();
  DialDuePeers();
  ServeConnections();
  progress_due_us_ = receives_.FlushProgress(options_.clock->NowUs());
  DropExpiredControls();
  ReapConnections();
  if (accept_again_us_ != 0 && now_us_ >= accept_again_us_) ResumeAccepting();
}

int EndpointLoop::WaitMs() const {
  int64_t deadline_us = EarlierDeadline(progress_due_us_, accept_again_us_);
  // While the table is full a due dial waits for a connection to end.
  if (NumEstablished() < options_.limits.max_connections) {
    deadline_us = EarlierDeadline(deadline_us, peers_.NextDueUs());
  }
  for (const auto& [id, slot] : connections_) {
    if (slot.connection->has_work()) return 0;
    deadline_us = EarlierDeadline(deadline_us, slot.connection->NextDeadlineUs());
  }
  for (const auto& [peer, controls] : parked_) {
    deadline_us = EarlierDeadline(deadline_us, controls.front().deadline_us);
  }
  if (deadline_us == 0) return -1;
  const int64_t wait_us = std::max<int64_t>(deadline_us - options_.clock->NowUs(), 0);
  return static_cast<int>(std::min<int64_t>((wait_us + 999) / 1000, 60'000));
}

void EndpointLoop::HandleEvent(uint64_t id, uint32_t events) {
  if (id == kWakeId) {
    uint64_t count = 0;
    (void)!read(sockets_.wake.get(), &count, sizeof(count));
  } else if (id == kTcpListenerId) {
    tcp_waits_ = true;
  } else if (id == kUnixListenerId) {
    unix_waits_ = true;
  } else {
    const auto entry = connections_.find(id);
    if (entry != connections_.end()) entry->second.connection->OnEvents(events, now_us_);
  }
}

void EndpointLoop::ResumeAccepting() {
  accept_again_us_ = 0;
  if (sockets_.tcp_listener.valid()) {
    (void)AddToEpoll(sockets_.tcp_listener.get(), EPOLLIN, kTcpListenerId);
  }
  if (sockets_.unix_listener.valid()) {
    (void)AddToEpoll(sockets_.unix_listener.get(), EPOLLIN, kUnixListenerId);
  }
}

void EndpointLoop::PauseAccepting() {
  accept_again_us_ = now_us_ + kAcceptPauseUs;
  for (const int fd : {sockets_.tcp_listener.get(), sockets_.unix_listener.get()}) {
    if (fd >= 0) (void)epoll_ctl(sockets_.epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

void EndpointLoop::AcceptSome(TransportKind kind) {
  const bool is_tcp = kind == TransportKind::kTcp;
  const int listener = is_tcp ? sockets_.tcp_listener.get() : sockets_.unix_listener.get();
  // No more than what the next turn has steps for, and nobody while this one had too few: the
  // others wait in the kernel, and replace nobody who was not answered.
  const int room = is_tcp && sockets_.tls != nullptr ? tls_steps_left_ : kAcceptsPerTurn;
  for (int i = 0; i < room; ++i) {
    SocketAddress from;
    from.size_bytes = sizeof(from.storage);
    UniqueFd fd(accept4(listener, reinterpret_cast<sockaddr*>(&from.storage), &from.size_bytes,
                        SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      const bool is_short =
          errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      // Level-triggered: the waiting connection would wake us for ever.
      if (is_short) PauseAccepting();
      return;
    }
    if (kind == TransportKind::kShm) {
      const StatusOr<uint32_t> user = PeerUserId(fd.get());
      if (!user.ok() || *user != geteuid()) {
        counters_.AddClose(CloseReason::kCredentials);
        continue;
      }
    }
    TuneDataSocket(fd.get(), is_tcp);
    ConnectionStart start;
    start.fd = std::move(fd);
    start.kind = kind;
    AddConnection(std::move(start), HostPart(from));
  }
}

void EndpointLoop::RefuseExcessStrangers() {
  strangers_.clear();
  for (auto& [id, slot] : connections_) {
    if (slot.is_stranger()) strangers_.push_back(&slot);
  }
  const KvEndpointLimits& limits = options_.limits;
  if (strangers_.size() <= std::min(limits.max_strangers, limits.max_strangers_per_address)) return;
  // Ids rise with age: the newest are counted first and stay.
  std::sort(strangers_.begin(), strangers_.end(),
            [](const Slot* a, const Slot* b) { return a->connection->id() > b->connection->id(); });
  // Counts for each half of an introduction: TLS, and what comes after it.
  struct Count {
    uint32_t all = 0;
    absl::flat_hash_map<std::string, uint32_t> here;  // by origin
  };
  Count securing;
  Count introducing;
  for (Slot* const slot : strangers_) {
    Count& count = slot->connection->securing() ? securing : introducing;
    uint32_t& num_here = count.here[slot->origin];
    if (count.all < limits.max_strangers && num_here < limits.max_strangers_per_address) {
      ++count.all;
      ++num_here;
    } else {
      slot->connection->Close(CloseReason::kTooMany,
                              ResourceExhausted("too many connections are not introduced"));
    }
  }
}

size_t EndpointLoop::NumEstablished() const {
  return static_cast<size_t>(
      std::count_if(connections_.begin(), connections_.end(), [](const auto& entry) {
        const Connection& connection = *entry.second.connection;
        return connection.dialled() || connection.ready();
      }));
}

bool EndpointLoop::HasRoomFor(const Connection& connection) {
  // A connection whose place this one takes is no longer counted.
  const bool replaces = std::any_of(connections_.begin(), connections_.end(), [&](const auto& e) {
    const Connection& other = *e.second.connection;
    return other.ready() && (other.peer() == connection.peer() ||
                             other.peer_worker_id() == connection.peer_worker_id());
  });
  return replaces || NumEstablished() < options_.limits.max_connections;
}

void EndpointLoop::AddConnection(ConnectionStart start, std::string origin) {
  start.id = next_id_++;
  if (sockets_.tls != nullptr && start.kind == TransportKind::kTcp) {
    start.tls = &sockets_.tls->Current(now_us_);
  }
  const uint64_t id = start.id;
  Slot slot;
  slot.connection = std::make_unique<Connection>(services_, std::move(start), now_us_);
  slot.interest = slot.connection->interest();
  slot.origin = std::move(origin);
  if (!AddToEpoll(slot.connection->fd(), slot.interest, id)) {
    slot.connection->Close(CloseReason::kTooMany, ResourceExhausted("epoll: errno {}", errno));
  }
  connections_.emplace(id, std::move(slot));
}

void EndpointLoop::TakeNewPeers() {
  std::optional<std::vector<ResolvedPeer>> peers;
  {
    MutexLock lock(mutex_);
    std::swap(peers, new_peers_);
  }
  if (!peers.has_value()) return;
  const std::vector<Incarnation> removed = peers_.Replace(*peers, now_us_);
  for (auto& [id, slot] : connections_) {
    Connection& connection = *slot.connection;
    const bool is_removed =
        connection.dialled() &&
        std::find(removed.begin(), removed.end(), connection.expected()) != removed.end();
    if (is_removed) {
      connection.Close(CloseReason::kRemoved, Cancelled("the peer left the list of peers"));
    }
  }
  PublishLinks();
}

void EndpointLoop::DialDuePeers() {
  while (NumEstablished() < options_.limits.max_connections) {
    const std::optional<DialAttempt> attempt = peers_.NextAttempt(now_us_);
    if (!attempt.has_value()) return;
    StatusOr<UniqueFd> fd = StartConnect(attempt->address);
    if (!fd.ok()) {
      counters_.AddClose(CloseReason::kUnreachable);
      peers_.OnFailed(attempt->peer, std::string(fd.status().message()), now_us_);
      PublishLinks();
      continue;
    }
    ConnectionStart start;
    start.fd = *std::move(fd);
    start.kind = attempt->kind;
    start.dialled = true;
    start.expected = attempt->peer;
    AddConnection(std::move(start), "");
  }
}

void EndpointLoop::ExecuteCommands() {
  if (!inbox_.TakeAll(&batch_)) return;
  for (TransportCommand& command : batch_.commands) Execute(&command);
}

void EndpointLoop::Execute(TransportCommand* command) {
  Connection* const connection = FindReady(command->peer);
  switch (command->kind) {
    case TransportCommand::Kind::kSlices:
      if (connection == nullptr || connection->epoch() != command->epoch) {
        inbox_.ReleaseSlices(command->peer, static_cast<uint32_t>(command->num_slices));
      } else {
        connection->QueueSlices(
            std::span(batch_.slices).subspan(command->first_slice, command->num_slices));
      }
      break;
    case TransportCommand::Kind::kControl:
      SendOrParkControl(command->peer, std::move(command->bytes));
      break;
    case TransportCommand::Kind::kCloseSend:
      if (connection != nullptr) connection->DropSend(command->transfer);
      sink_->OnSendClosed(command->peer, command->transfer);
      break;
    case TransportCommand::Kind::kOpenReceive:
      receives_.Open(std::move(*command->spec), connection == nullptr ? 0 : connection->epoch());
      break;
    case TransportCommand::Kind::kCloseReceive:
      for (auto& [id, slot] : connections_) slot.connection->AbandonReceive(command->transfer);
      if (receives_.Close(command->transfer)) inbox_.ReleaseOpenTransfer();
      break;
  }
}

Connection* EndpointLoop::FindReady(Incarnation peer) {
  const auto entry = ready_.find(peer);
  if (entry == ready_.end() || entry->second->closed()) return nullptr;
  return entry->second;
}

void EndpointLoop::SendOrParkControl(Incarnation peer, std::string bytes) {
  if (Connection* const connection = FindReady(peer); connection != nullptr) {
    connection->QueueControl(std::move(bytes));
    return;
  }
  const int64_t deadline_us = now_us_ + options_.timers.control_ttl_us;
  parked_[peer].push_back({std::move(bytes), deadline_us});
}

void EndpointLoop::DropExpiredControls() {
  absl::erase_if(parked_, [this](auto& entry) {
    auto& [peer, controls] = entry;
    while (!controls.empty() && controls.front().deadline_us <= now_us_) {
      counters_.controls_expired.Add();
      inbox_.ReleaseControls(peer, 1, controls.front().bytes.size());
      controls.pop_front();
    }
    return controls.empty();
  });
}

void EndpointLoop::OnControl(Connection* connection, std::string bytes) {
  sink_->OnControl(connection->peer(), std::move(bytes));
}

void EndpointLoop::OnReady(Connection* connection) {
  const Incarnation peer = connection->peer();
  // Another connection of this peer, or an earlier life of this worker, is over now.
  for (auto& [id, slot] : connections_) {
    Connection& other = *slot.connection;
    const bool is_same =
        other.peer() == peer || other.peer_worker_id() == connection->peer_worker_id();
    // A connection that was lost in this turn is over before its successor begins.
    const bool is_lost = other.closed() && other.was_ready() && !slot.ended;
    if (&other == connection || !is_same || (!other.ready() && !is_lost)) continue;
    if (!is_lost) {
      other.Close(CloseReason::kReplaced, Unavailable("replaced by a newer connection"));
    }
    EndConnection(&slot);
  }
  ready_[peer] = connection;
  if (connection->dialled()) peers_.OnUp(peer);
  counters_.connections.Add();
  if (connection->encrypted()) counters_.tls_connections.Add();
  inbox_.SetPeerUp(peer, connection->epoch());
  PublishLinks();
  BATON_LOG_INFO("data connection with {} over {}", connection->peer_worker_id(),
                 WayOf(*connection));
  sink_->OnPeerUp({peer, connection->peer_worker_id(), connection->kind(), connection->dialled(),
                   connection->encrypted()});
  const auto parked = parked_.find(peer);
  if (parked == parked_.end()) return;
  for (ParkedControl& control : parked->second) connection->QueueControl(std::move(control.bytes));
  parked_.erase(parked);
}

void EndpointLoop::ServeConnections() {
  for (auto& [id, slot] : connections_) {
    Connection& connection = *slot.connection;
    if (connection.has_work()) connection.Work(now_us_);
    connection.CheckDeadlines(now_us_);
  }
}

void EndpointLoop::ReapConnections() {
  absl::erase_if(connections_, [this](auto& entry) {
    Slot& slot = entry.second;
    if (slot.connection->closed()) {
      if (!slot.ended) EndConnection(&slot);
      return true;
    }
    const uint32_t interest = slot.connection->interest();
    if (interest == slot.interest) return false;
    slot.interest = interest;
    epoll_event event{};
    event.events = interest;
    event.data.u64 = entry.first;
    (void)epoll_ctl(sockets_.epoll.get(), EPOLL_CTL_MOD, slot.connection->fd(), &event);
    return false;
  });
}

void EndpointLoop::EndConnection(Slot* slot) {
  const Connection& connection = *slot->connection;
  slot->ended = true;
  LogEnd(connection);
  const std::string failure(connection.close_status().message());
  if (connection.dialled()) {
    if (connection.was_ready()) {
      peers_.OnLost(connection.expected(), failure, now_us_);
    } else {
      peers_.OnFailed(connection.expected(), failure, now_us_);
    }
  }
  if (connection.was_ready()) {
    ready_.erase(connection.peer());
    inbox_.SetPeerDown(connection.peer());
  }
  PublishLinks();
  if (connection.was_ready()) sink_->OnPeerDown(connection.peer(), connection.close_status());
}

void EndpointLoop::LogEnd(const Connection& connection) {
  const std::string failure(connection.close_status().message());
  if (connection.was_ready()) {
    BATON_LOG_INFO("data connection with {} over {} ended ({}): {}", connection.peer_worker_id(),
                   WayOf(connection), CloseReasonName(connection.close_reason()), failure);
    return;
  }
  // A dialled peer is logged when its failure is a new one, a stranger once a second at most.
  const bool is_news = connection.dialled() ? peers_.IsNews(connection.expected(), failure)
                                            : now_us_ - refusal_logged_us_ >= kRefusalLogIntervalUs;
  if (!is_news) return;
  if (!connection.dialled()) refusal_logged_us_ = now_us_;
  BATON_LOG_WARN("no data connection with {} over {} ({}): {}",
                 connection.peer_worker_id().empty() ? "?" : connection.peer_worker_id(),
                 WayOf(connection), CloseReasonName(connection.close_reason()), failure);
}

std::string EndpointLoop::WayOf(const Connection& connection) const {
  std::string way(TransportKindName(connection.kind()));
  if (connection.encrypted()) way += " with TLS";
  if (options_.slices == TransportKind::kAuto) return way;
  return fmt::format("{} (words; KV by {})", way, TransportKindName(options_.slices));
}

void EndpointLoop::PublishLinks() {
  std::vector<LinkEntry> links;
  for (const auto& [peer, connection] : ready_) {
    LinkEntry& entry = links.emplace_back();
    entry.info.peer = peer;
    entry.info.worker_id = connection->peer_worker_id();
    entry.info.kind = connection->kind();
    entry.info.dialled = connection->dialled();
    entry.info.tls = connection->encrypted();
    entry.info.up = true;
    entry.counters = connection->counters();
  }
  for (LinkInfo& absent : peers_.AbsentPeers()) links.push_back({std::move(absent), nullptr});
  links_.Publish(std::move(links));
}

}  // namespace baton::kv
