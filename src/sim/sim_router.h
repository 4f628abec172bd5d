// SimRouter: one simulated router process: the shipped RouterCore with its registry, placement,
// resume and merging, and, in place of gRPC, the streams to the workers. One thread.
#ifndef BATON_SIM_SIM_ROUTER_H_
#define BATON_SIM_SIM_ROUTER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "baton/v1/worker.pb.h"
#include "src/obs/baton_metrics.h"
#include "src/router/router_core.h"
#include "src/sim/sim_streams.h"

namespace baton::sim {

// See the file comment.
class SimRouter final : public router::WorkerConnector {
 public:
  SimRouter(const router::RouterCoreConfig& config, SimFabric* fabric, SimProcess* process);
  ~SimRouter() override;

  // Begins a life: an empty table, no workers.
  void Boot();
  // Ends it: streams break, clients get nothing more.
  void Kill();

  // The core opens a session.
  std::unique_ptr<router::WorkerSession> Connect(router::SessionRef session,
                                                 const router::WorkerDescription& worker) override;

  // A client's request, in this process. `request.received_us` is set here.
  void Submit(RequestUid uid, router::GenerateRequest request,
              std::shared_ptr<router::ResponseSink> sink);
  void Cancel(RequestUid uid);
  // An operator asks for it: the worker is told to leave, if it is registered here.
  void AskToLeave(std::string_view worker_id);

  // ---- What workers send; in this process.
  void OnReport(const std::shared_ptr<SimLease>& lease, const SimLetter& letter);
  void OnLeaseLost(const std::shared_ptr<SimLease>& lease);
  void OnSessionLost(const std::shared_ptr<SimSessionStream>& stream, std::string_view why);
  void OnMessage(const std::shared_ptr<SimSessionStream>& stream, const SimLetter& letter);
  // All streams with `worker` end at this end.
  void BreakWith(const SimWorker* worker, std::string_view why);

  SimProcess& process() { return *process_; }
  SimFabric& fabric() { return *fabric_; }
  const router::RouterCore* core() const { return core_.get(); }  // null while dead
  const obs::BatonMetrics& metrics() const { return metrics_; }
  // The identity of this life.
  Incarnation incarnation() const;
  // It is being killed: nothing is sent on purpose any more.
  bool is_dying() const { return dying_; }
  // Nothing is live, and nothing is counted as placed at any worker.
  Status CheckEmpty() const;

 private:
  void OnHello(const std::shared_ptr<SimLease>& lease, const SimLetter& letter,
               v1::WorkerHello* hello);
  void Tick();
  SimWorker* FindWorker(std::string_view worker_id) const;

  const router::RouterCoreConfig config_;
  SimFabric* const fabric_;
  SimProcess* const process_;
  obs::MetricsRegistry registry_;
  const obs::BatonMetrics metrics_;
  std::unique_ptr<router::RouterCore> core_;
  std::vector<std::shared_ptr<SimLease>> leases_;
  std::vector<std::shared_ptr<SimSessionStream>> streams_;
  uint64_t next_lease_ = 1;
  bool dying_ = false;

  friend class SimSession;
  friend class SimLeaseStream;
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_ROUTER_H_
