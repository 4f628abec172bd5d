// SimWorker: one simulated prefill or decode process. Events drive the shipped engine with its
// scheduler, block pool, prefix cache and hand-offs. In place of src/worker it has the streams to
// the routers. One thread.
//
// A turn of the engine runs at one instant of the world and takes simulated time. Its messages
// leave when the engine's clock has got there, and the next turn waits until it is over.
#ifndef BATON_SIM_SIM_WORKER_H_
#define BATON_SIM_SIM_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "baton/v1/worker.pb.h"
#include "kvcache/kv_arena.h"
#include "src/engine/engine_core.h"
#include "src/engine/prefix_journal.h"
#include "src/engine/transport_sink.h"
#include "src/sim/asked_prefixes.h"
#include "src/sim/sim_model.h"
#include "src/sim/sim_streams.h"
#include "src/sim/sim_transport.h"
#include "src/worker/hello_codec.h"
#include "src/worker/prefix_teller.h"
#include "src/worker/request_codec.h"

namespace baton::sim {

// Tokens of prompt and answer that a simulated worker takes, if not said otherwise.
inline constexpr uint32_t kSimContext = 1024;

// How a worker is made; constant.
struct SimWorkerOptions {
  WorkerRole role = WorkerRole::kDecode;
  uint32_t num_blocks = 192;
  uint32_t max_running = 48;
  uint64_t seed = 1;
  std::shared_ptr<const router::ModelInfo> model;
  SimStepCost cost;
  uint64_t damage_every = 0;  // see SimOptions

  kv::KvLayout layout = SimLayout();
  uint32_t window = 0;  // of all layers of the model; 0 = none
  uint32_t max_context = kSimContext;
  // Makes the model that computes, and that tells `spend` what each layer costs; empty = a SimModel
  // of `cost` and `window`.
  std::function<std::unique_ptr<model::ForwardModel>(std::function<void(int64_t us)> spend)>
      make_model;
  // The last word on the engine's numbers; may be empty.
  std::function<void(engine::EngineConfig*)> tune;
  size_t slice_wire_bytes = 0;  // what a slice counts for on its way; 0 = its own bytes
};

// The secret that keys the chains of a simulated cluster.
inline constexpr std::string_view kSimSecret = "simulated";

// See the file comment.
class SimWorker final : private engine::EngineListener {
 public:
  SimWorker(const SimWorkerOptions& options, SimFabric* fabric, SimProcess* process);
  ~SimWorker() override;

  // Begins a life: empty pool, new incarnation, not registered anywhere yet.
  void Boot();
  // Ends it: connections break, nothing is said.
  void Kill();
  // It is to leave: says so, waits until nothing is held here, ends, and starts again `down_us`
  // later. Nothing happens when it leaves already.
  void Leave(int64_t down_us);
  // Takes a share of the blocks that are available away for a while.
  void TakeBlocks(double share, int64_t for_us);
  // The connection to `router`, or the data connection to `peer`, ends at this end.
  void BreakWith(const SimRouter* router, std::string_view why);
  void BreakLink(SimWorker* peer, uint64_t epoch, std::string_view why);

  // ---- What routers send; in this process.
  void OnMessage(const std::shared_ptr<SimSessionStream>& stream, const SimLetter& letter);
  void OnSessionClosed(const std::shared_ptr<SimSessionStream>& stream);
  void OnDirective(const std::shared_ptr<SimLease>& lease, const SimLetter& letter);
  void OnLeaseClosed(const std::shared_ptr<SimLease>& lease);

  SimProcess& process() { return *process_; }
  SimTransport& transport() { return transport_; }
  const engine::EngineCore* core() const { return core_.get(); }  // null while dead
  Incarnation incarnation() const { return incarnation_; }
  const std::shared_ptr<const router::ModelInfo>& model() const { return options_.model; }
  WorkerRole role() const { return options_.role; }
  bool leaving() const { return leaving_; }
  uint32_t num_blocks() const { return options_.num_blocks; }
  uint64_t num_turns() const { return num_turns_; }
  // The time that its model has computed since the start, all lives together.
  int64_t busy_us() const { return busy_us_; }
  const std::string& name() const { return process_->name(); }

