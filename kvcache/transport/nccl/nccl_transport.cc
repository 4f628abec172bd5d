#include "kvcache/transport/nccl/nccl_transport.h"

#include <mutex>
#include <utility>

#include "kvcache/transport/endpoint_events.h"
#include "kvcache/transport/nccl/nccl_receiver.h"
#include "kvcache/transport/nccl/nccl_sender.h"
#include "kvcache/transport/send_queue.h"
#include "src/base/check.h"
#include "src/base/log.h"
#include "src/base/thread.h"

namespace baton {
namespace {

// What an ended communicator may take to agree with the other side.
constexpr int64_t kFinishUs = 1'000'000;
// Messages of a peer before its greeting: what may be parked for one that is not connected.
constexpr size_t kMaxEarlyWords = 1024;
constexpr size_t kMaxEarlyBytes = size_t{16} << 20;

Status Validate(const NcclTransportOptions& options) {
  BATON_RETURN_IF_ERROR(CheckSliceSize(options.device.memory.layout));
  const size_t slice_bytes = options.device.memory.layout.SliceBytes();
  if (options.limits.slot_bytes < slice_bytes) {
    return InvalidArgument("staging of {} bytes holds no slice of {}", options.limits.slot_bytes,
                           slice_bytes);
  }
  return OkStatus();
}

// The implementation: what the endpoint tells, the inbox, and the thread over both halves.
class NcclTransportImpl final : public NcclTransport {
 public:
  NcclTransportImpl(const NcclTransportOptions& options, std::unique_ptr<KvEndpoint> endpoint)
      : options_(options),
        endpoint_(std::move(endpoint)),
        inbox_(options.inbox, [this] { events_.Wake(); }) {
    parts_.table = options_.table;
    parts_.timers = options_.timers;
    parts_.limits = options_.limits;
    parts_.counters = &counters_;
    parts_.nccl_counters = &nccl_counters_;
    parts_.budget = &budget_;
    parts_.post = [this](Incarnation peer, const NcclMessage& message) {
      return endpoint_->SendControl(peer, EncodeNcclMessage(message)).ok();
    };
    parts_.evict_idle = [this] { return EvictIdle(); };
    parts_.link_counters = [this](Incarnation peer) { return CountersOf(peer); };
  }

  ~NcclTransportImpl() override { Stop(); }

  Status Prepare() {
    const size_t slice_bytes = options_.device.memory.layout.SliceBytes();
    const StagingShape shape = {options_.limits.num_slots,
                                static_cast<uint32_t>(std::min<uint64_t>(
                                    kMaxOfferSlices, options_.limits.slot_bytes / slice_bytes))};
    BATON_ASSIGN_OR_RETURN(auto send_ring, StagingRing::Create(options_.device, shape));
    BATON_ASSIGN_OR_RETURN(auto receive_ring, StagingRing::Create(options_.device, shape));
    sender_ = std::make_unique<NcclSender>(&parts_, std::move(send_ring), &inbox_);
    receiver_ = std::make_unique<NcclReceiver>(&parts_, std::move(receive_ring),
                                               options_.device.memory, &inbox_);
    return OkStatus();
  }

  Status Start(KvTransportSink* sink) override {
    if (thread_.joinable()) return FailedPrecondition("the transport is started already");
    sink_ = sink;
    sender_->set_sink(sink);
    receiver_->set_sink(sink);
    thread_ = Thread("kv-nccl", [this] { Run(); });
    return endpoint_->Start(&events_);
  }

  void Stop() override {
    endpoint_->Stop();
    inbox_.Close();
    events_.Stop();
    thread_.Join();
  }

  Status SendControl(Incarnation peer, std::string bytes) override {
    if (!IsNcclMessage(bytes)) return endpoint_->SendControl(peer, std::move(bytes));
    NcclMessage message;
    message.kind = NcclMessageKind::kWrapped;
    message.wrapped = std::move(bytes);
    return endpoint_->SendControl(peer, EncodeNcclMessage(message));
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
      link.kind = TransportKind::kNccl;
      const auto entry = link_counters_.find(link.peer);
      if (entry == link_counters_.end()) {
        const auto refusal = refusals_.find(link.peer);
        link.up = false;
        link.last_failure =
            refusal == refusals_.end() ? "no word of its NCCL yet" : refusal->second;
        continue;
      }
      link.bytes_sent = entry->second->bytes_sent.value();
      link.bytes_received = entry->second->bytes_received.value();
    }
    return links;
  }

  KvEndpoint* endpoint() override { return endpoint_.get(); }

  NcclStats CommunicatorStats() const override {
    NcclStats stats;
    stats.built = nccl_counters_.built.value();
    stats.batches = nccl_counters_.batches.value();
    stats.overruns = nccl_counters_.overruns.value() + events_.overruns();
    for (size_t i = 0; i < stats.dropped.size(); ++i) {
      stats.dropped[i] = nccl_counters_.dropped[i].value();
    }
    return stats;
  }

