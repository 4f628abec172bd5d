#include "src/worker/worker_model.h"

#include <utility>
#include <vector>

#include "fmt/format.h"

#include "src/base/clock.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/size_text.h"
#include "src/model/device_model.h"
#include "src/model/hf_folder.h"
#include "src/worker/fast_library.h"
#include "src/worker/worker_schedule.h"

namespace baton::worker {

using device::Accelerator;
using device::CoreShare;
using device::DeviceKind;
using device::DeviceKindName;
using device::ThreadPool;
using engine::SpeculateMode;
using engine::SpeculateModeName;
using kv::KvDtype;
using kv::KvDtypeName;
using kv::TransportKind;
using limits::kMaxBatchTokens;
using limits::kMaxPromptLogRows;
using model::CheckDeviceInBuild;
using model::ComputeDevice;
using model::DeviceModel;
using model::FastMode;
using model::GgufFile;
using model::Model;
using model::OpenComputeDevice;
using model::OpenModelFile;
using scheduler::SchedulerConfig;

namespace {

constexpr uint32_t kCpuBlockSize = 16;
// A tile of attention's keys is then one block.
constexpr uint32_t kDeviceBlockSize = 64;

std::string RanksText(uint32_t num_ranks, size_t num_peers) {
  if (num_ranks == 1) return "";
  return num_peers > 0 ? fmt::format(" and {} others, a rank of the model on each", num_peers)
                       : fmt::format(", all {} ranks of the model on it", num_ranks);
}

}  // namespace

Status FaultOfModel(const WorkerConfig& config, const Status& fault) {
  const bool is_named = !config.model_argument.empty();
  return WithPrefix(fault, "--model " + (is_named ? config.model_argument : config.model_path));
}

// Loading is computing too: the cores are held until the engine takes over.
void WorkerModel::MakePool(const WorkerConfig& config) {
  uint32_t num_threads = config.num_threads;
  if (config.core_budget_fd >= 0) {
    StatusOr<std::unique_ptr<CoreShare>> share =
        CoreShare::Attach(config.core_budget_fd, config.core_member);
    if (share.ok()) {
      cores = *std::move(share);
      num_threads = cores->max_cores();
      cores->BeginStep();
    } else {
      BATON_LOG_WARN("{} lends no cores and borrows none, it has {} threads: core budget: {}",
                     config.worker_id, config.num_threads, std::string(share.status().message()));
    }
  }
  pool = std::make_unique<ThreadPool>(
      ThreadPool::Options{.num_threads = num_threads, .cores = cores.get()});
}

Status WorkerModel::Load(const WorkerConfig& config, bool is_first) {
  StatusOr<std::unique_ptr<GgufFile>> opened = OpenModelFile(config.model_path);
  if (!opened.ok()) return FaultOfModel(config, opened.status());
  const std::unique_ptr<GgufFile> file = *std::move(opened);
  BATON_ASSIGN_OR_RETURN(text, ModelText::Read(*file, config.model_path));
  if (text.eog_tokens.empty()) {
    BATON_LOG_WARN("no token of the model ends an answer: each goes on until max_tokens");
  }
  MakePool(config);
  BATON_RETURN_IF_ERROR(LoadWeights(config, *file, is_first));
  loaded_unix_s = SystemClock().WallUnixMs() / 1000;
  return OkStatus();
}

Status WorkerModel::Share(const WorkerConfig& config, WorkerModel& first) {
  text = first.text;
  loaded_unix_s = first.loaded_unix_s;
  MakePool(config);
  device.kernels = first.device.kernels;
  device.why_processor = first.device.why_processor;
  device.accelerator = std::move(first.part_of_next);
  BATON_ASSIGN_OR_RETURN(
      loaded, first.loaded->Share({.pool = pool.get(), .device = device.accelerator.get()}));
  return OkStatus();
}

Status WorkerModel::LoadWeights(const WorkerConfig& config, const GgufFile& file, bool is_first) {
  const bool is_auto = config.device == DeviceKind::kUnspecified;
  // Each type of K and V but bf16 is one of the processor or one of devices.
  const bool needs_cpu =
      is_auto && (config.kv_dtype == KvDtype::kF32 || config.kv_dtype == KvDtype::kQ8);
  const bool needs_device = config.kv_dtype == KvDtype::kFp8;
  StatusOr<ComputeDevice> opened =
      OpenComputeDevice(needs_cpu ? DeviceKind::kCpu : config.device, config.num_ranks,
                        /*awaits_others=*/config.transport == TransportKind::kNccl);
  if (!opened.ok() && config.num_ranks > 1) {
    return WithPrefix(opened.status(), fmt::format("--tensor-parallel {}", config.num_ranks));
  }
  BATON_ASSIGN_OR_RETURN(device, std::move(opened));
  if (needs_cpu && CheckDeviceInBuild(DeviceKind::kCuda).ok()) {
    device.why_processor =
        fmt::format("--kv-dtype {} is of the processor", KvDtypeName(config.kv_dtype));
  }
  if (device.accelerator != nullptr) {
    if (config.speculate != SpeculateMode::kOff) {
      return Unimplemented(
          "--speculate {}: device {} computes one token of a sequence in a step; "
          "use off, or --device cpu",
          SpeculateModeName(config.speculate), DeviceKindName(device.accelerator->kind()));
    }
    Status status = LoadOnDevice(config, file, is_first);
    if (needs_device && absl::IsUnimplemented(status)) {
      return WithPrefix(status, "--kv-dtype fp8 needs a device");
    }
    const bool may_leave = is_auto && config.num_ranks == 1;
    if (!may_leave || !absl::IsUnimplemented(status)) return status;
    part_of_next.reset();
    device = ComputeDevice{};
    device.why_processor = std::string(status.message());
    BATON_LOG_WARN("{}; computing on the processor", device.why_processor);
  }
  if (needs_device) {
    return FailedPrecondition(
        "--kv-dtype fp8 is for devices, and this worker would compute on the processor, which "
        "stores K and V in bf16 or f32, or in q8");
  }
  if (!config.cublaslt_library.empty()) {
    BATON_LOG_WARN("--cublaslt-library {} is not used: it is for GPUs", config.cublaslt_library);
  }
  BATON_ASSIGN_OR_RETURN(loaded, Model::Load(file, {.pool = pool.get(),
                                                    .isa = config.isa,
                                                    .kv_dtype = config.kv_dtype,
                                                    .block_size = kCpuBlockSize,
                                                    .max_rows = kMaxBatchTokens,
                                                    .max_context = config.max_context,
                                                    .tokenizer_id = text.tokenizer_id,
                                                    .sharing = config.shared_weights}));
  return OkStatus();
}

Status WorkerModel::LoadOnDevice(const WorkerConfig& config, const GgufFile& file, bool is_first) {
  const SchedulerConfig limits = SchedulerLimits(config);
  if (is_first) {
    BATON_ASSIGN_OR_RETURN(part_of_next, device.accelerator->Split());
  }
  std::vector<Accelerator*> peers = device.accelerators();
  peers.erase(peers.begin());
  BATON_ASSIGN_OR_RETURN(const FastMode fast, FindFastMode(config, device.accelerator->kind()));
  StatusOr<std::unique_ptr<DeviceModel>> made = DeviceModel::Load(
      file, {.device = device.accelerator.get(),
             .kernels = device.kernels,
             .pool = pool.get(),
             .kv_dtype = config.kv_dtype,
             .block_size = kDeviceBlockSize,
             .max_rows = kMaxBatchTokens,
             .max_logit_rows = limits.max_running + limits.max_prefilling + kMaxPromptLogRows,
             .max_context = config.max_context,
             .tokenizer_id = text.tokenizer_id,
             .keeps_packed = config.keeps_packed,
             .fast = fast,
             .num_ranks = config.num_ranks,
             .peers = peers,
             .gate = device.gate.get()});
  if (!made.ok()) {
    if (!absl::IsResourceExhausted(made.status())) return made.status();
    const bool may_pack = !config.keeps_packed && DeviceModel::HasPackable(file);
    const std::string how =
        may_pack ? " whose quantised weights become bf16 (--device-weights packed takes less)"
        : config.num_ranks > 1 ? fmt::format(", divided among {} GPUs", config.num_ranks)
                               : " (--tensor-parallel divides it among GPUs)";
    const char* const beside =
        !is_first && config.num_ranks == 1
            ? "; a prefill and a decode worker on one GPU hold it once with serve --colocate"
            : "";
    return WithPrefix(made.status(), fmt::format("a model file of {}{}{}",
                                                 FormatSize(file.file_bytes()), how, beside));
  }
  BATON_LOG_INFO("computing on {}{}; weights of {}, {} of them packed: {}",
                 device.accelerator->Describe(), RanksText(config.num_ranks, peers.size()),
                 FormatSize((*made)->weight_bytes()), FormatSize((*made)->packed_bytes()),
                 (*made)->load_report().Text());
  loaded = *std::move(made);
  return OkStatus();
}

bool WorkerModel::LeavesCores() const {
  return device.accelerator != nullptr && cores != nullptr && !cores->is_alone();
}

bool WorkerModel::SharesCores() const {
  return device.accelerator == nullptr && cores != nullptr && !cores->is_alone();
}

// Without cores of the budget, threads that need a seat would never run.
ThreadPool* WorkerModel::SamplingPool() const { return LeavesCores() ? nullptr : pool.get(); }

std::string WorkerModel::ThreadsText() const {
  if (cores == nullptr || cores->is_alone()) return fmt::format("{} threads", pool->num_threads());
  return fmt::format("{} threads of its own, up to {} while others lend theirs",
                     cores->num_home_cores(), cores->max_cores());
}

}  // namespace baton::worker
