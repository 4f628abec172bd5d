// KvParts: where a worker's KV blocks lie and how they cross, made as --device and --transport ask:
//
//   processor                  arena (shared memory), read and written by kernels and a KvEndpoint
//   device, auto, shm, tcp     device memory for kernels, of each rank its own, and beside it an
//                              arena for the KvEndpoint
//   device, nccl, cuda_ipc     device memory for both, of each rank its own; the first rank's
//                              device moves the bytes, and the KvEndpoint carries words only
//   colocated                  the arena, or on a device its memory, for both; words and slices go
//                              through the LocalHub of the process, and no other process can come
//
// Made by the main thread. The parts have their own threads; all outlive the engine's Stop.
#ifndef BATON_WORKER_KV_PARTS_H_
#define BATON_WORKER_KV_PARTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/kv_arena.h"
#include "kvcache/transport/ipc/ipc_transport.h"
#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/local_transport.h"
#include "kvcache/transport/nccl/nccl_transport.h"
#include "src/engine/kv_store.h"
#include "src/model/compute_device.h"
#include "src/worker/worker_config.h"

namespace baton::worker {

// The facts that the parts are made for.
struct KvNeeds {
  kv::KvLayout layout;
  uint32_t max_context = 0;    // of the model
  uint32_t window_blocks = 0;  // that a sequence's tokens take at most; 0 = the blocks of all
  std::string numerics_id;
  Incarnation incarnation;
  // The hub of a process whose workers hand off to each other, else null; outlives the parts.
  kv::LocalHub* hub = nullptr;
};

// See the file comment.
class KvParts {
 public:
  // `device` outlives them. Errors name the flag. NotFound or FailedPrecondition for an NCCL that
  // is not there or cannot be used. FailedPrecondition for NCCL or CUDA IPC without a device, or
  // for a device whose memory cannot be shared. InvalidArgument for slices that no kernel takes,
  // ResourceExhausted without memory, and the errors of KvEndpoint::Create. With NCCL 256 MiB of
  // staging buffers (less for a small pool) come on top of --kv-memory.
  static StatusOr<std::unique_ptr<KvParts>> Create(const WorkerConfig& config,
                                                   const model::ComputeDevice& device,
                                                   const KvNeeds& needs);

  engine::KvStore* store() const { return store_.get(); }
  // Gives the next MiB of a pool on the processor its memory (0.3 ms). When Create returns, the
  // blocks of one sequence have it. False: nothing is left to give. One thread, beside others.
  bool FillNext();
  // The transport that the engine hands off through.
  kv::KvTransport* transport() const { return transport_.get(); }
  // That transport, or null when it is not NCCL.
  kv::NcclTransport* nccl() const { return nccl_transport_; }
  // That transport, or null when it is not CUDA IPC.
  kv::IpcTransport* ipc() const { return ipc_transport_; }
  // The endpoint that listens and dials: the transport itself, or the way by which NCCL and CUDA
  // IPC say words. Null when colocated.
  kv::KvEndpoint* endpoint() const { return endpoint_; }
  // Bytes of the arena beside a pool that lies on a device, and of NCCL's buffers; 0 = none.
  uint64_t host_copy_bytes() const { return is_on_device_ && arena_ ? arena_->size_bytes() : 0; }
  uint64_t staging_bytes() const { return staging_bytes_; }
  // How slices may cross to or from this worker; peers have one of these too.
  const std::vector<kv::TransportKind>& kinds() const { return kinds_; }

 private:
  KvParts() = default;
  // The arena of a pool that kernels and transports use, with the blocks of one sequence ready.
  Status MakeHostStore(const KvNeeds& needs, uint32_t num_blocks);
  Status MakeStore(const WorkerConfig& config, const model::ComputeDevice& device,
                   const KvNeeds& needs);
  Status FindNccl(const WorkerConfig& config, const device::Accelerator* accelerator);
  Status MakeNccl(const WorkerConfig& config, const model::ComputeDevice& device,
                  std::unique_ptr<kv::KvEndpoint> endpoint);
  Status MakeIpc(const model::ComputeDevice& device, kv::KvEndpointOptions endpoint_options);
  Status MakeLocal(const WorkerConfig& config, const model::ComputeDevice& device,
                   const KvNeeds& needs);

  // The parts, in the order of construction; destroyed in reverse.
  std::unique_ptr<kv::KvArena> arena_;
  std::unique_ptr<engine::KvStore> store_;
  kv::nccl::NcclTable nccl_;
  std::unique_ptr<device::Accelerator>
      transport_device_;  // the transport's own, of the worker's device
  std::unique_ptr<kv::KvTransport> transport_;
  kv::NcclTransport* nccl_transport_ = nullptr;
  kv::IpcTransport* ipc_transport_ = nullptr;
  kv::KvEndpoint* endpoint_ = nullptr;
  std::vector<kv::TransportKind> kinds_;
  bool is_on_device_ = false;  // the pool
  uint64_t staging_bytes_ = 0;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_KV_PARTS_H_
