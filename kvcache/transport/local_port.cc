#include "kvcache/transport/local_port.h"

#include <algorithm>
#include <utility>

#include "kvcache/transport/send_queue.h"
#include "kvcache/transport/slice_copy.h"

namespace baton::kv {
namespace {

// Bytes that one port may move before the others get their turn: as for a connection.
constexpr size_t kTurnBytes = size_t{4} << 20;
constexpr int64_t kControlTtlUs = 2'000'000;

}  // namespace

LocalPort::LocalPort(std::shared_ptr<LocalCore> core, LocalWorker worker)
    : core_(std::move(core)),
      worker_id_(std::move(worker.worker_id)),
      incarnation_(worker.incarnation),
      memory_(worker.memory),
      dials_(worker.dials),
      puller_(std::move(worker.puller)),
      inbox_(TransportInboxLimits{}, [this] { core_->Wake(); }),
      receives_(memory_, &counters_) {}

LocalPort::~LocalPort() { Stop(); }

Status LocalPort::Start(KvTransportSink* sink) {
  core_->Join(this, sink);
  return OkStatus();
}

void LocalPort::Stop() {
  inbox_.Close();
  core_->Leave(this);
}

Status LocalPort::SendControl(Incarnation peer, std::string bytes) {
  return inbox_.PostControl(peer, std::move(bytes));
}

Status LocalPort::SendSlices(Incarnation peer, std::span<const SliceRef> slices) {
  BATON_RETURN_IF_ERROR(ValidateSlices(slices, memory_));
  return inbox_.PostSlices(peer, slices);
}

void LocalPort::CloseSend(Incarnation peer, TransferId transfer) {
  inbox_.PostCloseSend(peer, transfer);
}

Status LocalPort::OpenReceive(ReceiveSpec spec) {
  BATON_RETURN_IF_ERROR(ReceiveTable::Validate(spec, memory_));
  return inbox_.PostOpenReceive(std::move(spec));
}

void LocalPort::CloseReceive(TransferId transfer) { inbox_.PostCloseReceive(transfer); }

void LocalPort::Join(KvTransportSink* sink) {
  sink_ = sink;
  receives_.set_sink(sink);
}

void LocalPort::Leave() {
  links_.clear();
  link_events_.clear();
}

void LocalPort::Connect(LocalPort* other, uint64_t epoch) {
  links_[other->incarnation()] = {other, epoch, std::make_shared<LinkCounters>()};
  link_events_.push_back({PeerOf(*other), true});
  counters_.connections.Add();
  inbox_.SetPeerUp(other->incarnation(), epoch);
  PublishLinks();
}

void LocalPort::Disconnect(LocalPort* other) {
  const Incarnation peer = other->incarnation();
  if (links_.erase(peer) == 0) return;
  DropOutgoing(peer, TransferId(0), true);
  link_events_.push_back({PeerOf(*other), false});
  counters_.AddClose(CloseReason::kPeerClosed);
  inbox_.SetPeerDown(peer);
  PublishLinks();
}

PeerUp LocalPort::PeerOf(const LocalPort& other) const {
  return {.peer = other.incarnation(),
          .worker_id = other.worker_id(),
          .kind = TransportKind::kLocal,
          .dialled = dials_};
}

void LocalPort::PublishLinks() {
  std::vector<LinkEntry> entries;
  for (const auto& [peer, link] : links_) {
    LinkEntry& entry = entries.emplace_back();
    entry.info.peer = peer;
    entry.info.worker_id = link.port->worker_id();
    entry.info.kind = TransportKind::kLocal;
    entry.info.dialled = dials_;
    entry.info.up = true;
    entry.counters = link.counters;
  }
  board_.Publish(std::move(entries));
}

void LocalPort::DeliverLinkEvents() {
  for (const LinkEvent& event : link_events_) {
    if (!event.up) {
      sink_->OnPeerDown(event.peer.peer, Unavailable("{} left the process", event.peer.worker_id));
      continue;
    }
    sink_->OnPeerUp(event.peer);
    // Messages that waited for this peer go out first.
    std::deque<Parked> parked;
    std::swap(parked, parked_);
    for (Parked& message : parked) {
      if (message.peer == event.peer.peer) {
        SendOrPark(message.peer, std::move(message.bytes));
      } else {
        parked_.push_back(std::move(message));
      }
    }
  }
  link_events_.clear();
}

LocalPort::Link* LocalPort::FindLink(Incarnation peer) {
  const auto entry = links_.find(peer);
  return entry == links_.end() ? nullptr : &entry->second;
}

bool LocalPort::ExecuteCommands() {
  if (!inbox_.TakeAll(&batch_)) return false;
  for (TransportCommand& command : batch_.commands) Execute(&command);
  return true;
}

void LocalPort::Execute(TransportCommand* command) {
  Link* const link = FindLink(command->peer);
  switch (command->kind) {
    case TransportCommand::Kind::kSlices: {
      if (link == nullptr || link->epoch != command->epoch) {
        inbox_.ReleaseSlices(command->peer, static_cast<uint32_t>(command->num_slices));
        break;
      }
      for (size_t i = 0; i < command->num_slices; ++i) {
        outgoing_.push_back({command->peer, link->epoch, batch_.slices[command->first_slice + i]});
      }
      break;
    }
    case TransportCommand::Kind::kControl:
      SendOrPark(command->peer, std::move(command->bytes));
      break;
    case TransportCommand::Kind::kCloseSend:
      DropOutgoing(command->peer, command->transfer, false);
      sink_->OnSendClosed(command->peer, command->transfer);
      break;
    case TransportCommand::Kind::kOpenReceive:
      receives_.Open(std::move(*command->spec), link == nullptr ? 0 : link->epoch);
      break;
    case TransportCommand::Kind::kCloseReceive:
      if (receives_.Close(command->transfer)) inbox_.ReleaseOpenTransfer();
      break;
  }
}

void LocalPort::SendOrPark(Incarnation peer, std::string bytes) {
  Link* const link = FindLink(peer);
  if (link == nullptr) {
    parked_.push_back({peer, std::move(bytes), core_->NowUs() + kControlTtlUs});
    return;
  }
  inbox_.ReleaseControls(peer, 1, bytes.size());
  counters_.controls_sent.Add();
  link->port->counters_.controls_received.Add();
  link->port->sink_->OnControl(incarnation_, std::move(bytes));
}

void LocalPort::DropOutgoing(Incarnation peer, TransferId transfer, bool all_transfers) {
  const auto dropped = std::erase_if(outgoing_, [&](const Outgoing& outgoing) {
    return outgoing.peer == peer && (all_transfers || outgoing.slice.transfer == transfer);
  });
  inbox_.ReleaseSlices(peer, static_cast<uint32_t>(dropped));
}

bool LocalPort::MoveSlices(int64_t now_us) {
  if (outgoing_.empty()) return false;
  const size_t slice_bytes = layout().SliceBytes();
  size_t room = is_on_device() ? puller_->max_slices() : kTurnBytes / slice_bytes + 1;
  while (!outgoing_.empty() && room > 0) {
    const Incarnation peer = outgoing_.front().peer;
    moving_.clear();
    for (; !outgoing_.empty() && outgoing_.front().peer == peer && room > 0; --room) {
      moving_.push_back(outgoing_.front());
      outgoing_.pop_front();
    }
    // Disconnect dropped what had no link.
    Link* const link = FindLink(peer);
    counters_.slices_sent.Add(moving_.size());
    link->counters->bytes_sent.Add(moving_.size() * slice_bytes);
    link->port->TakeSlices(*this, moving_, now_us);
    inbox_.ReleaseSlices(peer, static_cast<uint32_t>(moving_.size()));
  }
  return true;
}

void LocalPort::TakeSlices(const LocalPort& sender, std::span<const Outgoing> slices,
                           int64_t now_us) {
  if (!is_on_device()) {
    for (const Outgoing& outgoing : slices) CopySlice(sender, outgoing, now_us);
    return;
  }
  for (const Outgoing& outgoing : slices) PullSlice(sender, outgoing, now_us);
  FinishPulls(sender, now_us);
}

void LocalPort::CopySlice(const LocalPort& sender, const Outgoing& outgoing, int64_t now_us) {
  const FrameHeader header = SliceFrameHeader(outgoing.slice, outgoing.epoch, 0);
  std::byte* const dest = receives_.Admit(sender.incarnation(), outgoing.epoch, header);
  if (dest == nullptr) return;
  const std::byte* const source = sender.memory_.Slice(outgoing.slice.source, outgoing.slice.layer);
  FinishSlice(sender, header, CopyAndChecksum(dest, source, layout().SliceBytes()), now_us);
}

void LocalPort::PullSlice(const LocalPort& sender, const Outgoing& outgoing, int64_t now_us) {
  const FrameHeader header = SliceFrameHeader(outgoing.slice, outgoing.epoch, 0);
  const auto admit = [&]() BATON_REQUIRES(kServing) {
    return receives_.Admit(sender.incarnation(), outgoing.epoch, header);
  };
  const std::byte* dest = admit();
  if (dest == nullptr) return;
  uint64_t to = static_cast<uint64_t>(dest - memory_.base);
  // A slice that is offered twice is judged again once the first is done.
  if (pulls_.size() == puller_->max_slices() || destinations_.contains(to)) {
    FinishPulls(sender, now_us);
    dest = admit();
    if (dest == nullptr) return;
    to = static_cast<uint64_t>(dest - memory_.base);
  }
  destinations_.insert(to);
  pulls_.push_back({sender.memory_.SliceOffset(outgoing.slice.source, outgoing.slice.layer), to});
  pulled_.push_back(header);
}

void LocalPort::FinishPulls(const LocalPort& sender, int64_t now_us) {
  if (pulls_.empty()) return;
  SlicePuller::Slot& slot = puller_->slots().front();
  MustWork(puller_->Begin(&slot, sender.memory_, pulls_));
  MustWork(puller_->Wait());
  for (size_t i = 0; i < pulled_.size(); ++i) {
    FinishSlice(sender, pulled_[i], slot.host.checksums[i], now_us);
  }
  pulls_.clear();
  pulled_.clear();
  destinations_.clear();
}

void LocalPort::FinishSlice(const LocalPort& sender, const FrameHeader& header, uint64_t checksum,
                            int64_t now_us) {
  if (!receives_.Finish(header, checksum, now_us)) return;
  FindLink(sender.incarnation())->counters->bytes_received.Add(layout().SliceBytes());
}

int64_t LocalPort::ServeTimers(int64_t now_us) {
  int64_t due_us = receives_.FlushProgress(now_us);
  // All wait equally long, so the oldest is in front.
  while (!parked_.empty() && parked_.front().deadline_us <= now_us) {
    counters_.controls_expired.Add();
    inbox_.ReleaseControls(parked_.front().peer, 1, parked_.front().bytes.size());
    parked_.pop_front();
  }
  if (!parked_.empty()) {
    const int64_t deadline_us = parked_.front().deadline_us;
    due_us = due_us == 0 ? deadline_us : std::min(due_us, deadline_us);
  }
  return due_us;
}

}  // namespace baton::kv
