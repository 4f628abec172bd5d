// SimTransport: the KvTransport of one simulated worker. Bytes really move between the arenas. The
// shipped ReceiveTable judges each slice, with the shipped checksums. So a flipped bit or a late
// frame is found, or not, as in a real worker. One thread.
//
// A link is one connection, dialled by the prefill worker. Some links push (the bytes are taken
// when they are sent, as over tcp), some pull (the bytes are read from the sender's arena when they
// arrive, as over shm): a late pull of a block that is used for something else reads the new bytes.
#ifndef BATON_SIM_SIM_TRANSPORT_H_
#define BATON_SIM_SIM_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/kv_arena.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/receive_table.h"
#include "kvcache/transport/transport_counters.h"
#include "src/sim/sim_network.h"
#include "src/sim/sim_process.h"

namespace baton::sim {

// See the file comment.
class SimTransport final : public kv::KvTransport {
 public:
  // `wake`: events wait in the engine's inbox. Lives as long as the world: Start begins a life of
  // the worker, Stop ends it.
  SimTransport(SimProcess* process, SimNetwork* network, const kv::KvArena* arena,
               std::function<void()> wake);

  // ---- KvTransport.
  Status Start(kv::KvTransportSink* sink) override;
  void Stop() override;
  Status SendControl(Incarnation peer, std::string bytes) override;
  Status SendSlices(Incarnation peer, std::span<const kv::SliceRef> slices) override;
  void CloseSend(Incarnation peer, TransferId transfer) override;
  Status OpenReceive(kv::ReceiveSpec spec) override;
  void CloseReceive(TransferId transfer) override;
  kv::TransportStats Stats() const override { return counters_.Snapshot(); }
  std::vector<kv::LinkInfo> Links() const override;

  // ---- Connections; the worker's business. The bytes that a slice counts for on its way, in place
  // of its own bytes.
  void set_slice_wire_bytes(size_t num_bytes) { slice_wire_bytes_ = num_bytes; }
  void set_incarnation(Incarnation incarnation) { incarnation_ = incarnation; }
  Incarnation incarnation() const { return incarnation_; }
  SimProcess& process() { return *process_; }
  bool IsUp(Incarnation peer) const { return links_.find(peer) != links_.end(); }
  // This end of a connection is ready.
  void LinkUp(SimTransport* peer, uint64_t epoch, bool pulls, bool dialled);
  // This end of connection `epoch` has ended; 0 = of any. A newer one is not touched.
  void LinkDown(Incarnation peer, uint64_t epoch, std::string_view reason);
  // The epoch of the connection to `peer`; 0 = none.
  uint64_t EpochOf(Incarnation peer) const;
  // The other ends, of this end's connections.
  std::vector<SimTransport*> Peers() const;
  // The ends that this end dialled, by the life that it reached.
  std::vector<std::pair<Incarnation, SimTransport*>> Dialled() const;

  // Hands the engine the control messages that arrived by now, as its transport's thread does while
  // a step runs.
  void DeliverControls();

 private:
  // One end of a connection.
  struct Link {
    SimTransport* peer = nullptr;
    uint64_t epoch = 0;
    bool pulls = false;
    bool dialled = false;
    uint32_t num_in_flight = 0;  // slices on their way to the peer
  };
  // Slices that were sent together.
  struct Batch {
    SimTransport* sender = nullptr;
    Incarnation from;
    uint64_t epoch = 0;
    bool counted = true;  // in the sender's num_in_flight
    std::vector<kv::SliceRef> slices;
    std::vector<std::byte> bytes;  // [slices][SliceBytes]; empty = pulled on arrival
    bool flips_bit = false;
    uint64_t flip_place = 0;
  };
  // A control message on its way or waiting for its peer.
  struct Control {
    Incarnation peer;
    uint64_t epoch = 0;
    std::string bytes;
    int64_t parked_until_us = 0;
  };
  // When a control message arrives: the time, then its number.
  using ArrivalKey = std::pair<int64_t, uint64_t>;

  void SendNow(const Link& link, std::string bytes);
  // At this end, the receiver of the message.
  void ExpectControl(int64_t arrival_us, Control control);
  void TakeControl(Control control);
  void TakeBatch(const Batch& batch);
  void TakeSlice(const Batch& batch, size_t slice_idx);
  void Flush();
  void DropParked();

  SimProcess* const process_;
  SimNetwork* const network_;
  const kv::KvArena* const arena_;
  size_t slice_wire_bytes_;
  const std::function<void()> wake_;
  Incarnation incarnation_;
  kv::KvTransportSink* sink_ = nullptr;
  kv::TransportCounters counters_;
  std::unique_ptr<kv::ReceiveTable> receives_;  // of this life
  std::map<Incarnation, Link> links_;
  std::vector<Control> parked_;
  std::map<ArrivalKey, Control> arriving_;
  uint64_t next_arrival_ = 0;
  std::vector<std::byte> scratch_;  // one slice
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_TRANSPORT_H_
