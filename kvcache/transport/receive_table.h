// ReceiveTable: the transfers that are open on the receiving side, and the judge of every slice
// frame: which block it may fill, or why it is refused. No sockets and no clock: time is an
// argument. Owned by the transport's thread; the sink is called from within.
//
// Invariants
//  1. Admit returns a destination only for an open transfer, the peer and attempt it was opened
//     for, its one epoch, an ordinal and layer inside it, and the granted generation. The slice
//     must not be filled yet. Whatever else arrives is counted and changes nothing.
//  2. A slice becomes filled only in Finish, with the prefill worker's checksum; filled slices
//     never reopen.
//  3. Progress counts only grow, and "complete" is reported once.
#ifndef BATON_KVCACHE_TRANSPORT_RECEIVE_TABLE_H_
#define BATON_KVCACHE_TRANSPORT_RECEIVE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "kvcache/kv_memory.h"
#include "kvcache/transport/frame.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/transport_counters.h"

namespace baton::kv {

// Progress of a transfer is reported at most this often (microseconds), milestones apart.
inline constexpr int64_t kProgressIntervalUs = 1000;

// The table; see the file comment.
class ReceiveTable {
 public:
  // The blocks and all else outlive the table; `sink` may be set later, before the first Open.
  ReceiveTable(const KvMemory& memory, TransportCounters* counters);
  ~ReceiveTable();
  void set_sink(KvTransportSink* sink) { sink_ = sink; }

  // InvalidArgument when a size or block of `spec` is outside the memory's limits. Any thread.
  static Status Validate(const ReceiveSpec& spec, const KvMemory& memory);

  // Opens a validated transfer whose id is not open. `epoch` is that of the peer's connection, 0
  // when there is none yet.
  void Open(ReceiveSpec spec, uint64_t epoch);
  // Nothing more of it counts or is admitted, as if it were unknown already: for who must wait for
  // a copy before Close.
  void BeginClose(TransferId transfer);
  // Forgets a transfer and confirms it to the sink, also when it is unknown. Returns whether it was
  // open.
  bool Close(TransferId transfer);

  // Where the slice of `header` goes, or null when it is refused (counted, reported when it ought
  // to).
  std::byte* Admit(Incarnation peer, uint64_t epoch, const FrameHeader& header);
  // The bytes of an admitted slice are in place and gave `checksum`; true when the slice is good. A
  // transfer closed meanwhile is a refusal.
  bool Finish(const FrameHeader& header, uint64_t checksum, int64_t now_us);

  // Reports progress that is due. Returns when to call again, 0 = not before the next Finish.
  int64_t FlushProgress(int64_t now_us);

  size_t num_open() const { return transfers_.size(); }

 private:
  struct Transfer;

  // Null for one that is being closed.
  Transfer* Find(TransferId transfer);
  void Refuse(const FrameHeader& header, BadSliceReason reason, bool report);
  void ReportProgress(Transfer* transfer, int64_t now_us);

  const KvMemory memory_;
  TransportCounters* const counters_;
  KvTransportSink* sink_ = nullptr;
  absl::flat_hash_map<TransferId, std::unique_ptr<Transfer>> transfers_;
  std::vector<TransferId> dirty_;  // have progress that was not reported
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_RECEIVE_TABLE_H_
