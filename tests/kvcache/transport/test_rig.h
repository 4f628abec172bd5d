// The parts that the transport tests share: a sink that records and can be waited for, and a pair
// of workers joined by any of the transports.
#ifndef BATON_TESTS_KVCACHE_TRANSPORT_TEST_RIG_H_
#define BATON_TESTS_KVCACHE_TRANSPORT_TEST_RIG_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/kv_arena.h"
#include "kvcache/transport/ipc/ipc_transport.h"
#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/local_transport.h"
#include "kvcache/transport/nccl/nccl_transport.h"
#include "tests/nccl/nccl_device.h"

namespace baton::kv::test {

// Small blocks: 3 layers of 4 KiB, so that thousands of slices are quick.
KvLayout SmallLayout();
// SmolLM2-135M's: 30 layers of 12 KiB.
KvLayout ModelLayout();

// An arena that never fails for want of memory in a test.
std::unique_ptr<KvArena> MakeArena(const KvLayout& layout, uint32_t num_blocks);
// A slice of all heads, whether one memory has it or several ranks.
std::vector<std::byte> ReadSlice(const KvMemory& memory, BlockIndex block, uint32_t layer);
// Bytes of (block, layer) drawn from `seed`.
void FillSlice(const KvMemory& memory, BlockIndex block, uint32_t layer, uint64_t seed);
bool SameSlice(const KvMemory& a, BlockIndex block_a, const KvMemory& b, BlockIndex block_b,
               uint32_t layer);
// True when every byte of the block has this value.
bool BlockIs(const KvMemory& memory, BlockIndex block, std::byte value);
void SetBlock(const KvMemory& memory, BlockIndex block, std::byte value);

// Everything that a transport told, under one lock.
struct Recorded {
  std::vector<PeerUp> ups;
  std::vector<std::pair<Incarnation, std::string>> downs;
  std::vector<std::pair<Incarnation, std::string>> controls;
  std::map<uint64_t, uint32_t> slices_done;  // by transfer
  std::set<uint64_t> complete;
  std::map<uint64_t, uint32_t> num_progress;
  std::vector<BadSlice> bad_slices;
  std::multiset<uint64_t> receives_closed;
  std::multiset<std::pair<uint64_t, uint64_t>> sends_closed;  // peer, transfer
  uint32_t events_after_close = 0;  // of a transfer whose close was confirmed
};

// Records; any thread may wait for a condition on what was recorded.
class RecordingSink : public KvTransportSink {
 public:
  void OnPeerUp(const PeerUp& peer) override;
  void OnPeerDown(Incarnation peer, const Status& status) override;
  void OnControl(Incarnation peer, std::string bytes) override;
  void OnReceiveProgress(TransferId transfer, uint32_t slices_done, bool complete) override;
  void OnBadSlice(const BadSlice& slice) override;
  void OnReceiveClosed(TransferId transfer) override;
  void OnSendClosed(Incarnation peer, TransferId transfer) override;

  // False when the condition did not come to hold within a generous limit (a failed test, not a
  // timing).
  bool WaitFor(const std::function<bool(const Recorded&)>& condition);
  Recorded Snapshot();

  bool WaitUp(size_t count) {
    return WaitFor([count](const Recorded& r) { return r.ups.size() >= count; });
  }
  bool WaitDown(size_t count) {
    return WaitFor([count](const Recorded& r) { return r.downs.size() >= count; });
  }
  bool WaitComplete(TransferId transfer) {
    return WaitFor(
        [transfer](const Recorded& r) { return r.complete.count(transfer.value()) > 0; });
  }
  bool WaitReceiveClosed(TransferId transfer) {
    return WaitFor(
        [transfer](const Recorded& r) { return r.receives_closed.count(transfer.value()) > 0; });
  }
  bool WaitSendClosed(Incarnation peer, TransferId transfer) {
    return WaitFor([=](const Recorded& r) {
      return r.sends_closed.count({peer.value(), transfer.value()}) > 0;
    });
  }
  bool WaitControls(size_t count) {
    return WaitFor([count](const Recorded& r) { return r.controls.size() >= count; });
  }

 private:
  void Record(const std::function<void(Recorded*)>& change);

