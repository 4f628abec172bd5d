// Messages to an engine thread. Plain data; made by any thread, consumed by the engine thread.
#ifndef BATON_ENGINE_ENGINE_EVENT_H_
#define BATON_ENGINE_ENGINE_EVENT_H_

#include <cstdint>
#include <memory>
#include <variant>

#include "kvcache/handoff_messages.h"
#include "kvcache/transport/transport_types.h"
#include "src/base/ids.h"
#include "src/engine/engine_types.h"

namespace baton::engine {

class DebugQuery;

// Begins a request; its kind says which work.
struct StartRequest {
  std::unique_ptr<RequestSpec> spec;
};

// Drops this and older attempts of a request.
struct CancelRequest {
  RequestKey key;
};

// A router's stream is gone: all its requests are cancelled.
struct CloseSession {
  SessionId session;
};

// The router lives: its requests may run for lease_us without another message from it.
struct RenewSession {
  SessionId session;
  int64_t lease_us = 0;
};

// A decoded control message of a peer.
struct PeerMessage {
  Incarnation peer;
  std::unique_ptr<kv::HandoffMessage> message;  // empty once handled
  int64_t arrived_us = 0;                       // at the inbox
};

// A data connection came up.
struct PeerConnected {
  Incarnation peer;
  kv::TransportKind kind = kv::TransportKind::kAuto;
};

// A data connection is gone.
struct PeerLost {
  Incarnation peer;
  std::string reason;
};

// Slices of an open transfer arrived.
struct ReceiveProgress {
  TransferId transfer;
  uint32_t num_slices = 0;
  bool complete = false;
};

// A slice of an open transfer was refused.
struct SliceRefused {
  kv::BadSlice slice;
};

// The transport no longer touches the blocks of a receive.
struct ReceiveClosed {
  TransferId transfer;
};

// The transport no longer reads the blocks of a send.
struct SendClosed {
  Incarnation peer;
  TransferId transfer;
};

// No new requests from now on.
struct BeginDrain {};

// Ends every request with this status.
struct FailAll {
  Status status;
};

// The mask for which a request waited is computed.
struct MaskReady {
  RequestUid uid;
};

// Asks for rows of /debug.
struct DebugRequest {
  std::shared_ptr<DebugQuery> query;
};

using EngineEvent =
    std::variant<std::monostate, StartRequest, CancelRequest, CloseSession, RenewSession,
                 PeerMessage, PeerConnected, PeerLost, ReceiveProgress, SliceRefused, ReceiveClosed,
                 SendClosed, BeginDrain, FailAll, MaskReady, DebugRequest>;

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_EVENT_H_
