#include "kvcache/transport/ipc/ipc_transport.h"

#include <utility>

#include "kvcache/transport/ipc/ipc_receiver.h"
#include "kvcache/transport/ipc/ipc_sender.h"

namespace baton::kv {

StatusOr<std::unique_ptr<IpcTransport>> IpcTransport::Create(const IpcTransportOptions& options,
                                                             std::unique_ptr<DevicePools> pools,
                                                             std::unique_ptr<KvEndpoint> endpoint) {
  const KvMemory& memory = options.device.memory;
  BATON_RETURN_IF_ERROR(CheckSliceSize(memory.layout, memory.num_ranks()));
  BATON_ASSIGN_OR_RETURN(auto puller, SlicePuller::Create(options.device, options.limits.num_slots,
                                                          kMaxIpcOfferSlices));
  std::unique_ptr<IpcTransport> transport(
      new IpcTransport(options, std::move(pools), std::move(endpoint)));
  const IpcParts* const parts = &transport->parts_;
  transport->sender_ = std::make_unique<IpcSender>(parts);
  transport->receiver_ =
      std::make_unique<IpcReceiver>(parts, std::move(puller), memory, transport->pools_.get());
  transport->SetHalves(transport->sender_.get(), transport->receiver_.get());
  return transport;
}

IpcTransport::IpcTransport(const IpcTransportOptions& options, std::unique_ptr<DevicePools> pools,
                           std::unique_ptr<KvEndpoint> endpoint)
    : SliceTransport({.kind = TransportKind::kCudaIpc,
                      .thread_name = "kv-ipc",
                      .form = kIpcForm,
                      .device = options.device,
                      .inbox = options.inbox,
                      .clock = options.clock},
                     std::move(endpoint)),
      pools_(std::move(pools)),
      parts_{Parts(), options.timers, options.limits, options.device.memory.layout.SliceBytes(),
             &counters_} {}

IpcTransport::~IpcTransport() { Stop(); }

IpcStats IpcTransport::OfferStats() const {
  return {counters_.offers.value(), counters_.late.value(), counters_.protocol.value(), overruns()};
}

void IpcTransport::HandleWord(Incarnation peer, const std::string& bytes, int64_t /*now_us*/) {
  StatusOr<IpcMessage> message = DecodeIpcMessage(bytes);
  // A member's own mistake: its transfers end by their deadlines.
  if (!message.ok()) return counters_.protocol.Add();
  if (message->kind == IpcMessageKind::kDone) return sender_->HandleDone(peer, message->batch);
  receiver_->HandleOffer(peer, *std::move(message));
}

}  // namespace baton::kv