  std::mutex mutex_;
  std::condition_variable changed_;
  Recorded recorded_;  // guarded by mutex_
};

// Waits until `condition` holds, asking every millisecond; for counters that nobody signals.
bool Eventually(const std::function<bool()>& condition);

// One worker: blocks, sink and transport.
struct Worker {
  Incarnation incarnation;
  std::unique_ptr<KvArena> arena;
  nccl_test::KvDevice device;  // has the blocks instead of the arena where one is used
  std::unique_ptr<RecordingSink> sink = std::make_unique<RecordingSink>();
  std::unique_ptr<KvTransport> transport;
  KvEndpoint* endpoint = nullptr;  // null for local

  KvMemory blocks() const {
    return device.device != nullptr ? device.parts.memory : arena->memory();
  }
};

// Ends the sending of a transfer, once for each id, and waits until its source blocks may be
// written again.
bool EndSend(const Worker& sender, Incarnation peer, TransferId transfer);

// How often the worker ended a connection, or refused a slice, for this reason.
uint64_t Closes(const Worker& worker, CloseReason reason);
uint64_t Refused(const Worker& worker, BadSliceReason reason);
bool WaitClose(const Worker& worker, CloseReason reason, uint64_t count = 1);

// Timers that make tests quick where time has to pass.
KvEndpointTimers QuickTimers();

// Workers of one kind of transport that can reach each other.
class Rig {
 public:
  explicit Rig(TransportKind kind, const KvLayout& layout = SmallLayout(),
               uint32_t num_blocks = 64);

  // A started worker that accepts connections, or one that dials the given ones.
  Worker MakeDecode(const std::string& worker_id, Incarnation incarnation = Incarnation(0));
  Worker MakePrefill(const std::string& worker_id, const std::vector<const Worker*>& decodes);
  // Lets `prefill` dial exactly these.
  void SetDecodes(Worker* prefill, const std::vector<const Worker*>& decodes);

  TransportKind kind() const { return kind_; }
  // local: on a device, as nccl and cuda_ipc always are.
  bool on_device = false;
  // On a device: the runner instead of the fake accelerator.
  bool on_runner = false;
  // On a device: ranks that have the blocks of the workers made from now on, by role.
  uint32_t decode_ranks = 1;
  uint32_t prefill_ranks = 1;
  const KvLayout& layout() const { return layout_; }
  // Changes the options of the workers made from now on.
  std::function<void(KvEndpointOptions*)> tweak;
  std::function<void(NcclTransportOptions*)> tweak_nccl;
  std::function<void(IpcTransportOptions*)> tweak_ipc;

 private:
  Worker Make(const std::string& worker_id, Incarnation incarnation, bool listens);
  KvEndpointOptions EndpointOptions(const Worker& worker, bool listens);
  void MakeTransport(bool listens, Worker* worker);
  nccl_test::KvDevice MakeDevice(bool listens, bool is_shared);
  void MakeNccl(std::unique_ptr<KvEndpoint> endpoint, bool listens, Worker* worker);
  void MakeIpc(bool listens, Worker* worker);
  void MakeLocal(bool dials, Worker* worker);

  const TransportKind kind_;
  const KvLayout layout_;
  const uint32_t num_blocks_;
  // kLocal only.
  std::unique_ptr<LocalHub> hub_;
  std::unique_ptr<device::Accelerator> shared_device_;  // of all workers
  uint64_t next_incarnation_;
  std::map<uint64_t, std::string> names_;
};

// One transfer from the prefill worker's blocks to the decode worker's: ordinal i goes from
// source[i] to dest[i].
struct Transfer {
  TransferId id;
  uint32_t attempt = 1;
  std::vector<BlockIndex> source;
  std::vector<ReceiveBlock> dest;

  uint32_t num_blocks() const { return static_cast<uint32_t>(source.size()); }
};

// Blocks [first_source, +count) to blocks [first_dest, +count) with generations 7, 8, ...
Transfer MakeTransfer(uint64_t id, uint32_t count, uint32_t first_source, uint32_t first_dest);
ReceiveSpec SpecFor(const Transfer& transfer, Incarnation peer);
// References to every slice, layer by layer, checksums of the prefill worker's present bytes.
std::vector<SliceRef> SlicesOf(const Transfer& transfer, const KvMemory& source);
void FillSource(const Transfer& transfer, const KvMemory& source, uint64_t seed);
bool Arrived(const Transfer& transfer, const KvMemory& source, const KvMemory& dest);
// Sends a whole transfer from `p` to `d` and checks it; afterwards its source blocks may be written
// again.
void ExpectTransferWorks(Worker* p, Worker* d, uint64_t id);

}  // namespace baton::kv::test

#endif  // BATON_TESTS_KVCACHE_TRANSPORT_TEST_RIG_H_
