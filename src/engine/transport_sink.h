// EngineTransportSink: carries the transport's events to an engine's inbox. Called on the transport
// thread; decodes control messages there, so that the engine thread need not.
#ifndef BATON_ENGINE_TRANSPORT_SINK_H_
#define BATON_ENGINE_TRANSPORT_SINK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "kvcache/transport/kv_transport.h"
#include "src/base/clock.h"
#include "src/engine/engine_inbox.h"
#include "src/engine/engine_types.h"

namespace baton::engine {

// See the file comment.
class EngineTransportSink : public kv::KvTransportSink {
 public:
  // All three outlive the transport.
  EngineTransportSink(EngineInbox* inbox, const HandoffWire* wire, const Clock* clock)
      : inbox_(inbox), wire_(wire), clock_(clock) {}
  // Before the transport starts. `on_links` is told that a data connection has come or gone; the
  // transport's Links() say so already. It only posts.
  void set_on_links(std::function<void()> on_links) { on_links_ = std::move(on_links); }

  void OnPeerUp(const kv::PeerUp& peer) override;
  void OnPeerDown(Incarnation peer, const Status& status) override;
  void OnControl(Incarnation peer, std::string bytes) override;
  void OnReceiveProgress(TransferId transfer, uint32_t slices_done, bool complete) override;
  void OnBadSlice(const kv::BadSlice& slice) override;
  void OnReceiveClosed(TransferId transfer) override;
  void OnSendClosed(Incarnation peer, TransferId transfer) override;

 private:
  EngineInbox* const inbox_;
  const HandoffWire* const wire_;
  const Clock* const clock_;
  std::function<void()> on_links_;          // may be empty
  std::atomic<uint64_t> num_malformed_{0};  // control messages that could not be decoded
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_TRANSPORT_SINK_H_
