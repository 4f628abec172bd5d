// WorkerAdmin: a worker's admin port and its metrics, which are read from the engine's snapshots
// when they are scraped; only hand-offs are counted as they happen.
#ifndef BATON_WORKER_WORKER_ADMIN_H_
#define BATON_WORKER_WORKER_ADMIN_H_

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/transport/ipc/ipc_transport.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/nccl/nccl_transport.h"
#include "src/base/mutex.h"
#include "src/base/status.h"
#include "src/device/core_share.h"
#include "src/device/launch_gate.h"
#include "src/engine/engine.h"
#include "src/obs/admin_server.h"
#include "src/obs/baton_metrics.h"
#include "src/obs/metric_aliases.h"
#include "src/obs/span.h"
#include "src/text/grammar_cache.h"
#include "src/worker/machine_rates.h"
#include "src/worker/step_traces.h"

namespace baton::worker {

// The parts that the port shows; everything outlives it.
struct WorkerAdminConfig {
  std::string address;  // "host:port"
  std::string role;
  std::string worker_id;
  std::string model;
  engine::Engine* engine = nullptr;
  kv::KvTransport* transport = nullptr;
  const kv::NcclTransport* nccl = nullptr;   // `transport` where it is NCCL, else null
  const kv::IpcTransport* ipc = nullptr;     // `transport` where it is CUDA IPC, else null
  const device::LaunchGate* gate = nullptr;  // of a divided model, else null
  const device::CoreShare* cores = nullptr;  // null: it lends none
  const text::GrammarCache* grammars = nullptr;
  std::function<Status()> ready;
  uint32_t block_size = 0;       // tokens
  int64_t itl_objective_us = 0;  // 0 = none
  obs::MetricAliasSet aliases;
  http::SiteRules sites;  // who may reach it from a browser
};

// See the file comment. Stops when destroyed.
class WorkerAdmin {
 public:
  // Unavailable naming the address when it is in use.
  static StatusOr<std::unique_ptr<WorkerAdmin>> Start(WorkerAdminConfig config);
  ~WorkerAdmin();

  std::string address() const { return server_->address(); }
  // Counters of the spans of this process.
  const obs::SpanMetrics& span_metrics() const { return span_metrics_; }
  // Sets the limits that the ratios of use compare with; until then these are 0. Any thread.
  void SetRates(const MachineRates& rates);
  // Counts a hand-off that was verified. Engine thread.
  void OnVerified(const engine::RequestStatus& status);
  // Observes and remembers a step that has just ended. Engine thread.
  void OnStep(const scheduler::StepShape& shape, int64_t elapsed_us);
  // Observes the mask of one token of an answer with a grammar. Any thread.
  void OnMask(int64_t took_us) { mask_seconds_->Observe(static_cast<double>(took_us) * 1e-6); }

 private:
  explicit WorkerAdmin(WorkerAdminConfig config);
  void Refresh();
  void RegisterGrammars();
  void RefreshGrammars();
  void RegisterConnectionMetrics();
  void RefreshConnections(const kv::TransportStats& now) BATON_REQUIRES(refresh_mutex_);
  void RefreshNccl() BATON_REQUIRES(refresh_mutex_);
  void RegisterIpc();
  void RefreshIpc() BATON_REQUIRES(refresh_mutex_);
  void RefreshGate() BATON_REQUIRES(refresh_mutex_);
  void RegisterCores();
  void RefreshCores() BATON_REQUIRES(refresh_mutex_);
  Status Live() const;
  StatusOr<std::string> RequestsJson();
  StatusOr<std::string> BlocksJson();

  const WorkerAdminConfig config_;
  obs::MetricsRegistry registry_;
  obs::BatonMetrics metrics_;
  obs::SpanMetrics span_metrics_;
  StepTraces steps_;
  std::array<std::atomic<int64_t>, 3> last_step_us_ = {};  // by phase; the engine's thread writes
  obs::Counter* tls_bytes_total_ = nullptr;
  obs::Histogram* mask_seconds_ = nullptr;
  obs::Gauge* structured_waiting_ = nullptr;
  obs::Gauge* structured_mask_bytes_ = nullptr;
  obs::Gauge* structured_lexer_bytes_ = nullptr;
  obs::Counter* late_masks_total_ = nullptr;
  obs::Counter* checkpoints_kept_total_ = nullptr;
  obs::Counter* checkpoints_dropped_total_ = nullptr;
  obs::Counter* checkpoints_skipped_total_ = nullptr;
  obs::Counter* proposed_tokens_total_ = nullptr;
  obs::Counter* accepted_tokens_total_ = nullptr;
  // With CUDA IPC only.
  obs::Counter* ipc_offers_total_ = nullptr;
  std::array<obs::Counter*, 3> ipc_faults_total_{};
  kv::IpcStats last_ipc_ BATON_GUARDED_BY(refresh_mutex_);
  // With a divided model only.
  obs::Counter* gate_overruns_total_ = nullptr;
  uint64_t last_overruns_ BATON_GUARDED_BY(refresh_mutex_) = 0;
  // With a core budget only.
  obs::Gauge* lent_core_seconds_total_ = nullptr;
  obs::Gauge* borrowed_core_seconds_total_ = nullptr;
  obs::Counter* core_waits_total_ = nullptr;
  obs::Counter* seized_cores_total_ = nullptr;
  device::CoreShareStats last_cores_ BATON_GUARDED_BY(refresh_mutex_);
  // With NCCL only.
  obs::Counter* nccl_built_total_ = nullptr;
  obs::Counter* nccl_batches_total_ = nullptr;
  obs::Counter* nccl_lost_total_ = nullptr;
  obs::Gauge* nccl_ending_ = nullptr;
  std::array<obs::Counter*, kv::kNumNcclDropReasons> nccl_drops_total_{};  // none for kNone
  std::array<obs::Counter*, kv::kNumCloseReasons>
      closes_total_{};  // by CloseReason; none for kNone
  Mutex refresh_mutex_;
  MachineRates rates_ BATON_GUARDED_BY(refresh_mutex_);
  engine::EngineSnapshot last_ BATON_GUARDED_BY(refresh_mutex_);  // counted so far
  kv::TransportStats last_transport_ BATON_GUARDED_BY(refresh_mutex_);
  kv::NcclStats last_nccl_ BATON_GUARDED_BY(refresh_mutex_);
  std::unique_ptr<obs::AdminServer> server_;
};

// The array of /debug/requests, a row for each choice; output_tokens is that of all of them.
std::string RequestsToJson(const std::vector<engine::RequestRow>& requests,
                           std::string_view worker_id);
// The array of /debug/blocks; a free block names no request.
std::string BlocksToJson(const std::vector<kv::BlockInfo>& blocks);

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_ADMIN_H_
