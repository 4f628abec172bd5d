#include "tests/kernels/gpu_check/hand_off_side.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "src/base/split_mix.h"
#include "tests/kernels/gpu_check/model_shape.h"
#include "tests/patience.h"

namespace baton::kernels::gpu_check {

using device::Accelerator;
using device::CopyShape;
using device::DeviceBuffer;
using device::DeviceKind;
using model::OpenComputeDevice;
using namespace kv;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint32_t kSpareBlocks = 8;
// From here on NCCL lets ranks share a GPU.
constexpr int kFirstWithSharedGpu = 23003;
// Nothing expires on a busy machine that is not dead.
constexpr int64_t kGenerousUs = 20'000'000;

// Two ranks on one GPU. An older NCCL is told that they are on two hosts, and goes over sockets.
// Says how. Before the first communicator; nothing else of this process reads the environment then.
const char* ShareOneGpu(int nccl_version) {
  if (nccl_version >= kFirstWithSharedGpu) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    return "by NCCL_MULTI_RANK_GPU_ENABLE";
  }
  setenv("NCCL_HOSTID", fmt::format("baton-gpu-check-{}", getpid()).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_NET", "Socket", 1);
  setenv("NCCL_IB_DISABLE", "1", 1);
  return "by NCCL_HOSTID over sockets";
}

}  // namespace

KvLayout HandOffLayout(bool on_runner) {
  KvLayout layout;
  layout.num_layers = on_runner ? 3 : 8;
  layout.num_kv_heads = on_runner ? 2 : kLlama8b.num_kv_heads;
  layout.head_dim = on_runner ? 32 : kLlama8b.head_dim;
  layout.block_size = on_runner ? 16 : kShapeBlockSize;
  return layout;
}

std::vector<uint32_t> HandOffSizes(bool on_runner) {
  return on_runner ? std::vector<uint32_t>{1, 2, 5, 8} : std::vector<uint32_t>{1, 4, 16, 64};
}

uint32_t HandOffPoolBlocks(bool on_runner) { return HandOffSizes(on_runner).back() + kSpareBlocks; }

int64_t HandOffPatienceUs(bool on_runner) {
  return on_runner ? int64_t{20'000'000} * kPatienceFactor : 10'000'000;
}

std::vector<std::byte> PatternOf(const KvLayout& layout, BlockIndex block) {
  std::vector<std::byte> bytes(layout.BlockBytes());
  const uint64_t first = uint64_t{block.value()} * bytes.size();
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = SplitMix(first + i + kSplitMixStep);
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
  return bytes;
}

StatusOr<std::unique_ptr<HandOffSide>> HandOffSide::Open(const SideOptions& options) {
  std::unique_ptr<HandOffSide> side(new HandOffSide(options));
  BATON_ASSIGN_OR_RETURN(
      side->device_, OpenComputeDevice(options.on_runner ? DeviceKind::kSimt : DeviceKind::kCuda,
                                       options.num_ranks,
                                       /*awaits_others=*/options.kind == TransportKind::kNccl));
  side->device()->MakeCurrent();
  BATON_RETURN_IF_ERROR(side->MakePool());
  BATON_RETURN_IF_ERROR(options.kind == TransportKind::kNccl ? side->MakeNccl() : side->MakeIpc());
  BATON_RETURN_IF_ERROR(side->transport_->Start(&side->sink_));
  return side;
}

HandOffSide::~HandOffSide() {
  if (transport_ != nullptr) transport_->Stop();
}

Status HandOffSide::MakePool() {
  memory_.layout = HandOffLayout(options_.on_runner);
  memory_.num_blocks = HandOffPoolBlocks(options_.on_runner);
  const size_t size_bytes =
      memory_.num_blocks * RankLayout(memory_.layout, options_.num_ranks).BlockStride();
  for (Accelerator* const rank : RankDevices()) {
    rank->MakeCurrent();
    BATON_ASSIGN_OR_RETURN(buffers_.emplace_back(),
                           options_.kind == TransportKind::kCudaIpc
                               ? CreateSharedBuffer(rank, size_bytes, "KV blocks")
                               : DeviceBuffer::Create(rank, size_bytes, "KV blocks"));
    memory_.ranks.push_back(buffers_.back().data());
  }
  memory_.base = memory_.ranks[0];
  device()->MakeCurrent();
  BATON_ASSIGN_OR_RETURN(arena_, KvArena::Create(memory_.layout, 1));
  BATON_ASSIGN_OR_RETURN(transport_device_, device()->Share());
  return OkStatus();
}

std::vector<Accelerator*> HandOffSide::RankDevices() const {
  std::vector<Accelerator*> ranks = device_.accelerators();
  ranks.resize(options_.num_ranks, ranks[0]);
  return ranks;
}

