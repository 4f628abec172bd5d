// WorkerAdmin: a worker's admin port and its metrics, which are read from the engine's snapshots
// when they are scraped; only hand-offs are counted as they happen.
#ifndef BATON_WORKER_WORKER_ADMIN_H_
#define BATON_WORKER_WORKER_ADMIN_H_

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/transport/ipc/ipc_transport.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/nccl/nccl_transport.h"
#include "src/base/status.h"
#include "src/device/launch_gate.h"
#include "src/engine/engine.h"
#include "src/obs/admin_server.h"
#include "src/obs/baton_metrics.h"
#include "src/obs/metric_aliases.h"
#include "src/obs/span.h"
#include "src/worker/step_traces.h"

namespace baton {

// The parts that the port shows; everything outlives it.
struct WorkerAdminConfig {
  std::string address;  // "host:port"
  std::string role;
  std::string worker_id;
  std::string model;
  Engine* engine = nullptr;
  KvTransport* transport = nullptr;
  const NcclTransport* nccl = nullptr;  // the same where it is NCCL, else null
  const IpcTransport* ipc = nullptr;    // the same where it is CUDA IPC, else null
  const LaunchGate* gate = nullptr;     // of a divided model, else null
  std::function<Status()> ready;
  uint32_t block_size = 0;  // tokens
  MetricAliasSet aliases;
  SiteRules sites;  // who may reach it from a browser
  // The best that this machine can do, measured at start; 0 = not known, and the ratios stay 0.
  double read_bytes_per_s = 0;
  double flops_per_s = 0;
};

// See the file comment. Stops when destroyed.
class WorkerAdmin {
 public:
  // Unavailable naming the address when it is in use.
  static StatusOr<std::unique_ptr<WorkerAdmin>> Start(WorkerAdminConfig config);
  ~WorkerAdmin();

  std::string address() const { return server_->address(); }
  // Counters of the spans of this process.
  const SpanMetrics& span_metrics() const { return span_metrics_; }
  // Counts a hand-off that was verified. Engine thread.
  void OnVerified(const RequestStatus& status);
  // Observes and remembers a step that has just ended. Engine thread.
  void OnStep(const StepShape& shape, int64_t elapsed_us);

 private:
  explicit WorkerAdmin(WorkerAdminConfig config);
  void Refresh();
  void RegisterConnectionMetrics();
  void RefreshConnections(const TransportStats& now);
  void RefreshNccl();
  void RegisterIpc();
  void RefreshIpc();
  void RefreshGate();
  Status Live() const;
  StatusOr<std::string> RequestsJson();
  StatusOr<std::string> BlocksJson();

  const WorkerAdminConfig config_;
  MetricsRegistry registry_;
  BatonMetrics metrics_;
  SpanMetrics span_metrics_;
  StepTraces steps_;
  std::array<std::atomic<int64_t>, 3> last_step_us_ = {};  // by phase; the engine's thread writes
  Counter* tls_bytes_total_ = nullptr;
  // With CUDA IPC only.
  Counter* ipc_offers_total_ = nullptr;
  std::array<Counter*, 3> ipc_faults_total_{};
  IpcStats last_ipc_;
  // With a divided model only.
  Counter* gate_overruns_total_ = nullptr;
  uint64_t last_overruns_ = 0;
  // With NCCL only.
  Counter* nccl_built_total_ = nullptr;
  Counter* nccl_batches_total_ = nullptr;
  Counter* nccl_lost_total_ = nullptr;
  Gauge* nccl_ending_ = nullptr;
  std::array<Counter*, kNumNcclDropReasons> nccl_drops_total_{};  // none for kNone
  std::array<Counter*, kNumCloseReasons> closes_total_{};         // by CloseReason; none for kNone
  std::mutex refresh_mutex_;                                      // guards last_
  EngineSnapshot last_;                                           // counted so far
  TransportStats last_transport_;
  NcclStats last_nccl_;
  std::unique_ptr<AdminServer> server_;
};

// The array of /debug/requests, a row for each choice; output_tokens is that of all of them.
std::string RequestsToJson(const std::vector<RequestRow>& requests, std::string_view worker_id);
// The array of /debug/blocks; a free block names no request.
std::string BlocksToJson(const std::vector<BlockInfo>& blocks);

}  // namespace baton

#endif  // BATON_WORKER_WORKER_ADMIN_H_
