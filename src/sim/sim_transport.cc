#include "src/sim/sim_transport.h"

#include <cstring>

#include "kvcache/transport/frame.h"
#include "kvcache/transport/send_queue.h"
#include "kvcache/transport/slice_copy.h"

namespace baton::sim {

using kv::CloseReason;
using kv::CopyAndChecksum;
using kv::FrameHeader;
using kv::kFrameHeaderBytes;
using kv::KvArena;
using kv::KvTransportSink;
using kv::LinkInfo;
using kv::ReceiveSpec;
using kv::ReceiveTable;
using kv::SliceFrameHeader;
using kv::SliceRef;
using kv::TransportKind;
using kv::ValidateSlices;

namespace {

// Bytes of a message on the wire beside its payload, for the bandwidth.
constexpr size_t kControlBytes = 256;
constexpr int64_t kControlTtlUs = 2'000'000;
// How long the transport's own thread takes to confirm a close.
constexpr int64_t kConfirmUs = 30;
// Slices on their way to one peer: small, so that the engine meets the limit on slow links.
constexpr uint32_t kMaxInFlight = 1024;

}  // namespace

SimTransport::SimTransport(SimProcess* process, SimNetwork* network, const KvArena* arena,
                           std::function<void()> wake)
    : process_(process),
      network_(network),
      arena_(arena),
      slice_wire_bytes_(arena->layout().SliceBytes()),
      wake_(std::move(wake)),
      scratch_(arena->layout().SliceBytes()) {}

Status SimTransport::Start(KvTransportSink* sink) {
  Stop();
  sink_ = sink;
  receives_ = std::make_unique<ReceiveTable>(arena_->memory(), &counters_);
  receives_->set_sink(sink);
  return OkStatus();
}

void SimTransport::Stop() {
  links_.clear();
  parked_.clear();
  arriving_.clear();
}

// ---- Connections.

void SimTransport::LinkUp(SimTransport* peer, uint64_t epoch, bool pulls, bool dialled) {
  links_[peer->incarnation()] = {peer, epoch, pulls, dialled, 0};
  counters_.connections.Add();
  const TransportKind kind = pulls ? TransportKind::kShm : TransportKind::kTcp;
  sink_->OnPeerUp({peer->incarnation(), peer->process().name(), kind, dialled});
  DropParked();
  // Messages that waited for this peer go out first.
  std::vector<Control> parked;
  std::swap(parked, parked_);
  for (Control& control : parked) {
    if (control.peer == peer->incarnation()) {
      SendNow(links_[control.peer], std::move(control.bytes));
    } else {
      parked_.push_back(std::move(control));
    }
  }
  wake_();
}

uint64_t SimTransport::EpochOf(Incarnation peer) const {
  const auto link = links_.find(peer);
  return link == links_.end() ? 0 : link->second.epoch;
}

void SimTransport::LinkDown(Incarnation peer, uint64_t epoch, std::string_view reason) {
  const auto link = links_.find(peer);
  if (link == links_.end() || (epoch != 0 && epoch != link->second.epoch)) return;
  links_.erase(link);
  counters_.AddClose(CloseReason::kPeerClosed);
  sink_->OnPeerDown(peer, Unavailable("{}", reason));
  wake_();
}

std::vector<SimTransport*> SimTransport::Peers() const {
  std::vector<SimTransport*> peers;
  for (const auto& [incarnation, link] : links_) peers.push_back(link.peer);
  return peers;
}

std::vector<std::pair<Incarnation, SimTransport*>> SimTransport::Dialled() const {
  std::vector<std::pair<Incarnation, SimTransport*>> dialled;
  for (const auto& [incarnation, link] : links_) {
    if (link.dialled) dialled.emplace_back(incarnation, link.peer);
  }
  return dialled;
}

std::vector<LinkInfo> SimTransport::Links() const {
  std::vector<LinkInfo> infos;
  for (const auto& [peer, link] : links_) {
    LinkInfo& info = infos.emplace_back();
    info.peer = peer;
    info.worker_id = link.peer->process().name();
    info.kind = link.pulls ? TransportKind::kShm : TransportKind::kTcp;
    info.dialled = link.dialled;
    info.up = true;
  }
  return infos;
}

// ---- Control messages.

void SimTransport::DropParked() {
  const int64_t now_us = process_->TrueNowUs();
  const auto expired = std::erase_if(
      parked_, [now_us](const Control& control) { return control.parked_until_us <= now_us; });
  counters_.controls_expired.Add(expired);
}

Status SimTransport::SendControl(Incarnation peer, std::string bytes) {
  const auto link = links_.find(peer);
  if (link != links_.end()) {
    SendNow(link->second, std::move(bytes));
    return OkStatus();
  }
  DropParked();
  parked_.push_back({peer, 0, std::move(bytes), process_->TrueNowUs() + kControlTtlUs});
  return OkStatus();
}

void SimTransport::SendNow(const Link& link, std::string bytes) {
  SimTransport* const receiver = link.peer;
  counters_.controls_sent.Add();
  const DataPassage passage = network_->PassData(*process_, receiver->process(), kControlBytes);
  // A flipped bit breaks the frame's checksum, which ends the connection: as if it were lost, and
  // the connection with it.
  if (passage.flips_bit) {
    const uint64_t epoch = link.epoch;
    const auto damaged = [receiver, epoch, from = incarnation_, sender = this] {
      if (receiver->EpochOf(from) != epoch) return;
      receiver->LinkDown(from, epoch, "a control message's checksum is wrong");
      sender->process().Post(0, [sender, epoch, to = receiver->incarnation()] {
        sender->LinkDown(to, epoch, "the peer closed the connection");
      });
    };
    receiver->process().Post(passage.arrival_us, damaged);
    return;
  }
  Control control{incarnation_, link.epoch, std::move(bytes), 0};
  if (passage.again_us < 0) return receiver->ExpectControl(passage.arrival_us, std::move(control));
  receiver->ExpectControl(passage.arrival_us, control);
  receiver->ExpectControl(passage.again_us, std::move(control));
}

void SimTransport::ExpectControl(int64_t arrival_us, Control control) {
  const ArrivalKey key{arrival_us, next_arrival_++};
  arriving_.emplace(key, std::move(control));
  process_->Post(arrival_us, [this, key] {
    const auto it = arriving_.find(key);
    if (it == arriving_.end()) return;  // taken within a step
    Control arrived = std::move(it->second);
    arriving_.erase(it);
    TakeControl(std::move(arrived));
  });
}

void SimTransport::DeliverControls() {
  const int64_t now_us = process_->TrueNowUs();
  while (!arriving_.empty() && arriving_.begin()->first.first <= now_us) {
    Control arrived = std::move(arriving_.begin()->second);
    arriving_.erase(arriving_.begin());
    TakeControl(std::move(arrived));
  }
}

void SimTransport::TakeControl(Control control) {
  const auto link = links_.find(control.peer);
  if (link == links_.end() || link->second.epoch != control.epoch) return;
  counters_.controls_received.Add();
  sink_->OnControl(control.peer, std::move(control.bytes));
  wake_();
}

// ---- Slices.

Status SimTransport::SendSlices(Incarnation peer, std::span<const SliceRef> slices) {
  BATON_RETURN_IF_ERROR(ValidateSlices(slices, arena_->memory()));
  const auto found = links_.find(peer);
  if (found == links_.end()) return Unavailable("no connection to {:016x}", peer.value());
  Link& link = found->second;
  const auto num_slices = static_cast<uint32_t>(slices.size());
  if (link.num_in_flight > 0 && link.num_in_flight + num_slices > kMaxInFlight) {
    return ResourceExhausted("{} slices wait", link.num_in_flight);
  }
  const size_t slice_bytes = arena_->layout().SliceBytes();
  const size_t num_bytes = slices.size() * (slice_wire_bytes_ + kFrameHeaderBytes);
  SimTransport* const receiver = link.peer;
  const DataPassage passage = network_->PassData(*process_, receiver->process(), num_bytes);
  auto batch = std::make_unique<Batch>();
  batch->sender = this;
  batch->from = incarnation_;
  batch->epoch = link.epoch;
  batch->slices.assign(slices.begin(), slices.end());
  if (!link.pulls) {
    batch->bytes.resize(slices.size() * slice_bytes);
    for (size_t i = 0; i < slices.size(); ++i) {
      std::memcpy(batch->bytes.data() + i * slice_bytes,
                  arena_->Slice(slices[i].source, slices[i].layer), slice_bytes);
    }
  }
  link.num_in_flight += num_slices;
  counters_.slices_sent.Add(num_slices);
  if (passage.again_us >= 0) {
    auto again = std::make_unique<Batch>(*batch);
    again->counted = false;
    receiver->process().Post(passage.again_us,
                             [receiver, batch = std::move(again)] { receiver->TakeBatch(*batch); });
  }
  batch->flips_bit = passage.flips_bit;
  batch->flip_place = passage.flip_place;
  receiver->process().Post(passage.arrival_us,
                           [receiver, batch = std::move(batch)] { receiver->TakeBatch(*batch); });
  return OkStatus();
}

void SimTransport::CloseSend(Incarnation peer, TransferId transfer) {
  process_->Post(process_->TrueNowUs() + kConfirmUs, [this, peer, transfer] {
    sink_->OnSendClosed(peer, transfer);
    wake_();
  });
}

void SimTransport::TakeBatch(const Batch& batch) {
  SimTransport& sender = *batch.sender;
  if (sender.incarnation_ == batch.from && batch.counted) {
    const auto back = sender.links_.find(incarnation_);
    const bool is_same = back != sender.links_.end() && back->second.epoch == batch.epoch;
    if (is_same) back->second.num_in_flight -= static_cast<uint32_t>(batch.slices.size());
  }
  const auto link = links_.find(batch.from);
  if (link == links_.end() || link->second.epoch != batch.epoch) return;
  for (size_t i = 0; i < batch.slices.size(); ++i) TakeSlice(batch, i);
  Flush();
}

void SimTransport::TakeSlice(const Batch& batch, size_t slice_idx) {
  const SliceRef& slice = batch.slices[slice_idx];
  const FrameHeader header = SliceFrameHeader(slice, batch.epoch, 0);
  std::byte* const dest = receives_->Admit(batch.from, batch.epoch, header);
  if (dest == nullptr) return;
  const size_t slice_bytes = scratch_.size();
  const std::byte* const source = batch.bytes.empty()
                                      ? batch.sender->arena_->Slice(slice.source, slice.layer)
                                      : batch.bytes.data() + slice_idx * slice_bytes;
  std::memcpy(scratch_.data(), source, slice_bytes);
  if (batch.flips_bit && batch.flip_place % batch.slices.size() == slice_idx) {
    const uint64_t place = batch.flip_place >> 20;
    scratch_[place % slice_bytes] ^= static_cast<std::byte>(1 << (place >> 20) % 8);
  }
  const uint64_t checksum = CopyAndChecksum(dest, scratch_.data(), slice_bytes);
  receives_->Finish(header, checksum, process_->TrueNowUs());
}

// Reports progress, and comes again when some is left for later.
void SimTransport::Flush() {
  const int64_t due_us = receives_->FlushProgress(process_->TrueNowUs());
  if (due_us > 0) process_->Post(due_us, [this] { Flush(); });
  wake_();
}

Status SimTransport::OpenReceive(ReceiveSpec spec) {
  BATON_RETURN_IF_ERROR(ReceiveTable::Validate(spec, arena_->memory()));
  const auto link = links_.find(spec.peer);
  const uint64_t epoch = link == links_.end() ? 0 : link->second.epoch;
  receives_->Open(std::move(spec), epoch);
  return OkStatus();
}

void SimTransport::CloseReceive(TransferId transfer) {
  process_->Post(process_->TrueNowUs() + kConfirmUs, [this, transfer] {
    receives_->Close(transfer);
    wake_();
  });
}

}  // namespace baton::sim