  // Everything that was ever in use has come back: blocks free or cached, nothing live or open.
  Status CheckEmpty() const;
  // The block ledger and the scheduler agree with themselves.
  Status Audit() const;

 private:
  void OnStepEvents(std::span<const engine::TokenEvent> events) override;
  void OnRequestStatus(const engine::RequestStatus& status) override;

  engine::EngineConfig MakeConfig() const;
  worker::HelloFacts Describe() const;
  worker::SessionLimits Limits() const;
  // A turn at `at_us` at the latest.
  void Wake(int64_t at_us);
  void WakeSoon();
  void RunTurn();
  void CheckTurn();
  void Damage();
  void Spend(int64_t us);
  void OnSessionHello(const std::shared_ptr<SimSessionStream>& stream, const SimLetter& letter,
                      const v1::SessionHello& hello);
  void OnOrder(const std::shared_ptr<SimSessionStream>& stream, const SimLetter& letter,
               const v1::RouterMessage& message);
  void OnCancel(const std::shared_ptr<SimSessionStream>& stream, const engine::RequestKey& key);
  void OnPeers(const std::shared_ptr<SimLease>& lease, const std::vector<kv::PeerAddress>& peers);
  void Reject(const std::shared_ptr<SimSessionStream>& stream, const engine::RequestKey& key,
              const Status& why);
  void Send(const std::shared_ptr<SimSessionStream>& stream, size_t num_bytes,
            const v1::WorkerMessage& message, uint64_t mark);
  void Report(const std::shared_ptr<SimLease>& lease, size_t num_bytes,
              const v1::WorkerReport& report, uint64_t mark);
  void SendStatus(const std::shared_ptr<SimSessionStream>& stream,
                  const engine::RequestStatus& status);
  void CheckCached(const engine::RequestStatus& status);

  void WaitUntilIdle(int64_t down_us);
  void End(int64_t down_us);

  void Register(SimRouter* router);
  void ReportLoad();
  void KeepHouse();
  void DialMissing();
  void Dial(const SimPeer& peer);
  // At the decode worker: `from` dials this life.
  void OnDialled(SimWorker* from, Incarnation from_life, Incarnation wanted);
  bool IsWanted(Incarnation peer) const;

  const SimWorkerOptions options_;
  SimFabric* const fabric_;
  SimProcess* const process_;
  loadgen::RandomDraws draws_;
  std::unique_ptr<kv::KvArena> arena_;  // its bytes outlive a life: what is stale looks real
  std::unique_ptr<engine::KvStore> kv_;
  const SimHandoffWire wire_;
  SimTransport transport_;
  const std::unique_ptr<model::ForwardModel> model_;

  // The parts of this life.
  Incarnation incarnation_;
  std::unique_ptr<engine::EngineInbox> inbox_;
  std::unique_ptr<engine::EngineTransportSink> sink_;
  std::unique_ptr<engine::PrefixJournal> journal_;
  std::unique_ptr<engine::EngineCore> core_;
  std::map<engine::SessionId, std::shared_ptr<SimSessionStream>> sessions_;
  std::vector<std::shared_ptr<SimLease>> leases_;
  std::map<Incarnation, SimWorker*> dialling_;
  worker::PrefixCopy held_;
  std::vector<kv::PrefixChange> changes_;
  std::vector<kv::BlockHandle> taken_;  // away from the pool
  std::optional<AskedPrefixes> asked_;
  bool leaving_ = false;
  uint64_t next_session_ = 1;
  int64_t turn_at_us_ = INT64_MAX;
  int64_t busy_until_us_ = 0;
  uint64_t num_turns_ = 0;
  int64_t busy_us_ = 0;
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_WORKER_H_
