#include "src/engine/transport_sink.h"

#include <bit>
#include <memory>
#include <utility>

#include "src/base/log.h"

namespace baton::engine {

using kv::BadSlice;
using kv::HandoffMessage;
using kv::PeerUp;

void EngineTransportSink::OnPeerUp(const PeerUp& peer) {
  inbox_->Post(PeerConnected{peer.peer, peer.kind});
  if (on_links_) on_links_();
}

void EngineTransportSink::OnPeerDown(Incarnation peer, const Status& status) {
  inbox_->Post(PeerLost{peer, std::string(status.message())});
  if (on_links_) on_links_();
}

void EngineTransportSink::OnControl(Incarnation peer, std::string bytes) {
  auto message = wire_->Decode(bytes);
  if (!message.ok()) {
    const uint64_t number = num_malformed_.fetch_add(1, std::memory_order_relaxed) + 1;
    // 1, 2, 4, ...: a peer may send them as fast as the line carries them.
    if (std::has_single_bit(number)) {
      BATON_LOG_WARN("control message of {} bytes from peer {:016x} is malformed: {} ({} so far)",
                     bytes.size(), peer.value(), message.status().ToString(), number);
    }
    return;
  }
  // A full inbox drops the message: hand-offs survive any loss by their leases.
  inbox_->TryPost(
      PeerMessage{peer, std::make_unique<HandoffMessage>(*std::move(message)), clock_->NowUs()});
}

void EngineTransportSink::OnReceiveProgress(TransferId transfer, uint32_t slices_done,
                                            bool complete) {
  const ReceiveProgress progress{transfer, slices_done, complete};
  // Only the completion must arrive; it comes once a transfer.
  if (complete) {
    inbox_->Post(progress);
  } else {
    inbox_->TryPost(progress);
  }
}

void EngineTransportSink::OnBadSlice(const BadSlice& slice) {
  // An event that is lost here is found again as a gap.
  inbox_->TryPost(SliceRefused{slice});
}

void EngineTransportSink::OnReceiveClosed(TransferId transfer) {
  inbox_->Post(ReceiveClosed{transfer});
}

void EngineTransportSink::OnSendClosed(Incarnation peer, TransferId transfer) {
  inbox_->Post(SendClosed{peer, transfer});
}

}  // namespace baton::engine
