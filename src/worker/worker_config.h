// How a worker process is set up: the flags of `baton prefill` and `baton decode` as values.
#ifndef BATON_WORKER_WORKER_CONFIG_H_
#define BATON_WORKER_WORKER_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kvcache/kv_layout.h"
#include "kvcache/transport/transport_types.h"
#include "src/base/limits.h"
#include "src/base/worker_role.h"
#include "src/device/device.h"
#include "src/engine/speculator.h"
#include "src/http/site_rules.h"
#include "src/model/shared_weights.h"
#include "src/obs/metric_aliases.h"
#include "src/tls/tls_files.h"

namespace baton::worker {

// See the file comment. Addresses are "host:port"; port 0 = any free one.
struct WorkerConfig {
  WorkerRole role = WorkerRole::kDecode;
  std::string worker_id;             // 1..64 of [a-z0-9-]
  std::vector<std::string> routers;  // at least one
  std::string listen = "127.0.0.1:0";
  std::string kv_listen;  // "" = the host of `listen` and any port
  std::string advertise;  // host or host:port that others use; "" = the host of `listen`
  std::string admin = "127.0.0.1:0";
  std::string model_path;      // of a .gguf file
  std::string model_argument;  // MODEL of the command line, for messages; "" = model_path
  std::string model_id;        // public name
  std::string cluster_secret;
  tls::TlsFiles tls;  // empty = plaintext
  uint32_t num_threads = 1;
  // The descriptor of the core budget that the workers of this host share, and this worker's number
  // in it. -1 = no budget: the worker has num_threads threads for itself.
  int core_budget_fd = -1;
  uint32_t core_member = 0;
  model::SharedWeights shared_weights;  // with the other workers of this server, on the processor
  uint64_t kv_memory_bytes = 0;  // 0 = the larger of 1 GiB and one full sequence plus a block
  uint32_t max_context = 0;      // 0 = the model's
  // Sequences that decode at once. For a prefill worker: prompts, at most limits::kMaxPrefilling.
  uint32_t max_batch = limits::kMaxRunning;
  int64_t itl_objective_us = 0;  // longest wanted gap between tokens; 0 = none
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;
  device::DeviceKind device = device::DeviceKind::kUnspecified;
  bool keeps_packed = true;  // quantised weights, on a device
  uint32_t num_ranks = 1;    // GPUs among which the model is divided; on kSimt all are one device
  kernels::Isa isa = kernels::Isa::kAuto;  // of kCpu
  kv::TransportKind transport = kv::TransportKind::kAuto;
  std::string nccl_library;      // with kNccl: this file; "" = where it usually is
  bool deterministic = false;    // own kernels only, on a device
  std::string cublaslt_library;  // else this file; "" = where it usually is, on kSimt nowhere
  std::string plan_folder;       // what was timed on this machine; "" = it is not kept
  int64_t drain_timeout_ms = 60'000;
  bool allow_inexact = false;
  bool prefix_cache = true;
  engine::SpeculateMode speculate = engine::SpeculateMode::kOff;  // only with kCpu
  obs::MetricAliasSet metric_aliases;
  // A collector of spans, as --otlp-endpoint has it; "" = what the environment says
  // (otlp_target.h).
  std::string otlp_endpoint;
  http::SiteRules sites;  // who may reach the admin port from a browser
};

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_CONFIG_H_
