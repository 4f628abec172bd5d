#include "src/worker/kv_parts.h"

#include <algorithm>
#include <utility>

#include "kvcache/transport/ipc/slice_puller.h"
#include "kvcache/transport/slice_device.h"
#include "src/base/library.h"
#include "src/base/log.h"
#include "src/base/size_text.h"
#include "src/worker/advertise.h"
#include "src/worker/pool_size.h"

namespace baton::worker {

namespace nccl = kv::nccl;
using device::Accelerator;
using device::DeviceKind;
using engine::KvSharing;
using engine::KvStore;
using kv::CheckSliceSize;
using kv::DevicePools;
using kv::IpcTransport;
using kv::IpcTransportOptions;
using kv::kRunnerPullBytes;
using kv::KvArena;
using kv::KvArenaOptions;
using kv::KvEndpoint;
using kv::KvEndpointOptions;
using kv::LocalWorker;
using kv::NcclTransport;
using kv::NcclTransportOptions;
using kv::ReadyBlocks;
using kv::SlicePuller;
using kv::SlicesOfPull;
using kv::TransportKind;
using kv::TransportKindName;
using model::ComputeDevice;

namespace {

// Slices on a device never lie in an arena, which only tells the endpoint their layout.
constexpr uint32_t kBlocksForWords = 1;

// Others wait for so little at most: an engine that needs blocks at once, a worker that ends.
constexpr uint64_t kFillBytes = uint64_t{1} << 20;

bool IsOnDevice(TransportKind kind) {
  return kind == TransportKind::kNccl || kind == TransportKind::kCudaIpc;
}

SequenceNeed SequenceOf(const KvNeeds& needs) {
  return {needs.layout, needs.max_context, needs.window_blocks};
}

// The transport that carries the words.
TransportKind EndpointKind(TransportKind kind) {
  if (kind == TransportKind::kNccl) return TransportKind::kTcp;
  return kind == TransportKind::kCudaIpc ? TransportKind::kShm : kind;
}

KvEndpointOptions EndpointOptions(const WorkerConfig& config, const KvNeeds& needs) {
  KvEndpointOptions options;
  options.worker_id = config.worker_id;
  options.incarnation = needs.incarnation;
  options.cluster_secret = config.cluster_secret;
  options.tls = config.tls;
  options.numerics_id = needs.numerics_id;
  options.allow_inexact = config.allow_inexact;
  options.kind = EndpointKind(config.transport);
  if (IsOnDevice(config.transport)) options.slices = config.transport;
  options.listen = config.kv_listen.empty() ? HostOf(config.listen) + ":0" : config.kv_listen;
  return options;
}

std::vector<TransportKind> KindsOf(TransportKind flag) {
  if (flag == TransportKind::kAuto) return {TransportKind::kShm, TransportKind::kTcp};
  return {flag};
}

// One of each rank; those of the runner share its device.
std::vector<Accelerator*> DevicesOfRanks(const ComputeDevice& device, uint32_t num_ranks) {
  std::vector<Accelerator*> ranks = device.accelerators();
  ranks.resize(num_ranks, ranks[0]);
  return ranks;
}

template <typename T>
StatusOr<T> Named(absl::string_view flag, StatusOr<T> made) {
  if (!made.ok()) return WithPrefix(made.status(), flag);
  return made;
}

}  // namespace

StatusOr<std::unique_ptr<KvParts>> KvParts::Create(const WorkerConfig& config,
                                                   const ComputeDevice& device,
                                                   const KvNeeds& needs) {
  if (config.num_ranks > 1 && needs.hub != nullptr) {
    return Unimplemented("a model of {} ranks does not share its devices with another worker",
                         config.num_ranks);
  }
  std::unique_ptr<KvParts> parts(new KvParts());
  parts->is_on_device_ = device.accelerator != nullptr;
  if (needs.hub != nullptr) {
    BATON_RETURN_IF_ERROR(parts->MakeLocal(config, device, needs));
    return parts;
  }
  parts->kinds_ = KindsOf(config.transport);
  BATON_RETURN_IF_ERROR(parts->MakeStore(config, device, needs));
  if (config.transport == TransportKind::kCudaIpc) {
    BATON_RETURN_IF_ERROR(
        WithPrefix(parts->MakeIpc(device, EndpointOptions(config, needs)), "--transport cuda_ipc"));
    return parts;
  }
  const char* flag =
      config.kv_listen.empty() ? "--kv-listen (the host of --listen)" : "--kv-listen";
  BATON_ASSIGN_OR_RETURN(
      std::unique_ptr<KvEndpoint> endpoint,
      Named(flag, KvEndpoint::Create(EndpointOptions(config, needs), parts->arena_.get())));
  parts->endpoint_ = endpoint.get();
  if (config.transport == TransportKind::kNccl) {
    BATON_RETURN_IF_ERROR(parts->MakeNccl(config, device, std::move(endpoint)));
  } else {
    parts->transport_ = std::move(endpoint);
  }
  return parts;
}

Status KvParts::MakeHostStore(const KvNeeds& needs, uint32_t num_blocks) {
  KvArenaOptions options;
  options.num_ready =
      static_cast<uint32_t>(std::min<uint64_t>(num_blocks, NumSequenceBlocks(SequenceOf(needs))));
  BATON_ASSIGN_OR_RETURN(arena_, KvArena::Create(needs.layout, num_blocks, options));
  store_ = KvStore::OnHost(arena_.get());
  return OkStatus();
}

bool KvParts::FillNext() {
  const uint32_t num_blocks = store_->memory().num_blocks;
  const uint64_t num_more = std::max<uint64_t>(1, kFillBytes / store_->layout().BlockStride());
  ReadyBlocks now = store_->ready();
  if (!now.is_final()) now = store_->Extend(now.num_ready + static_cast<uint32_t>(num_more));
  if (now.is_final() && now.limit < num_blocks) {
    BATON_LOG_WARN("the KV pool has {} of its {} blocks, and no more: {}", now.limit, num_blocks,
                   std::string(arena_->shortage().message()));
  }
  return !now.is_final();
}

Status KvParts::MakeStore(const WorkerConfig& config, const ComputeDevice& device,
                          const KvNeeds& needs) {
  Accelerator* const accelerator = device.accelerator.get();
  BATON_ASSIGN_OR_RETURN(const uint32_t num_blocks,
                         NumPoolBlocks(config.kv_memory_bytes, SequenceOf(needs)));
  if (IsOnDevice(config.transport)) {
    if (accelerator == nullptr) {
      return FailedPrecondition(
          "--transport {} moves KV between devices, and this worker computes on the processor; use "
          "auto, shm or tcp",
          TransportKindName(config.transport));
    }
    const bool is_ipc = config.transport == TransportKind::kCudaIpc;
    BATON_RETURN_IF_ERROR(WithPrefix(CheckSliceSize(needs.layout, config.num_ranks),
                                     is_ipc ? "--transport cuda_ipc" : "--transport nccl"));
    if (!is_ipc) BATON_RETURN_IF_ERROR(FindNccl(config, accelerator));
    BATON_ASSIGN_OR_RETURN(arena_, KvArena::Create(needs.layout, kBlocksForWords));
    BATON_ASSIGN_OR_RETURN(
        store_, Named(is_ipc ? "--transport cuda_ipc, --kv-memory" : "--kv-memory",
                      KvStore::OnDevice(DevicesOfRanks(device, config.num_ranks), device.kernels,
                                        needs.layout, num_blocks,
                                        is_ipc ? KvSharing::kHost : KvSharing::kPrivate)));
    return OkStatus();
  }
  if (accelerator == nullptr) return MakeHostStore(needs, num_blocks);
  BATON_ASSIGN_OR_RETURN(arena_, KvArena::Create(needs.layout, num_blocks));
  if (config.num_ranks > 1) {
    BATON_ASSIGN_OR_RETURN(
        store_, Named("--kv-memory",
                      KvStore::Ranked(DevicesOfRanks(device, config.num_ranks), arena_.get())));
    return OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(store_,
                         Named("--kv-memory", KvStore::Mirrored(accelerator, arena_.get())));
  return OkStatus();
}

Status KvParts::FindNccl(const WorkerConfig& config, const Accelerator* accelerator) {
  // The library that a machine with GPUs has takes their memory and streams only.
  if (accelerator->kind() == DeviceKind::kSimt && config.nccl_library.empty()) {
    return FailedPrecondition(
        "--transport nccl on the processor's runner needs a loopback: name it by --nccl-library");
  }
  StatusOr<nccl::NcclTable> table =
      nccl::LoadNccl({.library = config.nccl_library, .python_folders = PythonFolders()});
  if (!table.ok()) return WithPrefix(table.status(), "--transport nccl");
  nccl_ = *std::move(table);
  return OkStatus();
}

Status KvParts::MakeLocal(const WorkerConfig& config, const ComputeDevice& device,
                          const KvNeeds& needs) {
  kinds_ = {TransportKind::kLocal};
  BATON_ASSIGN_OR_RETURN(const uint32_t num_blocks,
                         NumPoolBlocks(config.kv_memory_bytes, SequenceOf(needs)));
  LocalWorker worker;
  worker.worker_id = config.worker_id;
  worker.incarnation = needs.incarnation;
  worker.dials = config.role == WorkerRole::kPrefill;
  if (device.accelerator == nullptr) {
    BATON_RETURN_IF_ERROR(MakeHostStore(needs, num_blocks));
  } else {
    BATON_RETURN_IF_ERROR(
        WithPrefix(CheckSliceSize(needs.layout), "workers of one process on a device"));
    BATON_ASSIGN_OR_RETURN(
        store_, Named("--kv-memory", KvStore::OnDevice(device.accelerator.get(), device.kernels,
                                                       needs.layout, num_blocks)));
    BATON_ASSIGN_OR_RETURN(transport_device_, device.accelerator->Share());
    BATON_ASSIGN_OR_RETURN(
        worker.puller,
        SlicePuller::Create(
            {transport_device_.get(), SliceKernelsOf(*device.kernels), store_->memory()},
            /*num_slots=*/1, SlicesOfPull(*transport_device_, needs.layout)));
  }
  worker.memory = store_->memory();
  transport_ = needs.hub->Attach(std::move(worker));
  return OkStatus();
}

Status KvParts::MakeIpc(const ComputeDevice& device, KvEndpointOptions endpoint_options) {
  BATON_ASSIGN_OR_RETURN(auto pools,
                         DevicePools::Create(DevicesOfRanks(device, store_->memory().num_ranks()),
                                             store_->memory(), device.gate.get()));
  endpoint_options.pools = pools.get();
  BATON_ASSIGN_OR_RETURN(auto endpoint, KvEndpoint::Create(endpoint_options, arena_.get()));
  endpoint_ = endpoint.get();
  BATON_ASSIGN_OR_RETURN(transport_device_, device.accelerator->Share());
  IpcTransportOptions options;
  options.device = {transport_device_.get(), SliceKernelsOf(*device.kernels), store_->memory(),
                    device.gate.get()};
  if (device.accelerator->kind() == DeviceKind::kSimt) {
    options.limits.offer_bytes = kRunnerPullBytes;
  }
  BATON_ASSIGN_OR_RETURN(auto transport,
                         IpcTransport::Create(options, std::move(pools), std::move(endpoint)));
  ipc_transport_ = transport.get();
  transport_ = std::move(transport);
  BATON_LOG_INFO("KV is pulled from pool to pool on devices, by processes of this host");
  return OkStatus();
}

Status KvParts::MakeNccl(const WorkerConfig& config, const ComputeDevice& device,
                         std::unique_ptr<KvEndpoint> endpoint) {
  BATON_ASSIGN_OR_RETURN(transport_device_, device.accelerator->Share());
  NcclTransportOptions options;
  options.table = &nccl_;
  options.device = {transport_device_.get(), SliceKernelsOf(*device.kernels), store_->memory(),
                    device.gate.get()};
  // A buffer larger than the pool would never be full.
  const uint64_t pool_bytes =
      uint64_t{store_->memory().num_blocks} * store_->layout().BlockStride();
  options.limits.slot_bytes = std::min(options.limits.slot_bytes, pool_bytes);
  staging_bytes_ = uint64_t{2} * options.limits.num_slots * options.limits.slot_bytes;
  StatusOr<std::unique_ptr<NcclTransport>> made =
      NcclTransport::Create(options, std::move(endpoint));
  if (!made.ok()) return WithPrefix(made.status(), "--transport nccl");
  nccl_transport_ = made->get();
  transport_ = *std::move(made);
  BATON_LOG_INFO("KV crosses by NCCL {} ({}), {} of staging beside the pool",
                 nccl::VersionText(nccl_.version), nccl_.path, FormatSize(staging_bytes_));
  if (!config.tls.empty()) {
    BATON_LOG_WARN("NCCL has no encryption: TLS covers the words between workers, not their KV");
  }
  return OkStatus();
}

}  // namespace baton::worker
