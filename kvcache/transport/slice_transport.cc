#include "kvcache/transport/slice_transport.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kvcache/transport/send_queue.h"
#include "src/base/check.h"

namespace baton::kv {
namespace {

// The sooner of two times at which to be called again; 0 = never.
int64_t Sooner(int64_t a_us, int64_t b_us) {
  return a_us == 0 || b_us == 0 ? std::max(a_us, b_us) : std::min(a_us, b_us);
}

}  // namespace

SliceTransport::SliceTransport(const SliceFrameOptions& options,
                               std::unique_ptr<KvEndpoint> endpoint)
    : options_(options),
      endpoint_(std::move(endpoint)),
      inbox_(options.inbox, [this] { events_.Wake(); }),
      receives_(options.device.memory, &counters_) {}

void SliceTransport::SetHalves(SliceSender* sender, SliceReceiver* receiver) {
  sender_ = sender;
  receiver_ = receiver;
}

SliceParts SliceTransport::Parts() {
  const auto post = [this](Incarnation peer, std::string bytes) {
    return endpoint_->SendControl(peer, std::move(bytes)).ok();
  };
  const auto link_counters = [this](Incarnation peer) {
    MutexLock lock(links_mutex_);
    const auto entry = link_counters_.find(peer);
    return entry == link_counters_.end() ? nullptr : entry->second.get();
  };
  return {&inbox_, &receives_, &counters_, post, link_counters};
}

Status SliceTransport::Start(KvTransportSink* sink) {
  if (thread_.joinable()) return FailedPrecondition("the transport is started already");
  sink_ = sink;
  receives_.set_sink(sink);
  thread_ = Thread(options_.thread_name, [this] { Run(); });
  return endpoint_->Start(&events_);
}

void SliceTransport::Stop() {
  endpoint_->Stop();
  inbox_.Close();
  events_.Stop();
  thread_.Join();
}

Status SliceTransport::SendControl(Incarnation peer, std::string bytes) {
  if (IsSliceMessage(options_.form, bytes)) bytes = WrapMessage(options_.form, bytes);
  return endpoint_->SendControl(peer, std::move(bytes));
}

Status SliceTransport::SendSlices(Incarnation peer, std::span<const SliceRef> slices) {
  BATON_RETURN_IF_ERROR(ValidateSlices(slices, options_.device.memory));
  return inbox_.PostSlices(peer, slices);
}

void SliceTransport::CloseSend(Incarnation peer, TransferId transfer) {
  inbox_.PostCloseSend(peer, transfer);
}

Status SliceTransport::OpenReceive(ReceiveSpec spec) {
  BATON_RETURN_IF_ERROR(ReceiveTable::Validate(spec, options_.device.memory));
  return inbox_.PostOpenReceive(std::move(spec));
}

void SliceTransport::CloseReceive(TransferId transfer) { inbox_.PostCloseReceive(transfer); }

TransportStats SliceTransport::Stats() const {
  TransportStats stats = endpoint_->Stats();
  const TransportStats own = counters_.Snapshot();
  stats.bad_slices = own.bad_slices;
  stats.slices_received = own.slices_received;
  stats.bytes_received = own.bytes_received;
  stats.slices_sent = own.slices_sent;
  return stats;
}

std::vector<LinkInfo> SliceTransport::Links() const {
  std::vector<LinkInfo> links = endpoint_->Links();
  MutexLock lock(links_mutex_);
  for (LinkInfo& link : links) {
    if (!link.up) continue;
    link.kind = options_.kind;
    const auto entry = link_counters_.find(link.peer);
    link.up = entry != link_counters_.end();
    if (link.up) {
      link.bytes_sent = entry->second->bytes_sent.value();
      link.bytes_received = entry->second->bytes_received.value();
    } else if (const auto why = explanations_.find(link.peer); why != explanations_.end()) {
      link.last_failure = why->second;
    }
  }
  return links;
}

void SliceTransport::Run() {
  options_.device.device->MakeCurrent();
  int64_t due_us = 0;
  // Events are taken before the inbox: what was posted before one came stands in there by then.
  while (events_.Wait(*options_.clock, due_us, &taken_events_)) due_us = Turn();
  for (const auto& [peer, epoch] : epochs_) {
    sender_->RemovePeer(peer);
    receiver_->RemovePeer(peer);
  }
  EndMore();
  MustWork(options_.device.device->Wait());
}

int64_t SliceTransport::Turn() {
  const int64_t now_us = options_.clock->NowUs();
  if (inbox_.TakeAll(&batch_)) {
    for (TransportCommand& command : batch_.commands) Execute(&command);
  }
  for (EndpointEvent& event : taken_events_) Handle(&event, now_us);
  taken_events_.clear();
  int64_t due_us = receiver_->Step(now_us);
  due_us = Sooner(due_us, sender_->Step(now_us));
  ConfirmClosed();
  due_us = Sooner(due_us, receives_.FlushProgress(now_us));
  return Sooner(due_us, StepMore(now_us));
}

void SliceTransport::Execute(TransportCommand* command) {
  const auto epoch = epochs_.find(command->peer);
  switch (command->kind) {
    case TransportCommand::Kind::kSlices:
      if (epoch == epochs_.end() || epoch->second != command->epoch) {
        inbox_.ReleaseSlices(command->peer, static_cast<uint32_t>(command->num_slices));
        break;
      }
      sender_->Enqueue(command->peer,
                       std::span(batch_.slices).subspan(command->first_slice, command->num_slices));
      break;
    case TransportCommand::Kind::kControl:
      BATON_CHECK(false, "control messages are the endpoint's");
      break;
    case TransportCommand::Kind::kCloseSend:
      sender_->CloseSend(command->peer, command->transfer);
      closing_sends_.emplace_back(command->peer, command->transfer);
      return ConfirmClosed();
    case TransportCommand::Kind::kOpenReceive: {
      const auto from = epochs_.find(command->spec->peer);
      receives_.Open(std::move(*command->spec), from == epochs_.end() ? 0 : from->second);
      break;
    }
    case TransportCommand::Kind::kCloseReceive:
      receives_.BeginClose(command->transfer);
      closing_receives_.push_back(command->transfer);
      return ConfirmClosed();
  }
}

void SliceTransport::ConfirmClosed() {
  std::erase_if(closing_receives_, [this](TransferId transfer) {
    if (receiver_->IsWriting(transfer)) return false;
    if (receives_.Close(transfer)) inbox_.ReleaseOpenTransfer();
    return true;
  });
  std::erase_if(closing_sends_, [this](const auto& closing) {
    const auto& [peer, transfer] = closing;
    if (sender_->IsReading(peer, transfer)) return false;
    sink_->OnSendClosed(peer, transfer);
    return true;
  });
}

void SliceTransport::Handle(EndpointEvent* event, int64_t now_us) {
  switch (event->kind) {
    case EndpointEvent::Kind::kUp:
      return HandleUp(std::move(event->up));
    case EndpointEvent::Kind::kDown:
      HandleDown(event->peer);
      return Withdraw(event->peer, event->status);
    case EndpointEvent::Kind::kControl:
      return HandleControl(event->peer, std::move(event->bytes), now_us);
  }
}

void SliceTransport::HandleControl(Incarnation peer, std::string bytes, int64_t now_us) {
  if (!epochs_.contains(peer)) return HandleEarly(peer, std::move(bytes), now_us);
  if (!IsSliceMessage(options_.form, bytes)) return sink_->OnControl(peer, std::move(bytes));
  std::optional<std::string> wrapped = UnwrapMessage(options_.form, bytes);
  if (wrapped.has_value()) return sink_->OnControl(peer, *std::move(wrapped));
  HandleWord(peer, bytes, now_us);
}

void SliceTransport::Introduce(PeerUp up) {
  const uint64_t epoch = next_epoch_++;
  epochs_[up.peer] = epoch;
  {
    MutexLock lock(links_mutex_);
    link_counters_[up.peer] = std::make_unique<LinkCounters>();
    explanations_.erase(up.peer);
  }
  receiver_->AddPeer(up, epoch);
  if (sender_->AddPeer(up)) inbox_.SetPeerUp(up.peer, epoch);
  up.kind = options_.kind;
  sink_->OnPeerUp(up);
}

void SliceTransport::Withdraw(Incarnation peer, const Status& why) {
  {
    MutexLock lock(links_mutex_);
    link_counters_.erase(peer);
    explanations_.erase(peer);
  }
  if (epochs_.erase(peer) == 0) return;
  sender_->RemovePeer(peer);
  receiver_->RemovePeer(peer);
  inbox_.SetPeerDown(peer);
  sink_->OnPeerDown(peer, why);
}

void SliceTransport::Explain(Incarnation peer, std::string why) {
  MutexLock lock(links_mutex_);
  explanations_[peer] = std::move(why);
}

}  // namespace baton::kv
