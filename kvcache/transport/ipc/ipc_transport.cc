#include "kvcache/transport/ipc/ipc_transport.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "kvcache/transport/endpoint_events.h"
#include "kvcache/transport/ipc/ipc_receiver.h"
#include "kvcache/transport/ipc/ipc_sender.h"
#include "kvcache/transport/send_queue.h"
#include "src/base/check.h"
#include "src/base/thread.h"

namespace baton {
namespace {

// The implementation: what the endpoint tells, the inbox, and the thread over both halves.
class IpcTransportImpl final : public IpcTransport {
 public:
  IpcTransportImpl(const IpcTransportOptions& options, std::unique_ptr<DevicePools> pools,
                   std::unique_ptr<KvEndpoint> endpoint)
      : options_(options),
        pools_(std::move(pools)),
        endpoint_(std::move(endpoint)),
        inbox_(options.inbox, [this] { events_.Wake(); }) {
    parts_.timers = options_.timers;
    parts_.limits = options_.limits;
    parts_.slice_bytes = options_.device.memory.layout.SliceBytes();
    parts_.counters = &counters_;
    parts_.ipc_counters = &ipc_counters_;
    parts_.post = [this](Incarnation peer, const IpcMessage& message) {
      return endpoint_->SendControl(peer, EncodeIpcMessage(message)).ok();
    };
    parts_.link_counters = [this](Incarnation peer) { return CountersOf(peer); };
  }

  ~IpcTransportImpl() override { Stop(); }

  Status Prepare() {
    BATON_ASSIGN_OR_RETURN(
        auto puller,
        SlicePuller::Create(options_.device, options_.limits.num_slots, kMaxIpcOfferSlices));
    sender_ = std::make_unique<IpcSender>(&parts_, &inbox_);
    receiver_ =
        std::make_unique<IpcReceiver>(&parts_, std::move(puller), options_.device.memory, &inbox_);
    return OkStatus();
  }

  Status Start(KvTransportSink* sink) override {
    if (thread_.joinable()) return FailedPrecondition("the transport is started already");
    sink_ = sink;
    sender_->set_sink(sink);
    receiver_->set_sink(sink);
    thread_ = Thread("kv-ipc", [this] { Run(); });
    return endpoint_->Start(&events_);
  }

  void Stop() override {
    endpoint_->Stop();
    inbox_.Close();
    events_.Stop();
    thread_.Join();
  }

  Status SendControl(Incarnation peer, std::string bytes) override {
    if (!IsIpcMessage(bytes)) return endpoint_->SendControl(peer, std::move(bytes));
    IpcMessage message;
    message.kind = IpcMessageKind::kWrapped;
    message.wrapped = std::move(bytes);
    return endpoint_->SendControl(peer, EncodeIpcMessage(message));
  }

  Status SendSlices(Incarnation peer, std::span<const SliceRef> slices) override {
    BATON_RETURN_IF_ERROR(ValidateSlices(slices, options_.device.memory));
    return inbox_.PostSlices(peer, slices);
  }
  void CloseSend(Incarnation peer, TransferId transfer) override {
    inbox_.PostCloseSend(peer, transfer);
  }
  Status OpenReceive(ReceiveSpec spec) override {
    BATON_RETURN_IF_ERROR(ReceiveTable::Validate(spec, options_.device.memory));
    return inbox_.PostOpenReceive(std::move(spec));
  }
  void CloseReceive(TransferId transfer) override { inbox_.PostCloseReceive(transfer); }

  TransportStats Stats() const override {
    TransportStats stats = endpoint_->Stats();
    const TransportStats own = counters_.Snapshot();
    stats.bad_slices = own.bad_slices;
    stats.slices_received = own.slices_received;
    stats.bytes_received = own.bytes_received;
    stats.slices_sent = own.slices_sent;
    return stats;
  }

  std::vector<LinkInfo> Links() const override {
    std::vector<LinkInfo> links = endpoint_->Links();
    std::lock_guard lock(links_mutex_);
    for (LinkInfo& link : links) {
      if (!link.up) continue;
      link.kind = TransportKind::kCudaIpc;
      const auto entry = link_counters_.find(link.peer);
      if (entry == link_counters_.end()) continue;
      link.bytes_sent = entry->second->bytes_sent.value();
      link.bytes_received = entry->second->bytes_received.value();
    }
    return links;
  }

  KvEndpoint* endpoint() override { return endpoint_.get(); }

  IpcStats OfferStats() const override {
    return {ipc_counters_.offers.value(), ipc_counters_.late.value(),
            ipc_counters_.protocol.value(), events_.overruns()};
  }
  uint32_t num_mapped() const override { return pools_->num_mapped(); }

 private:
  // The transport's own thread from here on.
  void Run() {
    options_.device.device->MakeCurrent();
    int64_t due_us = 0;
    // Events are taken before the inbox: what was posted before one came stands in there by then.
    while (events_.Wait(*options_.clock, due_us, &taken_events_)) due_us = Turn();
    MustWork(options_.device.device->Wait());
  }

