#include "kvcache/transport/kv_endpoint.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <map>
#include <utility>

#include "kvcache/transport/endpoint_loop.h"
#include "kvcache/transport/send_queue.h"
#include "kvcache/transport/socket_io.h"
#include "src/base/limits.h"
#include "src/base/thread.h"
#include "src/base/worker_id.h"

namespace baton::kv {

using limits::kMaxWorkerIdBytes;
using tls::TlsWatch;

namespace {

Status ValidateOptions(const KvEndpointOptions& options) {
  if (!IsWorkerId(options.worker_id)) {
    return InvalidArgument("worker id \"{}\" is not 1..{} of [a-z0-9-]", options.worker_id,
                           kMaxWorkerIdBytes);
  }
  if (options.incarnation.value() == 0) return InvalidArgument("incarnation 0");
  if (options.kind != TransportKind::kAuto && options.kind != TransportKind::kShm &&
      options.kind != TransportKind::kTcp) {
    return InvalidArgument("an endpoint speaks auto, shm or tcp, not {}",
                           TransportKindName(options.kind));
  }
  if (options.pools != nullptr && options.kind != TransportKind::kShm) {
    return InvalidArgument("pools are handed over by unix sockets only: kind shm, not {}",
                           TransportKindName(options.kind));
  }
  return OkStatus();
}

// The implementation: sockets, one thread, and the calls that post to it.
class KvEndpointImpl final : public KvEndpoint {
 public:
  KvEndpointImpl(const KvEndpointOptions& options, const KvArena* arena, EndpointSockets sockets,
                 std::string unix_name)
      : arena_(arena),
        tcp_address_(sockets.tcp_listener.valid() ? BoundTcpAddress(sockets.tcp_listener.get())
                                                  : ""),
        unix_name_(std::move(unix_name)),
        resolve_(options.resolve),
        loop_(options, arena, std::move(sockets)) {}

  ~KvEndpointImpl() override { Stop(); }

  Status Start(KvTransportSink* sink) override {
    if (thread_.joinable()) return FailedPrecondition("the transport is started already");
    thread_ = Thread("kv-transport", [this, sink] { loop_.Run(sink); });
    return OkStatus();
  }

  void Stop() override {
    loop_.RequestStop();
    thread_.Join();
  }

  Status SendControl(Incarnation peer, std::string bytes) override {
    return loop_.inbox()->PostControl(peer, std::move(bytes));
  }

  Status SendSlices(Incarnation peer, std::span<const SliceRef> slices) override {
    BATON_RETURN_IF_ERROR(ValidateSlices(slices, arena_->memory()));
    return loop_.inbox()->PostSlices(peer, slices);
  }

  void CloseSend(Incarnation peer, TransferId transfer) override {
    loop_.inbox()->PostCloseSend(peer, transfer);
  }

  Status OpenReceive(ReceiveSpec spec) override {
    BATON_RETURN_IF_ERROR(ReceiveTable::Validate(spec, arena_->memory()));
    return loop_.inbox()->PostOpenReceive(std::move(spec));
  }

  void CloseReceive(TransferId transfer) override { loop_.inbox()->PostCloseReceive(transfer); }

  TransportStats Stats() const override { return loop_.Stats(); }
  std::vector<LinkInfo> Links() const override { return loop_.Links(); }
  std::string tcp_address() const override { return tcp_address_; }
  std::string unix_name() const override { return unix_name_; }

