#include "src/cli/worker_flags.h"

#include "src/base/limits.h"
#include "src/base/regular_file.h"
#include "src/base/size_text.h"
#include "src/model/compute_device.h"

namespace baton::cli {

using device::DeviceKind;
using device::DeviceKindName;
using device::ParseDeviceKind;
using engine::SpeculateMode;
using engine::SpeculateModeName;
using kv::KvDtype;
using kv::KvDtypeNamed;
using model::CheckDeviceInBuild;
using tls::CheckTlsFlags;
using tls::TlsFiles;

namespace {

// The help offers what this build has; the rest is refused by name.
void DeclareDevice(FlagSet& flags, std::string& device) {
  std::vector<std::string> choices = {"auto", "cpu"};
  std::vector<std::string> missing;
  for (const DeviceKind kind : {DeviceKind::kCuda, DeviceKind::kSimt}) {
    std::vector<std::string>& list = CheckDeviceInBuild(kind).ok() ? choices : missing;
    list.emplace_back(DeviceKindName(kind));
  }
  flags.AddChoice("--device", device, choices,
                  "where to compute; auto = a GPU if this build can use the machine's, else the "
                  "processor; simt = CUDA sources on the processor, for tests: very slow",
                  missing);
}

// Types of K and V that no device has.
bool IsOfProcessor(std::string_view kv_dtype) { return kv_dtype == "f32" || kv_dtype == "q8"; }

Status CheckTensorParallel(const WorkerTuning& tuning, bool is_processor) {
  if (tuning.tensor_parallel == "1") return OkStatus();
  if (is_processor) {
    return InvalidArgument(
        "--tensor-parallel {} divides a model among GPUs, and the processor computes it whole",
        tuning.tensor_parallel);
  }
  if (IsOfProcessor(tuning.kv_dtype)) {
    return Unimplemented(
        "--kv-dtype {} with --tensor-parallel {}: GPUs store K and V in bf16 or "
        "fp8",
        tuning.kv_dtype, tuning.tensor_parallel);
  }
  return OkStatus();
}

// Rows of a GPU's step are sampled on the GPU, one a sequence.
Status CheckSpeculate(const WorkerTuning& tuning, bool is_device) {
  if (tuning.speculate == "off" || !is_device) return OkStatus();
  return Unimplemented(
      "--speculate {}: device {} computes one token of a sequence in a step; use "
      "off, or --device cpu",
      tuning.speculate, tuning.device);
}

Status CheckCublasLt(const WorkerTuning& tuning, bool is_processor) {
  if (tuning.cublaslt_library.empty()) return OkStatus();
  if (tuning.deterministic) {
    return InvalidArgument(
        "--cublaslt-library {}: with --deterministic all products are by own kernels; leave one "
        "out",
        tuning.cublaslt_library);
  }
  if (tuning.tensor_parallel != "1") {
    return InvalidArgument(
        "--cublaslt-library {}: a model divided by --tensor-parallel {} multiplies by own kernels; "
        "leave one out",
        tuning.cublaslt_library, tuning.tensor_parallel);
  }
  if (is_processor) {
    return InvalidArgument("--cublaslt-library {}: cuBLASLt is for GPUs, not for the processor",
                           tuning.cublaslt_library);
  }
  return OkStatus();
}

}  // namespace

void DeclareTls(FlagSet& flags, TlsFiles& files) {
  flags.AddFile(
      "--tls-cert", files.cert,
      "certificate (PEM) of this process: gRPC and KV over tcp are then encrypted, and only "
      "processes with a certificate of --tls-ca belong to the cluster");
  flags.AddFile("--tls-key", files.key, "private key (PEM) of --tls-cert");
  flags.AddFile("--tls-ca", files.ca,
                "certificates (PEM) of who signs for this cluster, and only it");
}

void AppendTls(const TlsFiles& files, std::vector<std::string>& args) {
  if (files.empty()) return;
  args.push_back("--tls-cert=" + files.cert);
  args.push_back("--tls-key=" + files.key);
  args.push_back("--tls-ca=" + files.ca);
}

void DeclareTuning(FlagSet& flags, WorkerTuning& tuning) {
  DeclareDevice(flags, tuning.device);
  flags.AddChoice("--tensor-parallel", tuning.tensor_parallel, {"1", "2", "4", "8"},
                  "GPUs of one worker, the first so many: each computes a part of every layer, and "
                  "their memories hold one model together");
  flags.AddChoice(
      "--device-weights", tuning.device_weights, {"auto", "packed", "bf16"},
      "how a device keeps quantised weights: packed (4.5 to 9 bits each), or dequantised at load; "
      "answers are the same. bf16 is faster in steps of more than 128 rows. auto = bf16 in a "
      "prefill "
      "worker that has a device for itself, else packed");
  flags.AddChoice("--isa", tuning.isa, {"auto", "avx512", "avx2", "portable"},
                  "instruction set of the CPU backend");
  flags.AddChoice(
      "--transport", tuning.transport, {"auto", "shm", "tcp", "nccl", "cuda_ipc"},
      "how KV blocks cross; auto = shm within a host and tcp between hosts; nccl = "
      "between the memories of GPUs, by the first one of each worker; cuda_ipc = within "
      "the memory of one GPU that workers of a host share, or between those of GPUs "
      "that each worker sees");
  flags.AddText(
      "--nccl-library", tuning.nccl_library,
      "the libnccl.so.2 of --transport nccl; default: the environment's BATON_NCCL_LIBRARY, "
      "the loader's path, Python's packages. --device simt takes only what is named here");
  flags.AddText(
      "--cublaslt-library", tuning.cublaslt_library,
      "the libcublasLt.so.13 that multiplies prompts on a GPU unless --deterministic is given; "
      "default: the environment's BATON_CUBLASLT_LIBRARY, the loader's path, Python's "
      "packages; own kernels where there is none. --device simt looks nowhere else, and the "
      "processor needs none");
  flags.AddChoice(
      "--kv-dtype", tuning.kv_dtype, {"bf16", "f32", "fp8", "q8"},
      "type of stored K and V; f32 and q8 are of the processor, fp8 is of devices. fp8 and q8 take "
      "half the memory and half the bytes on the way; all workers of a model have the same");
  flags.AddText("--kv-memory", tuning.kv_memory,
                "bytes of the KV pool, e.g. 2GiB; default and 0: the larger of 1GiB and one full "
                "sequence");
  flags.Add("--max-context", tuning.max_context, {0, limits::kMaxContextTokens},
            "longest sequence in tokens; 0 = the model's");
  flags.Add("--max-batch", tuning.max_batch, {1, limits::kMaxRunning},
            "most sequences that a decode worker runs at once (a prefill worker: prompts, 16 at "
            "most); fewer run where more would add no throughput by its measured steps, and the "
            "next wait in the router's queue");
  flags.AddChoice("--prefix-cache", tuning.prefix_cache, {"on", "off"},
                  "keep KV blocks and reuse them for prompts that begin alike");
  flags.AddChoice(
      "--speculate", tuning.speculate, {"off", "ngram", "auto"},
      "a decode step also verifies guesses of the tokens to come, taken from the "
      "request's own text; answers and log-probabilities stay the same. ngram = wherever "
      "the text repeats itself; auto = where it pays, as measured; of the processor");
  flags.Add("--drain-timeout", tuning.drain_timeout_s, {0, limits::kMaxDrainTimeoutS},
            "seconds that running streams get after SIGTERM");
  flags.AddFile("--cluster-secret-file", tuning.secret_file,
                "file whose bytes the router and all workers of this cluster share");
  DeclareTls(flags, tuning.tls);
  flags.Add(
      "--deterministic", tuning.deterministic,
      "equal bits whatever the batch: a GPU multiplies by own kernels only, not by cuBLASLt, "
      "which is faster for prompts and whose answers say exact=false; --device cpu always has "
      "them");
  flags.Add("--allow-inexact", tuning.allow_inexact,
            "pair with workers of other numerics; answers of such a pair say exact=false");
  flags.AddChoice("--log-level", tuning.log_level, {"debug", "info", "warn", "error"},
                  "what is logged");
}

bool KeepsPacked(const WorkerTuning& tuning, bool is_for_prompts_only) {
  if (tuning.device_weights == "auto") return !is_for_prompts_only;
  return tuning.device_weights == "packed";
}

Status CheckTuning(const WorkerTuning& tuning) {
  BATON_RETURN_IF_ERROR(CheckTlsFlags(tuning.tls));
  BATON_ASSIGN_OR_RETURN(const DeviceKind kind, ParseDeviceKind(tuning.device));
  BATON_RETURN_IF_ERROR(CheckDeviceInBuild(kind));
  const bool is_device = kind == DeviceKind::kCuda || kind == DeviceKind::kSimt;
  if (is_device && IsOfProcessor(tuning.kv_dtype)) {
    return Unimplemented("--kv-dtype {}: device {} stores K and V in bf16 or fp8", tuning.kv_dtype,
                         tuning.device);
  }
  const bool is_processor =
      kind == DeviceKind::kCpu ||
      (kind == DeviceKind::kUnspecified && !CheckDeviceInBuild(DeviceKind::kCuda).ok());
  if (is_processor && tuning.kv_dtype == "fp8") {
    return Unimplemented("--kv-dtype fp8: device cpu stores K and V in bf16 or f32, or in q8{}",
                         kind == DeviceKind::kCpu ? "" : "; this build has no GPU to choose");
  }
  BATON_RETURN_IF_ERROR(CheckSpeculate(tuning, is_device));
  BATON_RETURN_IF_ERROR(CheckTensorParallel(tuning, is_processor));
  if (tuning.device_weights == "bf16" && kind == DeviceKind::kCpu) {
    return InvalidArgument(
        "--device-weights bf16 is for devices; --device cpu always keeps weights packed");
  }
  if (tuning.transport == "cuda_ipc" && kind == DeviceKind::kCpu) {
    return InvalidArgument(
        "--transport cuda_ipc shares a GPU's memory, and --device cpu has none; use auto, shm or "
        "tcp");
  }
  if (tuning.transport == "nccl" && kind == DeviceKind::kCpu) {
    return InvalidArgument(
        "--transport nccl moves KV between GPUs, and --device cpu has none; use auto, shm or tcp");
  }
  if (!tuning.nccl_library.empty() && tuning.transport != "nccl") {
    return InvalidArgument("--nccl-library goes with --transport nccl, not with {}",
                           tuning.transport);
  }
  BATON_RETURN_IF_ERROR(CheckCublasLt(tuning, is_processor));
  if (tuning.max_context == 1) {
    return InvalidArgument(
        "--max-context 1 has no room for a token of the prompt and one of the answer; the smallest "
        "is 2, a chat needs some dozens more for its template, and 0 is the model's own");
  }
  if (!tuning.kv_memory.empty()) {
    const StatusOr<uint64_t> bytes = ParseSize(tuning.kv_memory);
    if (!bytes.ok()) return WithPrefix(bytes.status(), "--kv-memory");
  }
  return OkStatus();
}

SpeculateMode SpeculateModeOf(const WorkerTuning& tuning) {
  for (const SpeculateMode mode : {SpeculateMode::kNgram, SpeculateMode::kAuto}) {
    if (tuning.speculate == SpeculateModeName(mode)) return mode;
  }
  return SpeculateMode::kOff;
}

KvDtype KvDtypeOf(const WorkerTuning& tuning) {
  return KvDtypeNamed(tuning.kv_dtype).value_or(KvDtype::kBf16);
}

StatusOr<std::string> ReadClusterSecret(const std::string& path) {
  if (path.empty()) return std::string();
  constexpr size_t kMaxSecretBytes = size_t{64} << 10;
  StatusOr<std::string> secret = ReadInput(path, kMaxSecretBytes);
  if (!secret.ok()) {
    return WithPrefix(secret.status(), fmt::format("--cluster-secret-file {}", path));
  }
  if (secret->empty()) return InvalidArgument("--cluster-secret-file {} is empty", path);
  return secret;
}

void AppendTuning(const WorkerTuning& tuning, std::vector<std::string>& args) {
  args.push_back("--device=" + tuning.device);
  args.push_back("--tensor-parallel=" + tuning.tensor_parallel);
  args.push_back("--device-weights=" + tuning.device_weights);
  args.push_back("--isa=" + tuning.isa);
  args.push_back("--transport=" + tuning.transport);
  if (!tuning.nccl_library.empty()) args.push_back("--nccl-library=" + tuning.nccl_library);
  if (!tuning.cublaslt_library.empty()) {
    args.push_back("--cublaslt-library=" + tuning.cublaslt_library);
  }
  args.push_back("--kv-dtype=" + tuning.kv_dtype);
  if (!tuning.kv_memory.empty()) args.push_back("--kv-memory=" + tuning.kv_memory);
  args.push_back(fmt::format("--max-context={}", tuning.max_context));
  args.push_back(fmt::format("--max-batch={}", tuning.max_batch));
  args.push_back("--prefix-cache=" + tuning.prefix_cache);
  args.push_back("--speculate=" + tuning.speculate);
  args.push_back(fmt::format("--drain-timeout={}", tuning.drain_timeout_s));
  if (!tuning.secret_file.empty()) {
    args.push_back("--cluster-secret-file=" + tuning.secret_file);
  }
  AppendTls(tuning.tls, args);
  if (tuning.deterministic) args.push_back("--deterministic");
  if (tuning.allow_inexact) args.push_back("--allow-inexact");
  args.push_back("--log-level=" + tuning.log_level);
}

}  // namespace baton::cli