KvEndpointOptions HandOffSide::EndpointOptions() const {
  KvEndpointOptions options;
  options.worker_id = options_.listens ? "decode-0" : "prefill-0";
  options.incarnation = options_.incarnation;
  options.cluster_secret = "of gpu_check";
  options.numerics_id = "gpu_check";
  options.kind = options_.kind == TransportKind::kNccl ? TransportKind::kTcp : TransportKind::kShm;
  options.slices = options_.kind;
  if (options_.listens) options.listen = "127.0.0.1:0";
  options.timers.hello_us = kGenerousUs;
  options.timers.frame_gap_us = kGenerousUs;
  options.timers.write_stall_us = kGenerousUs;
  return options;
}

Status HandOffSide::MakeIpc() {
  BATON_ASSIGN_OR_RETURN(auto pools, DevicePools::Create(RankDevices(), memory_));
  KvEndpointOptions words = EndpointOptions();
  words.pools = pools.get();
  BATON_ASSIGN_OR_RETURN(auto endpoint, KvEndpoint::Create(words, arena_.get()));
  endpoint_ = endpoint.get();
  IpcTransportOptions options;
  options.device = {transport_device_.get(), SliceKernelsOf(*device_.kernels), memory_};
  // Tiny transfers are cut into several offers too.
  if (options_.on_runner) options.limits.offer_bytes = 4 * memory_.layout.SliceBytes();
  BATON_ASSIGN_OR_RETURN(auto transport,
                         IpcTransport::Create(options, std::move(pools), std::move(endpoint)));
  counters_ = [ipc = transport.get()] {
    const IpcStats stats = ipc->OfferStats();
    return nlohmann::json{{"offers", stats.offers},
                          {"late", stats.late},
                          {"protocol", stats.protocol},
                          {"mapped_pools", ipc->num_mapped()}};
  };
  transport_ = std::move(transport);
  return OkStatus();
}

Status HandOffSide::MakeNccl() {
  BATON_ASSIGN_OR_RETURN(nccl_, nccl::LoadNccl({.library = options_.nccl_library}));
  const char* const way = ShareOneGpu(nccl_.version);
  BATON_ASSIGN_OR_RETURN(auto endpoint, KvEndpoint::Create(EndpointOptions(), arena_.get()));
  endpoint_ = endpoint.get();
  NcclTransportOptions options;
  options.table = &nccl_;
  options.device = {transport_device_.get(), SliceKernelsOf(*device_.kernels), memory_};
  // A GPU has the deadlines of a worker: what they cut off there must show here.
  if (options_.on_runner) {
    options.timers.build_us = kGenerousUs;
    options.timers.credit_us = kGenerousUs;
    options.timers.operation_us = kGenerousUs;
    options.limits.slot_bytes = 4 * memory_.layout.SliceBytes();
  }
  BATON_ASSIGN_OR_RETURN(auto transport, NcclTransport::Create(options, std::move(endpoint)));
  counters_ = [this, way, transport = transport.get()] {
    const NcclStats stats = transport->CommunicatorStats();
    nlohmann::json dropped = nlohmann::json::object();
    for (size_t i = 0; i < stats.dropped.size(); ++i) {
      if (stats.dropped[i] == 0) continue;
      dropped[std::string(NcclDropReasonName(static_cast<NcclDropReason>(i)))] = stats.dropped[i];
    }
    return nlohmann::json{{"library", nccl_.path},
                          {"version", nccl::VersionText(nccl_.version)},
                          {"way", way},
                          {"built", stats.built},
                          {"batches", stats.batches},
                          {"lost", stats.lost},
                          {"dropped", std::move(dropped)}};
  };
  transport_ = std::move(transport);
  return OkStatus();
}

CopyShape HandOffSide::HeadsOfBlock() const {
  const size_t head_bytes = memory_.rank_layout().SliceBytes() / 2;
  return {.num_rows = size_t{2} * memory_.layout.num_layers,
          .row_bytes = head_bytes,
          .device_pitch = head_bytes,
          .host_pitch = memory_.layout.SliceBytes() / 2};
}

Status HandOffSide::WriteBlock(BlockIndex block, std::span<const std::byte> bytes) {
  const std::vector<Accelerator*> ranks = RankDevices();
  const CopyShape heads = HeadsOfBlock();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank]->MakeCurrent();
    BATON_RETURN_IF_ERROR(
        ranks[rank]->CopyRowsIn(memory_.ranks[rank] + memory_.SliceOffset(block, 0),
                                bytes.data() + rank * heads.row_bytes, heads));
  }
  return OkStatus();
}

Status HandOffSide::ReadBlock(BlockIndex block, std::span<std::byte> bytes) {
  const std::vector<Accelerator*> ranks = RankDevices();
  const CopyShape heads = HeadsOfBlock();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank]->MakeCurrent();
    BATON_RETURN_IF_ERROR(
        ranks[rank]->CopyRowsOut(bytes.data() + rank * heads.row_bytes,
                                 memory_.ranks[rank] + memory_.SliceOffset(block, 0), heads));
  }
  return Wait();
}

Status HandOffSide::Wait() {
  for (Accelerator* const rank : RankDevices()) {
    rank->MakeCurrent();
    BATON_RETURN_IF_ERROR(rank->Wait());
  }
  device()->MakeCurrent();
  return OkStatus();
}

}  // namespace baton::kernels::gpu_check