 private:
  // The transport's own thread from here on.
  void Run() {
    options_.device.device->MakeCurrent();
    int64_t due_us = 0;
    // Events are taken before the inbox: what was posted before one came stands in there by then.
    while (events_.Wait(*options_.clock, due_us, &taken_events_)) due_us = Turn();
    // Aborts the communicators; then nothing is under way.
    for (const auto& [peer, epoch] : epochs_) {
      sender_->RemovePeer(peer);
      receiver_->RemovePeer(peer);
    }
    budget_.finishing.clear();
    MustWork(options_.device.device->Wait());
  }

  int64_t Turn() {
    const int64_t now_us = options_.clock->NowUs();
    if (inbox_.TakeAll(&batch_)) {
      for (TransportCommand& command : batch_.commands) Execute(&command);
    }
    for (EndpointEvent& event : taken_events_) Handle(&event, now_us);
    taken_events_.clear();
    const int64_t receive_us = receiver_->Step(now_us);
    const int64_t send_us = sender_->Step(now_us);
    StepFinishing(now_us);
    int64_t due_us = budget_.finishing.empty() ? 0 : now_us;
    for (const int64_t other_us : {receive_us, send_us}) {
      if (other_us != 0) due_us = due_us == 0 ? other_us : std::min(due_us, other_us);
    }
    return due_us;
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

  void Handle(EndpointEvent* event, int64_t now_us) {
    switch (event->kind) {
      case EndpointEvent::Kind::kUp:
        return HandleUp(event->up);
      case EndpointEvent::Kind::kDown:
        return HandleDown(event->peer, event->status);
      case EndpointEvent::Kind::kControl:
        return HandleControl(event->peer, std::move(event->bytes), now_us);
    }
  }

  // Connected; it is up once its NCCL is known to be the same.
  void HandleUp(PeerUp up) {
    const Incarnation peer = up.peer;
    Forget(peer);
    greeted_[peer].up = std::move(up);
    NcclMessage greeting;
    greeting.kind = NcclMessageKind::kGreeting;
    greeting.number = static_cast<uint32_t>(options_.table->version);
    // A peer that is not told has a queue that is full at its start: its connection is ending.
    (void)parts_.post(peer, greeting);
  }

  void HandleGreeting(Incarnation peer, uint32_t version, int64_t now_us) {
    const auto greeted = greeted_.find(peer);
    if (greeted == greeted_.end()) return nccl_counters_.AddDrop(NcclDropReason::kProtocol);
    const auto own = static_cast<uint32_t>(options_.table->version);
    if (version == own) {
      Greeted known = std::move(greeted->second);
      greeted_.erase(greeted);
      Introduce(std::move(known.up));
      for (std::string& word : known.words) HandleControl(peer, std::move(word), now_us);
      return;
    }
    nccl_counters_.AddDrop(NcclDropReason::kVersion);
    std::string why = fmt::format("it has NCCL {}, this worker {}: they must be equal",
                                  nccl::VersionText(static_cast<int>(version)),
                                  nccl::VersionText(options_.table->version));
    BATON_LOG_WARN("no KV to or from {}: {}", greeted->second.up.worker_id, why);
    greeted_.erase(greeted);
    std::lock_guard lock(links_mutex_);
    refusals_[peer] = std::move(why);
  }

  void Introduce(PeerUp up) {
    const uint64_t epoch = next_epoch_++;
    epochs_[up.peer] = epoch;
    {
      std::lock_guard lock(links_mutex_);
      link_counters_[up.peer] = std::make_shared<LinkCounters>();
    }
    sender_->AddPeer(up.peer);
    receiver_->AddPeer(up.peer, epoch);
    inbox_.SetPeerUp(up.peer, epoch);
    up.kind = TransportKind::kNccl;
    sink_->OnPeerUp(up);
  }

  // Messages that waited for the connection come before the greeting that the connection brings.
  void KeepWord(Incarnation peer, std::string bytes) {
    const auto greeted = greeted_.find(peer);
    if (greeted == greeted_.end()) return;
    Greeted& early = greeted->second;
    if (early.words.size() >= kMaxEarlyWords || early.bytes + bytes.size() > kMaxEarlyBytes) {
      return nccl_counters_.overruns.Add();
    }
    early.bytes += bytes.size();
    early.words.push_back(std::move(bytes));
  }

  // What is kept of a peer that is not up.
  void Forget(Incarnation peer) {
    greeted_.erase(peer);
    std::lock_guard lock(links_mutex_);
    refusals_.erase(peer);
  }

  void HandleDown(Incarnation peer, const Status& status) {
    Forget(peer);
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

  void HandleControl(Incarnation peer, std::string bytes, int64_t now_us) {
    const bool is_up = epochs_.contains(peer);
    if (!IsNcclMessage(bytes)) {
      if (is_up) return sink_->OnControl(peer, std::move(bytes));
      return KeepWord(peer, std::move(bytes));
    }
    StatusOr<NcclMessage> message = DecodeNcclMessage(bytes);
    if (!message.ok()) {
      // A member's own mistake: its link is of no use, and its deadlines end it.
      nccl_counters_.AddDrop(NcclDropReason::kProtocol);
      return;
    }
    if (message->kind == NcclMessageKind::kGreeting) {
      return HandleGreeting(peer, message->number, now_us);
    }
    if (!is_up) return KeepWord(peer, std::move(bytes));
    switch (message->kind) {
      case NcclMessageKind::kGreeting:
        return;
      case NcclMessageKind::kWrapped:
        return sink_->OnControl(peer, std::move(message->wrapped));
      case NcclMessageKind::kConnect:
      case NcclMessageKind::kOffer:
        return receiver_->Handle(peer, *message, now_us);
      case NcclMessageKind::kAccept:
      case NcclMessageKind::kGrant:
      case NcclMessageKind::kDeny:
      case NcclMessageKind::kDone:
        return sender_->Handle(peer, *message, now_us);
      case NcclMessageKind::kDrop:
        if (message->by_sender) return receiver_->Handle(peer, *message, now_us);
        return sender_->Handle(peer, *message, now_us);
    }
  }

  bool EvictIdle() {
    StepFinishing(options_.clock->NowUs());
    // One that is being ended makes the room.
    if (budget_.num_links - budget_.finishing.size() < options_.limits.max_links) {
      return budget_.num_links < options_.limits.max_links;
    }
    const std::optional<int64_t> send_idle_us = sender_->IdleSince();
    const std::optional<int64_t> receive_idle_us = receiver_->IdleSince();
    if (send_idle_us.has_value() &&
        (!receive_idle_us.has_value() || *send_idle_us <= *receive_idle_us)) {
      sender_->EvictIdle();
    } else if (receive_idle_us.has_value()) {
      receiver_->EvictIdle();
    }
    StepFinishing(options_.clock->NowUs());
    return budget_.num_links < options_.limits.max_links;
  }

  void StepFinishing(int64_t now_us) {
    std::erase_if(budget_.finishing, [&](LinkBudget::Finishing& finishing) {
      if (finishing.deadline_us == 0) finishing.deadline_us = now_us + kFinishUs;
      if (!finishing.comm->Finish() && now_us < finishing.deadline_us) return false;
      --budget_.num_links;
      return true;
    });
  }

  LinkCounters* CountersOf(Incarnation peer) {
    std::lock_guard lock(links_mutex_);
    const auto entry = link_counters_.find(peer);
    return entry == link_counters_.end() ? nullptr : entry->second.get();
  }

  // Constant after construction.
  const NcclTransportOptions options_;
  const std::unique_ptr<KvEndpoint> endpoint_;
  NcclParts parts_;

  TransportCounters counters_;
  NcclCounters nccl_counters_;
  TransportInbox inbox_;

  EndpointEvents events_;

  mutable std::mutex links_mutex_;  // guards the next two, which this thread alone changes
  absl::flat_hash_map<Incarnation, std::shared_ptr<LinkCounters>> link_counters_;  // of who is up
  absl::flat_hash_map<Incarnation, std::string> refusals_;  // why a connected peer is not up

  // Owned by the thread.
  KvTransportSink* sink_ = nullptr;
  std::vector<EndpointEvent> taken_events_;
  TransportBatch batch_;
  LinkBudget budget_;
  absl::flat_hash_map<Incarnation, uint64_t> epochs_;  // of the peers that are up
  // Connected; their version is not known yet.
  struct Greeted {
    PeerUp up;
    std::vector<std::string> words;  // that came before it
    size_t bytes = 0;                // of these
  };
  absl::flat_hash_map<Incarnation, Greeted> greeted_;
  uint64_t next_epoch_ = 1;
  std::unique_ptr<NcclSender> sender_;
  std::unique_ptr<NcclReceiver> receiver_;

  Thread thread_;
};

}  // namespace

StatusOr<std::unique_ptr<NcclTransport>> NcclTransport::Create(
    const NcclTransportOptions& options, std::unique_ptr<KvEndpoint> endpoint) {
  BATON_RETURN_IF_ERROR(Validate(options));
  auto transport = std::make_unique<NcclTransportImpl>(options, std::move(endpoint));
  BATON_RETURN_IF_ERROR(transport->Prepare());
  return transport;
}

}  // namespace baton