  using KvEndpoint::SetPeers;
  Status SetPeers(std::span<const PeerAddress> peers,
                  const std::function<bool()>& is_old) override {
    std::vector<ResolvedPeer> resolved(peers.size());
    Status first_failure;
    const auto note_failure = [&](size_t i, const Status& status) {
      resolved[i].failure = std::string(status.message());
      first_failure.Update(WithPrefix(status, peers[i].worker_id));
    };
    std::vector<size_t> names;
    for (size_t i = 0; i < peers.size(); ++i) {
      resolved[i].address = peers[i];
      if (!peers[i].unix_name.empty()) {
        const StatusOr<SocketAddress> address = UnixAddress(peers[i].unix_name);
        if (address.ok()) resolved[i].unix_socket = *address;
        if (!address.ok()) note_failure(i, address.status());
      }
      if (peers[i].tcp.empty()) continue;
      StatusOr<std::vector<SocketAddress>> literal =
          ResolveTcp(peers[i].tcp, NameLookUp::kForbidden);
      if (literal.ok()) {
        resolved[i].tcp = *std::move(literal);
      } else if (absl::IsInvalidArgument(literal.status())) {
        note_failure(i, literal.status());
      } else {
        const Name& name = names_[peers[i].incarnation];
        resolved[i].tcp = name.found;
        if (name.found.empty()) {
          resolved[i].failure = name.failure.empty() ? "its name is being looked up" : name.failure;
        }
        names.push_back(i);
      }
    }
    std::erase_if(names_, [&peers](const auto& entry) {
      return std::none_of(peers.begin(), peers.end(), [&entry](const PeerAddress& peer) {
        return peer.incarnation == entry.first;
      });
    });
    // Names that have waited longest come first: lists that are soon old take no name its turn.
    std::ranges::stable_sort(names, {},
                             [&](size_t i) { return names_[peers[i].incarnation].turn; });
    // Peers that are known so far do not wait for a server of names.
    loop_.SetPeers(resolved);
    for (const size_t i : names) {
      if (is_old()) return first_failure;
      Name& name = names_[peers[i].incarnation];
      name.turn = ++last_turn_;
      const StatusOr<std::vector<SocketAddress>> addresses = resolve_(peers[i].tcp);
      if (addresses.ok()) {
        name.found = *addresses;
        name.failure.clear();
        resolved[i].failure.clear();
      } else if (name.found.empty()) {
        note_failure(i, addresses.status());
        name.failure = resolved[i].failure;
      }
      resolved[i].tcp = name.found;
      loop_.SetPeers(resolved);
    }
    return first_failure;
  }

 private:
  // The name of a peer of the last list.
  struct Name {
    std::vector<SocketAddress> found;  // when it was last known
    std::string failure;               // why nothing was found
    uint64_t turn = 0;                 // when it was asked for, 0 = never
  };

  const KvArena* const arena_;
  const std::string tcp_address_;
  const std::string unix_name_;
  const decltype(KvEndpointOptions::resolve) resolve_;
  // By peer of the last list; SetPeers alone.
  std::map<Incarnation, Name> names_;
  uint64_t last_turn_ = 0;
  EndpointLoop loop_;
  Thread thread_;  // last: it runs in loop_
};

}  // namespace

std::string HostId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  std::array<char, 64> space{};
  // "net:[4026531833]": abstract unix sockets live in a network namespace.
  const ssize_t size = readlink("/proc/self/ns/net", space.data(), space.size());
  if (boot.empty() || size <= 0) return "";
  return fmt::format("{}/{}", boot, std::string_view(space.data(), static_cast<size_t>(size)));
}

StatusOr<std::unique_ptr<KvEndpoint>> KvEndpoint::Create(const KvEndpointOptions& options,
                                                         const KvArena* arena) {
  BATON_RETURN_IF_ERROR(ValidateOptions(options));
  EndpointSockets sockets;
  sockets.wake.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  sockets.epoll.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!sockets.wake.valid() || !sockets.epoll.valid()) {
    return ResourceExhausted("eventfd and epoll: errno {}", errno);
  }
  if (!options.tls.empty()) {
    BATON_ASSIGN_OR_RETURN(sockets.tls, TlsWatch::Create(options.tls));
  }
  std::string unix_name;
  if (!options.listen.empty() && options.kind != TransportKind::kShm) {
    BATON_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, ResolveTcp(options.listen));
    BATON_ASSIGN_OR_RETURN(sockets.tcp_listener, ListenOn(addresses.front(), options.listen));
  }
  if (!options.listen.empty() && options.kind != TransportKind::kTcp) {
    unix_name = fmt::format("baton-kv-{:016x}", options.incarnation.value());
    BATON_ASSIGN_OR_RETURN(const SocketAddress address, UnixAddress(unix_name));
    BATON_ASSIGN_OR_RETURN(sockets.unix_listener, ListenOn(address, "@" + unix_name));
  }
  return std::make_unique<KvEndpointImpl>(options, arena, std::move(sockets), std::move(unix_name));
}

}  // namespace baton::kv
