// ReplayWorld: the cluster of one replay and its run (replay.h). One thread; one run per object.
#ifndef BATON_SIM_REPLAY_WORLD_H_
#define BATON_SIM_REPLAY_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kvcache/kv_layout.h"
#include "src/sim/replay.h"
#include "src/sim/replay_client.h"
#include "src/sim/sim_router.h"
#include "src/sim/sim_worker.h"

namespace baton::sim {

// The layout of a replay's blocks: small, since nothing reads their bytes.
kv::KvLayout ReplayLayout(const ReplayWorker& worker);

// See the file comment.
class ReplayWorld {
 public:
  // Checked options; the rows outlive it.
  explicit ReplayWorld(const ReplayOptions& options);
  StatusOr<ReplayReport> Run();

 private:
  void MakeProcesses();
  void SetLinks();
  void Arrive(size_t row_idx);
  void Ask(size_t row_idx);
  void OnEnd(const ReplayClient& client);
  std::vector<TokenId> Prompt(const loadgen::TraceRow& row, size_t row_idx) const;
  int64_t BusyUs(WorkerRole role) const;

  const ReplayOptions options_;
  Status failure_;
  EventQueue events_;
  SimNetwork network_;
  SimFabric fabric_;
  std::shared_ptr<router::ModelInfo> model_;
  // Destroyed from the last to the first: the router and workers before what they use.
  std::vector<std::unique_ptr<SimProcess>> processes_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::unique_ptr<SimRouter> router_;
  std::map<uint64_t, std::shared_ptr<ReplayClient>> live_;  // by row
  bool all_made_ = false;
  int64_t first_us_ = 0;
  int64_t last_us_ = 0;
  std::vector<double> ttft_ms_;
  std::vector<double> second_ms_;
  std::vector<double> itl_ms_;
  std::vector<double> e2e_ms_;
  std::vector<double> refused_ms_;
  ReplayReport report_;
};

}  // namespace baton::sim

#endif  // BATON_SIM_REPLAY_WORLD_H_
