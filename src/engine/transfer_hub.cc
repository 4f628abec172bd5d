#include "src/engine/transfer_hub.h"

namespace baton::engine {

using device::StageRange;
using device::StepStage;
using kv::Applied;
using kv::Grant;
using kv::HandoffMessage;
using kv::Nack;
using kv::Revoke;

namespace {

TransferParts PartsOf(EngineState* state) {
  return {.pool = &state->pool,
          .scheduler = &state->scheduler,
          .kv = state->parts.kv,
          .transport = state->parts.transport,
          .wire = state->parts.wire};
}

}  // namespace

TransferHub::TransferHub(EngineState* state, TransferOwner* owner)
    : state_(state),
      sources_(PartsOf(state), state->config, owner),
      dests_(PartsOf(state), state->config, state->parts.model->vocab_size(), owner) {}

void TransferHub::Handle(const EngineEvent& event) {
  const int64_t now_us = state_->now_us;
  if (const auto* message = std::get_if<PeerMessage>(&event)) {
    OnMessage(*message);
  } else if (const auto* up = std::get_if<PeerConnected>(&event)) {
    state_->peers[up->peer] = up->kind;
  } else if (const auto* lost = std::get_if<PeerLost>(&event)) {
    OnPeerLost(*lost);
  } else if (const auto* progress = std::get_if<ReceiveProgress>(&event)) {
    dests_.OnReceiveProgress(*progress, now_us);
  } else if (const auto* refused = std::get_if<SliceRefused>(&event)) {
    dests_.OnBadSlice(refused->slice, now_us);
  } else if (const auto* received = std::get_if<ReceiveClosed>(&event)) {
    dests_.OnReceiveClosed(received->transfer, now_us);
  } else if (const auto* sent = std::get_if<SendClosed>(&event)) {
    sources_.OnSendClosed(sent->peer, sent->transfer, now_us);
  }
}

void TransferHub::OnMessage(const PeerMessage& message) {
  if (message.message == nullptr || state_->parts.transport == nullptr) return;
  const StageRange transfer(state_->parts.stages, StepStage::kTransfer);
  // Messages that only a prefill worker receives go to the sources. Messages that only a decode
  // worker receives go to the destinations. A Revoke says who sent it.
  const HandoffMessage& m = *message.message;
  const auto* revoke = std::get_if<Revoke>(&m);
  const bool to_source = std::holds_alternative<Grant>(m) || std::holds_alternative<Applied>(m) ||
                         std::holds_alternative<Nack>(m) ||
                         (revoke != nullptr && revoke->from_decode);
  if (to_source) {
    sources_.OnMessage(message, state_->now_us);
  } else {
    dests_.OnMessage(message.peer, m, state_->now_us);
  }
}

void TransferHub::OnPeerLost(const PeerLost& lost) {
  state_->peers.erase(lost.peer);
  sources_.OnPeerDown(lost.peer, lost.reason, state_->now_us);
  dests_.OnPeerDown(lost.peer, lost.reason, state_->now_us);
}

void TransferHub::Tick() {
  sources_.Tick(state_->now_us);
  dests_.Tick(state_->now_us);
}

Status TransferHub::CanOpen() const {
  const uint32_t max_transfers = state_->config.max_transfers;
  if (num_open() < max_transfers) return OkStatus();
  return ResourceExhausted("{} hand-offs are open, the limit is {}", num_open(), max_transfers);
}

void TransferHub::Cancel(const LiveRequest& request, std::string_view reason) {
  const RequestKey key = request.spec.key;
  if (request.spec.kind == RequestKind::kSource) sources_.Cancel(key, reason, state_->now_us);
  if (request.spec.kind == RequestKind::kDest) dests_.Cancel(key, reason, state_->now_us);
}

}  // namespace baton::engine
