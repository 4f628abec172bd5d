// NcclTransport: KV between the memories of two devices by NCCL. There is one communicator of two
// ranks for each pair and direction. It is built when the first slice is offered, never waited for,
// and aborted when anything takes too long. NOTES.md, "NCCL", has the way of a batch. Its thread,
// "kv-nccl", owns communicators and staging too; it hands them to another to be ended (CommEnder).
//
// Invariants (beside SliceTransport's)
//  1. A peer that is slow, silent or dead holds back only its own slices, and buffers no longer
//     than its deadlines (NcclTimers) and what NCCL takes to abort its communicator.
//  2. A byte of a block is read or written only by kernels; no communicator ever sees a block.
//  3. Slices that a failed communicator did not deliver are sent again over the next one; a slice
//     is done once all the same (KvTransport's invariant 3).
//  4. A peer is introduced once its NCCL is known to be the same. One that was given up
//     (NcclLimits::max_failures) is down like one that hung up, and introduced again after a rest.
//
// The table outlives it.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_NCCL_TRANSPORT_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_NCCL_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "kvcache/transport/nccl/nccl_parts.h"
#include "kvcache/transport/slice_transport.h"

namespace baton::kv {

// How a transport is set up.
struct NcclTransportOptions {
  const nccl::NcclTable* table = nullptr;
  SliceDevice device;
  NcclTimers timers;
  NcclLimits limits;
  TransportInboxLimits inbox;
  const Clock* clock = &SystemClock();
};

// Counts of a transport's communicators and their ends; all but `ending` only grow.
struct NcclStats {
  uint64_t built = 0;
  uint64_t batches = 0;   // sent, and received
  uint64_t overruns = 0;  // control messages dropped: too many waited for the thread
  uint64_t lost = 0;      // peers given up: several communicators in a row delivered nothing
  uint64_t ending = 0;    // communicators that are being ended now
  std::array<uint64_t, kNumNcclDropReasons> dropped{};
};

class NcclReceiver;
class NcclSender;

// See the file comment.
class NcclTransport final : public SliceTransport {
 public:
  // `endpoint` is not started and has the device memory's layout. InvalidArgument for a slice that
  // no kernel takes or a buffer that is smaller than one; ResourceExhausted when the device has no
  // room for the buffers, or the host none that may be pinned for their lists.
  static StatusOr<std::unique_ptr<NcclTransport>> Create(const NcclTransportOptions& options,
                                                         std::unique_ptr<KvEndpoint> endpoint);
  ~NcclTransport() override;

  NcclStats CommunicatorStats() const;

 private:
  // Connected; its version is not known yet.
  struct Greeted {
    PeerUp up;
    std::vector<std::string> words;  // messages before the peer's version
    size_t bytes = 0;                // of `words`
  };

  // Connected, of the same version.
  struct Known {
    PeerUp up;
    int64_t rest_us = 0;   // the last one
    int64_t again_us = 0;  // when the peer is introduced again; 0 = it is introduced
  };

  NcclTransport(const NcclTransportOptions& options, std::unique_ptr<KvEndpoint> endpoint);
  void HandleWord(Incarnation peer, const std::string& bytes, int64_t now_us) override;
  void HandleUp(PeerUp up) override;
  void HandleEarly(Incarnation peer, std::string bytes, int64_t now_us) override;
  void HandleDown(Incarnation peer) override;
  int64_t StepMore(int64_t now_us) override;
  void EndMore() override;

  void HandleGreeting(Incarnation peer, uint32_t version, int64_t now_us);
  void GiveUp(Incarnation peer, const std::string& why, bool has_delivered, int64_t now_us);
  bool MakeRoom();
  // Tells the log once when NCCL ends nothing for long; returns when to look again, 0 = never.
  int64_t WatchEnds(int64_t now_us);

  NcclCounters counters_;
  CommEnder ender_;
  uint32_t num_links_ = 0;  // that are not being ended
  CommEnder::End evicted_;  // of the last one that had to make room
  uint64_t num_ended_ = 0;  // when it was last looked at
  int64_t ends_since_us_ = 0;
  bool is_end_told_ = false;
  NcclParts parts_;
  absl::flat_hash_map<Incarnation, Greeted> greeted_;
  absl::flat_hash_map<Incarnation, Known> known_;
  std::unique_ptr<NcclSender> sender_;
  std::unique_ptr<NcclReceiver> receiver_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_NCCL_TRANSPORT_H_
