// TransferHub: all hand-offs of one engine, on both sides, and the peers that they go to. It gives
// each event of the transport to the side that it belongs to. What the hand-offs tell of requests
// goes to the TransferOwner. Engine thread.
#ifndef BATON_ENGINE_TRANSFER_HUB_H_
#define BATON_ENGINE_TRANSFER_HUB_H_

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "src/engine/dest_transfers.h"
#include "src/engine/engine_event.h"
#include "src/engine/engine_state.h"
#include "src/engine/source_transfers.h"

namespace baton::engine {

// See the file comment.
class TransferHub {
 public:
  // Both outlive it.
  TransferHub(EngineState* state, TransferOwner* owner);

  // An event of the transport; any other changes nothing.
  void Handle(const EngineEvent& event);
  void Tick();
  // When Tick may have something to do; never too late.
  int64_t NextDueUs() const { return std::min(sources_.NextDeadlineUs(), dests_.NextDeadlineUs()); }

  // ResourceExhausted at the limit of hand-offs.
  Status CanOpen() const;
  // The request ends for another reason: its hand-off lets go of everything, the owner is not told.
  void Cancel(const LiveRequest& request, std::string_view reason);

  // Hand-offs that hold blocks or wait for the transport.
  uint32_t num_open() const { return sources_.num_open() + dests_.num_open(); }
  SourceTransferSet& sources() { return sources_; }
  const SourceTransferSet& sources() const { return sources_; }
  DestTransferSet& dests() { return dests_; }
  const DestTransferSet& dests() const { return dests_; }

 private:
  void OnMessage(const PeerMessage& message);
  void OnPeerLost(const PeerLost& lost);

  EngineState* const state_;
  SourceTransferSet sources_;
  DestTransferSet dests_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_TRANSFER_HUB_H_
