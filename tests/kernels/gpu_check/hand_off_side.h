// HandOffSide: one process of a hand-off between two: a device, or one of each rank, a pool of KV
// blocks in its memory, and the transport that a worker with --transport cuda_ipc or nccl has, over
// its endpoint.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_SIDE_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_SIDE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

#include "kvcache/kv_arena.h"
#include "kvcache/transport/ipc/ipc_transport.h"
#include "kvcache/transport/nccl/nccl_transport.h"
#include "src/model/compute_device.h"
#include "tests/kernels/gpu_check/hand_off_sink.h"

namespace baton::kernels::gpu_check {

// How a side is made.
struct SideOptions {
  kv::TransportKind kind = kv::TransportKind::kCudaIpc;  // or kNccl
  bool on_runner = false;                                // in tiny shapes too
  bool listens = false;                                  // else it dials
  uint32_t num_ranks = 1;                                // the first so many GPUs, or of the runner
  std::string nccl_library;                              // kNccl
  Incarnation incarnation;
};

// The pool of a side. A slice on a GPU is one of Llama-3.1-8B with 64 tokens a block, 256 KiB, and
// a block of 8 layers 2 MiB; on the runner 4 KiB, and 12 KiB of 3 layers.
kv::KvLayout HandOffLayout(bool on_runner);
// Blocks of the transfers that are timed: 2, 8, 32 and 128 MiB on a GPU.
std::vector<uint32_t> HandOffSizes(bool on_runner);
// The pool has some more than the largest transfer, so that each can begin at another block.
uint32_t HandOffPoolBlocks(bool on_runner);
// How long either side waits for what must come.
int64_t HandOffPatienceUs(bool on_runner);

// The content of the sender's block, [BlockBytes]. Two blocks have a word in common only by chance.
std::vector<std::byte> PatternOf(const kv::KvLayout& layout, BlockIndex block);

// See the file comment. One thread beside the transport's own; that of Open.
class HandOffSide {
 public:
  // Started. FailedPrecondition when the device cannot share its memory, or for an NCCL that cannot
  // be used.
  static StatusOr<std::unique_ptr<HandOffSide>> Open(const SideOptions& options);
  ~HandOffSide();

  Incarnation incarnation() const { return options_.incarnation; }
  const kv::KvMemory& memory() const { return memory_; }
  device::Accelerator* device() const { return device_.accelerator.get(); }
  kv::KvTransport* transport() const { return transport_.get(); }
  kv::KvEndpoint* endpoint() const { return endpoint_; }
  HandOffSink* sink() { return &sink_; }
  // The transport's counters, for the record.
  nlohmann::json Counters() const { return counters_(); }

  // Whole blocks, [BlockBytes]. A write is done after Wait.
  Status WriteBlock(BlockIndex block, std::span<const std::byte> bytes);
  Status ReadBlock(BlockIndex block, std::span<std::byte> bytes);
  Status Wait();

 private:
  explicit HandOffSide(const SideOptions& options) : options_(options) {}
  Status MakePool();
  // One of each rank.
  std::vector<device::Accelerator*> RankDevices() const;
  // K and V of a rank's heads in every layer of a block.
  device::CopyShape HeadsOfBlock() const;
  kv::KvEndpointOptions EndpointOptions() const;
  Status MakeIpc();
  Status MakeNccl();

  const SideOptions options_;
  // In the order of construction; destroyed in reverse.
  HandOffSink sink_;
  model::ComputeDevice device_;
  std::vector<device::DeviceBuffer> buffers_;
  kv::KvMemory memory_;
  std::unique_ptr<kv::KvArena> arena_;  // tells the endpoint the layout
  kv::nccl::NcclTable nccl_;
  std::unique_ptr<device::Accelerator> transport_device_;
  std::unique_ptr<kv::KvTransport> transport_;
  kv::KvEndpoint* endpoint_ = nullptr;
  std::function<nlohmann::json()> counters_;
};

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_SIDE_H_
