#include "kvcache/transport/nccl/nccl_transport.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kvcache/transport/nccl/nccl_receiver.h"
#include "kvcache/transport/nccl/nccl_sender.h"
#include "src/base/log.h"

namespace baton::kv {
namespace {

// Nothing can cut an abort short; whoever is on call may want to end the process.
constexpr int64_t kLongEndUs = 5'000'000;
// Messages of a peer before its greeting: what may be parked for one that is not connected.
constexpr size_t kMaxEarlyWords = 1024;
constexpr size_t kMaxEarlyBytes = size_t{16} << 20;

}  // namespace

StatusOr<std::unique_ptr<NcclTransport>> NcclTransport::Create(
    const NcclTransportOptions& options, std::unique_ptr<KvEndpoint> endpoint) {
  const KvMemory& memory = options.device.memory;
  BATON_RETURN_IF_ERROR(CheckSliceSize(memory.layout, memory.num_ranks()));
  const uint64_t num_slices = options.limits.slot_bytes / memory.layout.SliceBytes();
  if (num_slices == 0) {
    return InvalidArgument("staging of {} bytes holds no slice of {}", options.limits.slot_bytes,
                           memory.layout.SliceBytes());
  }
  const StagingShape shape = {options.limits.num_slots, static_cast<uint32_t>(std::min<uint64_t>(
                                                            kMaxOfferSlices, num_slices))};
  BATON_ASSIGN_OR_RETURN(auto send_ring, StagingRing::Create(options.device, shape));
  BATON_ASSIGN_OR_RETURN(auto receive_ring, StagingRing::Create(options.device, shape));
  std::unique_ptr<NcclTransport> transport(new NcclTransport(options, std::move(endpoint)));
  const NcclParts* const parts = &transport->parts_;
  transport->sender_ = std::make_unique<NcclSender>(parts, std::move(send_ring));
  transport->receiver_ = std::make_unique<NcclReceiver>(parts, std::move(receive_ring), memory);
  transport->SetHalves(transport->sender_.get(), transport->receiver_.get());
  return transport;
}

NcclTransport::NcclTransport(const NcclTransportOptions& options,
                             std::unique_ptr<KvEndpoint> endpoint)
    : SliceTransport({.kind = TransportKind::kNccl,
                      .thread_name = "kv-nccl",
                      .form = kNcclForm,
                      .device = options.device,
                      .inbox = options.inbox,
                      .clock = options.clock},
                     std::move(endpoint)),
      ender_(options.device.device),
      parts_{Parts(),        options.table,  options.device.gate,
             options.timers, options.limits, &counters_,
             &ender_,        &num_links_,    [this] { return MakeRoom(); }} {}

NcclTransport::~NcclTransport() { Stop(); }

NcclStats NcclTransport::CommunicatorStats() const {
  NcclStats stats;
  stats.built = counters_.built.value();
  stats.batches = counters_.batches.value();
  stats.lost = counters_.lost.value();
  stats.ending = ender_.num_ending();
  stats.overruns = counters_.overruns.value() + overruns();
  for (size_t i = 0; i < stats.dropped.size(); ++i) {
    stats.dropped[i] = counters_.dropped[i].value();
  }
  return stats;
}

void NcclTransport::HandleUp(PeerUp up) {
  const Incarnation peer = up.peer;
  greeted_[peer] = {.up = std::move(up)};
  Explain(peer, "no word of its NCCL yet");
  NcclMessage greeting;
  greeting.kind = NcclMessageKind::kGreeting;
  greeting.number = static_cast<uint32_t>(parts_.table->version);
  // A peer that is not told has a queue that is full at its start: its connection is ending.
  (void)parts_.Post(peer, greeting);
}

void NcclTransport::HandleDown(Incarnation peer) {
  greeted_.erase(peer);
  known_.erase(peer);
}

// Messages that waited for the connection come before the greeting that the connection brings.
void NcclTransport::HandleEarly(Incarnation peer, std::string bytes, int64_t now_us) {
  const bool is_owners =
      !IsSliceMessage(kNcclForm, bytes) || UnwrapMessage(kNcclForm, bytes).has_value();
  if (!is_owners) {
    const StatusOr<NcclMessage> message = DecodeNcclMessage(bytes);
    if (!message.ok()) return counters_.AddDrop(NcclDropReason::kProtocol);
    if (message->kind == NcclMessageKind::kGreeting) {
      return HandleGreeting(peer, message->number, now_us);
    }
  }
  const auto greeted = greeted_.find(peer);
  // The peer was given up or refused. The owner does not know such a peer, so the message is
  // dropped.
  if (greeted == greeted_.end()) return counters_.overruns.Add();
  Greeted& early = greeted->second;
  if (early.words.size() >= kMaxEarlyWords || early.bytes + bytes.size() > kMaxEarlyBytes) {
    return counters_.overruns.Add();
  }
  early.bytes += bytes.size();
  early.words.push_back(std::move(bytes));
}

void NcclTransport::HandleGreeting(Incarnation peer, uint32_t version, int64_t now_us) {
  const auto greeted = greeted_.find(peer);
  if (greeted == greeted_.end()) return counters_.AddDrop(NcclDropReason::kProtocol);
  Greeted known = std::move(greeted->second);
  greeted_.erase(greeted);
  if (version == static_cast<uint32_t>(parts_.table->version)) {
    known_[peer] = {.up = known.up};
    Introduce(std::move(known.up));
    for (std::string& word : known.words) HandleControl(peer, std::move(word), now_us);
    return;
  }
  counters_.AddDrop(NcclDropReason::kVersion);
  std::string why = fmt::format("it has NCCL {}, this worker {}: they must be equal",
                                nccl::VersionText(static_cast<int>(version)),
                                nccl::VersionText(parts_.table->version));
  BATON_LOG_WARN("no KV to or from {}: {}", known.up.worker_id, why);
  Explain(peer, std::move(why));
}

void NcclTransport::HandleWord(Incarnation peer, const std::string& bytes, int64_t now_us) {
  const StatusOr<NcclMessage> message = DecodeNcclMessage(bytes);
  // A member's own mistake: its link is of no use, and its deadlines end it.
  if (!message.ok()) return counters_.AddDrop(NcclDropReason::kProtocol);
  switch (message->kind) {
    case NcclMessageKind::kGreeting:
      return HandleGreeting(peer, message->number, now_us);
    case NcclMessageKind::kConnect:
    case NcclMessageKind::kStart:
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

bool NcclTransport::MakeRoom() {
  if (num_links_ + ender_.num_ending() < parts_.limits.max_links) return true;
  // The one that was evicted last makes the room.
  if (!evicted_.IsOver()) return false;
  const std::optional<IdleLink> to = sender_->FindIdle();
  const std::optional<IdleLink> from = receiver_->FindIdle();
  if (to.has_value() && (!from.has_value() || to->used_us <= from->used_us)) {
    evicted_ = sender_->Evict(to->peer);
  } else if (from.has_value()) {
    evicted_ = receiver_->Evict(from->peer);
  }
  return false;
}

// The owner hears the same as of a peer that hung up, and so do routers, which pair it with others.
// The connection stays, and with it the words to the peer.
void NcclTransport::GiveUp(Incarnation peer, const std::string& why, bool has_delivered,
                           int64_t now_us) {
  const auto found = known_.find(peer);
  if (found == known_.end()) return;
  Known& known = found->second;
  const NcclTimers& timers = parts_.timers;
  known.rest_us = known.rest_us == 0 || has_delivered
                      ? timers.rest_min_us
                      : std::min(2 * known.rest_us, timers.rest_max_us);
  known.again_us = now_us + known.rest_us;
  counters_.lost.Add();
  std::string text =
      fmt::format("{} communicators in a row delivered nothing, the last: {}; tried again in {} ms",
                  parts_.limits.max_failures, why, known.rest_us / 1000);
  BATON_LOG_ERROR("no KV to {} over NCCL: {}", known.up.worker_id, text);
  Withdraw(peer, Unavailable("{}", text));
  Explain(peer, std::move(text));
}

int64_t NcclTransport::StepMore(int64_t now_us) {
  for (const NcclSender::LostPeer& lost : sender_->TakeLost()) {
    GiveUp(lost.peer, lost.why, lost.has_delivered, now_us);
  }
  int64_t due_us = WatchEnds(now_us);
  for (auto& [peer, known] : known_) {
    if (known.again_us != 0 && now_us >= known.again_us) {
      known.again_us = 0;
      Introduce(known.up);
    }
    if (known.again_us != 0) {
      due_us = due_us == 0 ? known.again_us : std::min(due_us, known.again_us);
    }
  }
  return due_us;
}

int64_t NcclTransport::WatchEnds(int64_t now_us) {
  const uint64_t num_ended = ender_.num_ended();
  if (ender_.num_ending() == 0 || num_ended != num_ended_ || ends_since_us_ == 0) {
    num_ended_ = num_ended;
    is_end_told_ = false;
    ends_since_us_ = ender_.num_ending() == 0 ? 0 : now_us;
  }
  if (ends_since_us_ == 0 || is_end_told_) return 0;
  if (now_us < ends_since_us_ + kLongEndUs) return ends_since_us_ + kLongEndUs;
  is_end_told_ = true;
  BATON_LOG_ERROR(
      "NCCL has not ended a communicator for {} s: {} wait, and their buffers and places are taken",
      kLongEndUs / 1'000'000, ender_.num_ending());
  return 0;
}

void NcclTransport::EndMore() { ender_.Stop(); }

}  // namespace baton::kv
