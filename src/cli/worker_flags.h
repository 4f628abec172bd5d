// Flags that `serve`, `prefill` and `decode` share: serve passes them on to its workers unchanged.
#ifndef BATON_CLI_WORKER_FLAGS_H_
#define BATON_CLI_WORKER_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/kv_layout.h"
#include "src/base/limits.h"
#include "src/base/status.h"
#include "src/cli/flags.h"
#include "src/engine/speculator.h"
#include "src/tls/tls_files.h"

namespace baton::cli {

// How a worker uses its device; texts as typed.
struct WorkerTuning {
  std::string device = "auto";
  std::string tensor_parallel = "1";
  std::string device_weights = "auto";  // see KeepsPacked
  std::string isa = "auto";
  std::string prefix_cache = "on";
  std::string speculate = "off";
  std::string transport = "auto";
  std::string nccl_library;      // "" = where it usually is
  std::string cublaslt_library;  // "" = where it usually is
  std::string kv_dtype = "bf16";
  std::string kv_memory;    // "" = the larger of 1 GiB and one full sequence
  int64_t max_context = 0;  // 0 = the model's
  int64_t max_batch = limits::kMaxRunning;
  int64_t drain_timeout_s = 60;
  std::string secret_file;     // "" = empty secret
  tls::TlsFiles tls;           // empty = plaintext
  bool deterministic = false;  // the processor and the runner without a library always are
  bool allow_inexact = false;
  std::string log_level = "info";
};

// --tls-cert, --tls-key and --tls-ca.
void DeclareTls(FlagSet& flags, tls::TlsFiles& files);

// The flags that give another process the same files.
void AppendTls(const tls::TlsFiles& files, std::vector<std::string>& args);

void DeclareTuning(FlagSet& flags, WorkerTuning& tuning);

// Whether `--device-weights` keeps a worker's weights packed. `is_for_prompts_only`: the worker
// only computes prompts. False: it also generates tokens, or shares its device with one that does.
bool KeepsPacked(const WorkerTuning& tuning, bool is_for_prompts_only);

// Unimplemented for what this build or the device does not have (CUDA; f32 and q8 of devices, fp8
// of the processor), InvalidArgument for a size that is none.
Status CheckTuning(const WorkerTuning& tuning);

// `tuning` must have been checked.
engine::SpeculateMode SpeculateModeOf(const WorkerTuning& tuning);

// `tuning` must have been checked.
kv::KvDtype KvDtypeOf(const WorkerTuning& tuning);

// The bytes of --cluster-secret-file; none for "". NotFound when the file cannot be read or is
// empty.
StatusOr<std::string> ReadClusterSecret(const std::string& path);

// The flags that give another process the same tuning.
void AppendTuning(const WorkerTuning& tuning, std::vector<std::string>& args);

}  // namespace baton::cli

#endif  // BATON_CLI_WORKER_FLAGS_H_
