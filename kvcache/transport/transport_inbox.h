// TransportInbox: the calls to a transport that wait for its thread. Limits for each peer give
// back-pressure.
//
// Invariants
//  1. Every posted slice and control message is released exactly once by the transport's thread
//     (sent, dropped or expired); until then it counts against its peer's limits.
//  2. Slices are accepted only for a peer that is up, and carry the epoch of its connection. So a
//     slice that was posted for a lost connection is never sent over the next one.
//  3. Closes are always accepted: their number is bounded by the opens.
//
// Any thread may post. The transport's thread makes all other calls. The mutex guards everything
// and is held for copying only.
#ifndef BATON_KVCACHE_TRANSPORT_TRANSPORT_INBOX_H_
#define BATON_KVCACHE_TRANSPORT_TRANSPORT_INBOX_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "kvcache/transport/transport_types.h"
#include "src/base/ids.h"
#include "src/base/mutex.h"
#include "src/base/status.h"

namespace baton::kv {

// Limits of what may wait for one peer, and the number of absent peers for which something may
// wait.
struct TransportInboxLimits {
  uint32_t max_slices = 1u << 17;
  uint32_t max_controls = 1024;
  uint64_t max_control_bytes = uint64_t{16} << 20;
  uint32_t max_absent_peers = 64;
  uint32_t max_open_transfers = 4096;
};

// One posted call.
struct TransportCommand {
  // The kinds of call that are posted.
  enum class Kind : uint8_t { kSlices, kControl, kCloseSend, kOpenReceive, kCloseReceive };

  Kind kind = Kind::kControl;
  Incarnation peer;
  uint64_t epoch = 0;      // kSlices: of the peer's connection at the time of the post
  size_t first_slice = 0;  // kSlices: range in TransportBatch::slices
  size_t num_slices = 0;
  TransferId transfer;                // the closes
  std::string bytes;                  // kControl
  std::unique_ptr<ReceiveSpec> spec;  // kOpenReceive
};

// Everything posted since the last take, in order.
struct TransportBatch {
  std::vector<TransportCommand> commands;
  std::vector<SliceRef> slices;

  void clear() {
    commands.clear();
    slices.clear();
  }
};

// The inbox; see the file comment.
class TransportInbox {
 public:
  // `wake` is called (without the mutex) when the inbox stops being empty.
  TransportInbox(const TransportInboxLimits& limits, std::function<void()> wake);

  Status PostSlices(Incarnation peer, std::span<const SliceRef> slices);
  Status PostControl(Incarnation peer, std::string bytes);
  Status PostOpenReceive(ReceiveSpec spec);
  void PostCloseReceive(TransferId transfer);
  void PostCloseSend(Incarnation peer, TransferId transfer);
  // Refuses every post from now on.
  void Close();

  // Swaps the waiting commands into `batch` (which is cleared first); false when there were none.
  bool TakeAll(TransportBatch* batch);

  void SetPeerUp(Incarnation peer, uint64_t epoch);
  void SetPeerDown(Incarnation peer);
  void ReleaseSlices(Incarnation peer, uint32_t count);
  void ReleaseControls(Incarnation peer, uint32_t count, uint64_t size_bytes);
  // After a close took effect.
  void ReleaseOpenTransfer();

 private:
  // The state of one peer, and how much waits for it.
  struct PeerQueue {
    bool up = false;
    uint64_t epoch = 0;
    uint32_t slices = 0;
    uint32_t controls = 0;
    uint64_t control_bytes = 0;
  };

  PeerQueue* FindOrAddLocked(Incarnation peer) BATON_REQUIRES(mutex_);
  void ForgetIfIdleLocked(Incarnation peer) BATON_REQUIRES(mutex_);
  // Appends and returns whether the thread must be woken.
  bool PushLocked(TransportCommand command) BATON_REQUIRES(mutex_);

  const TransportInboxLimits limits_;
  const std::function<void()> wake_;

  Mutex mutex_;
  TransportBatch waiting_ BATON_GUARDED_BY(mutex_);
  absl::flat_hash_map<Incarnation, PeerQueue> peers_ BATON_GUARDED_BY(mutex_);
  uint32_t num_absent_ BATON_GUARDED_BY(mutex_) = 0;  // entries of peers_ that are not up
  uint32_t num_open_transfers_ BATON_GUARDED_BY(mutex_) = 0;
  bool closed_ BATON_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_TRANSPORT_INBOX_H_
