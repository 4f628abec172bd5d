// SimWorld: a whole cluster in one thread: routers, prefill and decode workers, clients, network
// and faults, on one event queue. Equal options give equal runs, bit for bit. One thread; one run
// per object.
//
//   requests and faults -> the last client is answered -> everybody rests for a lease
//   -> every pool and ledger is empty -> pool-filling requests succeed
#ifndef BATON_SIM_SIM_WORLD_H_
#define BATON_SIM_SIM_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/sim/sim_client.h"
#include "src/sim/sim_faults.h"
#include "src/sim/sim_report.h"
#include "src/sim/sim_router.h"
#include "src/sim/sim_worker.h"
#include "src/sim/sim_workload.h"

namespace baton::sim {

// The settings of a simulation; constant.
struct SimOptions {
  uint64_t seed = 1;
  uint64_t num_requests = 10'000;
  ClusterShape shape;
  FaultWeights faults{};
  // On average; small enough that a million requests meet more than ten thousand.
  double requests_per_fault = 80;
  // Only these faults of the plan happen; nothing = all of them.
  std::optional<std::set<uint32_t>> only_faults;
  double rate = 250;                                      // requests a second
  uint32_t num_blocks = 192;                              // of each worker
  uint32_t max_output = SimWorkload::kMaxOutput;          // tokens of an answer at most
  int64_t step_us = SimStepCost().fixed_us;               // of a step, beside what its rows cost
  bool has_states = false;                                // each sequence of the model has one
  uint32_t window = 0;                                    // of the model; 0, or kMinSimWindow on
  const std::vector<loadgen::TraceRow>* trace = nullptr;  // times and lengths; outlives the run
  bool stop_at_first = false;                             // violation
  // A longer silence between two tokens breaks a promise; 0 = none does.
  int64_t max_silence_us = 0;
  // Every so many turns of a worker a bit of its KV flips where no checksum looks; 0 = never. Shows
  // that wrong KV is seen.
  uint64_t damage_every = 0;
  bool has_rare_fields = false;  // see SimWorkload
  // Applied to every message; empty = to none.
  SimTamper tamper;
};

// See the file comment.
class SimWorld {
 public:
  explicit SimWorld(const SimOptions& options);
  ~SimWorld();

  SimReport Run();
  // Numbers of the faults that happened; after Run.
  const std::vector<uint32_t>& applied_faults() const { return applied_; }

 private:
  void MakeProcesses();
  void Violate(std::string_view kind, std::string text);
  bool stopped() const { return options_.stop_at_first && !report_.violations.empty(); }
  // Runs events until `done`, at most for so long; false when time ran out.
  bool RunUntil(const std::function<bool()>& done, int64_t for_us);

  // Clients.
  void ArriveNext();
  void Ask(SimRequest request, uint32_t router, uint32_t num_tries = 1);
  void OnEnd(SimClient& client);
  void Judge(SimClient& client);
  bool AskAgain(SimClient& client);
  void AskWhenReady(std::shared_ptr<SimRequest> request, uint32_t num_tries, int64_t after_us);
  bool AllAnswered() const { return live_.empty() && num_waiting_ == 0; }
  bool IsFailureAllowed(const SimClient& client) const;
  // As a load balancer does: any router that says that it is ready.
  std::optional<uint32_t> PickRouter();
  void LookForHung();
  // One request at a time that needs nearly all blocks of a pool.
  void FillPools();
  void CheckAllEmpty();

  // Faults.
  void FaultNext();
  bool Apply(const SimFault& fault);
  bool Kill(const SimFault& fault);
  bool Drain(const SimFault& fault);
  void Partition(uint32_t from, uint32_t to, int64_t for_us);
  // After so long TCP gives up and both ends see the connection break.
  void BreakIfStillBlocked(uint32_t from, uint32_t to);
  void BreakDataLink(uint32_t from, uint32_t to, std::string_view why);
  // Resets it now, and again every so often until a time.
  void Flap(uint32_t from, uint32_t to, int64_t every_us, int64_t until_us);
  void Disturb(const SimFault& fault);
  SimWorker* WorkerOf(uint32_t process) const;
  void Finish();

  const SimOptions options_;
  EventQueue events_;
  SimNetwork network_;
  SimFabric fabric_;
  SimWorkload workload_;
  FaultPlan plan_;
  loadgen::RandomDraws draws_;
  SimClientDesk desk_;
  // Destroyed from the last to the first: routers and workers before what they use.
  std::vector<std::unique_ptr<SimProcess>> processes_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::vector<std::unique_ptr<SimRouter>> routers_;
  std::map<uint64_t, std::shared_ptr<SimClient>> live_;  // by number
  uint64_t num_waiting_ = 0;                             // clients that will ask again
  uint64_t next_request_ = 0;
  int64_t ready_us_ = 0;     // when a router was ready for a request last
  bool is_stalled_ = false;  // none will be any more
  uint32_t next_fault_ = 0;
  bool faults_over_ = false;
  bool filling_ = false;
  std::vector<uint32_t> applied_;
  SimReport report_;
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_WORLD_H_