  int64_t Turn() {
    const int64_t now_us = options_.clock->NowUs();
    if (inbox_.TakeAll(&batch_)) {
      for (TransportCommand& command : batch_.commands) Execute(&command);
    }
    for (EndpointEvent& event : taken_events_) Handle(&event);
    taken_events_.clear();
    const int64_t receive_us = receiver_->Step(now_us);
    const int64_t send_us = sender_->Step(now_us);
    if (receive_us == 0 || send_us == 0) return std::max(receive_us, send_us);
    return std::min(receive_us, send_us);
  }

  void Execute(TransportCommand* command) {
    const auto epoch = epochs_.find(command->peer);
    switch (command->kind) {
      case TransportCommand::Kind::kSlices:
        if (epoch == epochs_.end() || epoch->second != command->epoch) {
          inbox_.ReleaseSlices(command->peer, static_cast<uint32_t>(command->num_slices));
          break;
        }
        sender_->Enqueue(
            command->peer,
            std::span(batch_.slices).subspan(command->first_slice, command->num_slices));
        break;
      case TransportCommand::Kind::kControl:
        BATON_CHECK(false, "control messages are the endpoint's");
        break;
      case TransportCommand::Kind::kCloseSend:
        sender_->CloseSend(command->peer, command->transfer);
        break;
      case TransportCommand::Kind::kOpenReceive:
        receiver_->OpenReceive(std::move(*command->spec));
        break;
      case TransportCommand::Kind::kCloseReceive:
        receiver_->CloseReceive(command->transfer);
        break;
    }
  }

  void Handle(EndpointEvent* event) {
    switch (event->kind) {
      case EndpointEvent::Kind::kUp:
        return HandleUp(&event->up);
      case EndpointEvent::Kind::kDown:
        return HandleDown(event->peer, event->status);
      case EndpointEvent::Kind::kControl:
        return HandleControl(event->peer, std::move(event->bytes));
    }
  }

  void HandleUp(PeerUp* up) {
    const uint64_t epoch = next_epoch_++;
    epochs_[up->peer] = epoch;
    {
      std::lock_guard lock(links_mutex_);
      link_counters_[up->peer] = std::make_shared<LinkCounters>();
    }
    receiver_->AddPeer(up->peer, epoch, up->dialled ? nullptr : pools_->Claim(up->peer));
    if (up->dialled) {
      sender_->AddPeer(up->peer);
      inbox_.SetPeerUp(up->peer, epoch);
    }
    up->kind = TransportKind::kCudaIpc;
    sink_->OnPeerUp(*up);
  }

  void HandleDown(Incarnation peer, const Status& status) {
    if (epochs_.erase(peer) == 0) return;
    sender_->RemovePeer(peer);
    receiver_->RemovePeer(peer);
    inbox_.SetPeerDown(peer);
    {
      std::lock_guard lock(links_mutex_);
      link_counters_.erase(peer);
    }
    sink_->OnPeerDown(peer, status);
  }

  void HandleControl(Incarnation peer, std::string bytes) {
    if (!IsIpcMessage(bytes)) return sink_->OnControl(peer, std::move(bytes));
    StatusOr<IpcMessage> message = DecodeIpcMessage(bytes);
    // A member's own mistake: its transfers end by their deadlines.
    if (!message.ok()) return ipc_counters_.protocol.Add();
    switch (message->kind) {
      case IpcMessageKind::kWrapped:
        return sink_->OnControl(peer, std::move(message->wrapped));
      case IpcMessageKind::kOffer:
        return receiver_->HandleOffer(peer, *std::move(message));
      case IpcMessageKind::kDone:
        return sender_->HandleDone(peer, message->batch);
    }
  }

  LinkCounters* CountersOf(Incarnation peer) {
    std::lock_guard lock(links_mutex_);
    const auto entry = link_counters_.find(peer);
    return entry == link_counters_.end() ? nullptr : entry->second.get();
  }

  // Constant after construction. The pools outlive the endpoint, which fills them, and the halves,
  // which use them.
  const IpcTransportOptions options_;
  const std::unique_ptr<DevicePools> pools_;
  const std::unique_ptr<KvEndpoint> endpoint_;
  IpcParts parts_;

  TransportCounters counters_;
  IpcCounters ipc_counters_;
  TransportInbox inbox_;
  EndpointEvents events_;

  mutable std::mutex links_mutex_;  // guards link_counters_, which this thread alone changes
  absl::flat_hash_map<Incarnation, std::shared_ptr<LinkCounters>> link_counters_;  // of who is up

  // Owned by the thread.
  KvTransportSink* sink_ = nullptr;
  std::vector<EndpointEvent> taken_events_;
  TransportBatch batch_;
  absl::flat_hash_map<Incarnation, uint64_t> epochs_;  // of the peers that are up
  uint64_t next_epoch_ = 1;
  std::unique_ptr<IpcSender> sender_;
  std::unique_ptr<IpcReceiver> receiver_;

  Thread thread_;
};

}  // namespace

StatusOr<std::unique_ptr<IpcTransport>> IpcTransport::Create(const IpcTransportOptions& options,
                                                             std::unique_ptr<DevicePools> pools,
                                                             std::unique_ptr<KvEndpoint> endpoint) {
  BATON_RETURN_IF_ERROR(CheckSliceSize(options.device.memory.layout));
  auto transport =
      std::make_unique<IpcTransportImpl>(options, std::move(pools), std::move(endpoint));
  BATON_RETURN_IF_ERROR(transport->Prepare());
  return transport;
}

}  // namespace baton
