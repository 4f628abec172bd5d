// Checks the data that crosses between a device and pinned memory of the host. KV blocks go by way
// of arenas, as between workers with --transport auto, shm or tcp. Weights go by way of two
// buffers, as from a file. The bytes must be equal.
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcache/kv_arena.h"
#include "kvcache/transport/slice_copy.h"
#include "src/base/status.h"
#include "src/engine/kv_store.h"
#include "src/model/compute_device.h"
#include "src/model/weight_upload.h"
#include "tests/kernels/gpu_check/model_shape.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/test_seed.h"

namespace baton::kernels::gpu_check {

using device::Accelerator;
using device::DeviceBuffer;
using device::DeviceKind;
using engine::KvStore;
using model::ComputeDevice;
using model::OpenComputeDevice;
using model::UploadReport;
using model::WeightUpload;
using namespace kv;  // NOLINT(google-build-using-namespace)

namespace {

// ---- KV blocks.

// At the GPU's shape 16 blocks of 8 MiB.
uint32_t NumBlocksFor(bool is_tiny) { return is_tiny ? 3 : 16; }

KvLayout LayoutFor(bool is_tiny) {
  const ModelShape& shape = ShapeFor(is_tiny);
  return {.dtype = KvDtype::kBf16,
          .encoding = KvEncoding::kPlain,
          .num_layers = shape.num_layers,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim,
          .block_size = kShapeBlockSize};
}

// The KV memory of a worker: blocks on the device, and the arena that its transport uses.
struct WorkerBlocks {
  std::unique_ptr<KvArena> arena;
  std::unique_ptr<KvStore> store;
};

// Makes blocks that so many ranks share, all on the device.
absl::StatusOr<WorkerBlocks> MakeBlocks(const StageInput& input, Accelerator* device,
                                        uint32_t num_ranks) {
  WorkerBlocks made;
  BATON_ASSIGN_OR_RETURN(made.arena,
                         KvArena::Create(LayoutFor(input.is_tiny), NumBlocksFor(input.is_tiny)));
  // A store goes on, slowly, with an arena that the device does not pin. That is a fault here.
  device->MakeCurrent();
  BATON_RETURN_IF_ERROR(device->PinHost(made.arena->base(), made.arena->size_bytes()));
  device->UnpinHost(made.arena->base());
  if (num_ranks == 1) {
    BATON_ASSIGN_OR_RETURN(made.store, KvStore::Mirrored(device, made.arena.get()));
  } else {
    const std::vector<Accelerator*> ranks(num_ranks, device);
    BATON_ASSIGN_OR_RETURN(made.store, KvStore::Ranked(ranks, made.arena.get()));
  }
  return made;
}

// All blocks, from this one on.
std::vector<BlockHandle> BlocksFrom(uint32_t first, uint32_t num_blocks) {
  std::vector<BlockHandle> blocks;
  for (uint32_t i = 0; i < num_blocks; ++i) {
    blocks.push_back({BlockIndex((first + i) % num_blocks), 1});
  }
  return blocks;
}

// Hands over as a prefill worker and a decode worker do. Each block goes to the block after it.
absl::Status HandOver(const WorkerBlocks& from, const WorkerBlocks& to) {
  const KvLayout& layout = from.arena->layout();
  const uint32_t num_blocks = from.arena->num_blocks();
  const std::vector<BlockHandle> sealed = BlocksFrom(0, num_blocks);
  const std::vector<BlockHandle> received = BlocksFrom(1, num_blocks);
  std::vector<uint64_t> checksums(num_blocks);
  for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    from.store->Seal(sealed, layer, checksums);
    for (uint32_t i = 0; i < num_blocks; ++i) {
      const uint64_t found =
          CopyAndChecksum(to.arena->Slice(received[i].index, layer),
                          from.arena->Slice(sealed[i].index, layer), layout.SliceBytes());
      if (found == checksums[i]) continue;
      return Internal("layer {} of block {} is not what was sealed", layer, i);
    }
  }
  to.store->Adopt(received);
  return absl::OkStatus();
}

// The bytes of all blocks of a store of one rank, from block `first` on.
absl::StatusOr<std::vector<std::byte>> BytesFrom(Accelerator* device, const KvMemory& memory,
                                                 uint32_t first) {
  device->MakeCurrent();
  const size_t block_bytes = memory.layout.BlockBytes();
  std::vector<std::byte> bytes(memory.num_blocks * block_bytes);
  std::byte* to = bytes.data();
  for (const BlockHandle block : BlocksFrom(first, memory.num_blocks)) {
    BATON_RETURN_IF_ERROR(device->CopyOut(to, memory.Block(block.index), block_bytes));
    to += block_bytes;
  }
  BATON_RETURN_IF_ERROR(device->Wait());
  return bytes;
}

// Random bytes of one rank, handed to a worker of two and by that one to one of one rank again.
absl::StatusOr<std::string> CheckArenas(const StageInput& input, Accelerator* device) {
  BATON_ASSIGN_OR_RETURN(const WorkerBlocks first, MakeBlocks(input, device, 1));
  BATON_ASSIGN_OR_RETURN(const WorkerBlocks divided, MakeBlocks(input, device, 2));
  BATON_ASSIGN_OR_RETURN(const WorkerBlocks last, MakeBlocks(input, device, 1));
  const KvMemory& memory = first.store->memory();
  device->MakeCurrent();
  BATON_RETURN_IF_ERROR(
      input.body.loops().fill({.to = reinterpret_cast<simt::Vec16*>(memory.base),
                               .num_vecs = memory.RankBytes() / sizeof(simt::Vec16),
                               .num_ctas = input.is_tiny ? 2u : 592u,
                               .seed = 1},
                              device->stream()));
  BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> computed, BytesFrom(device, memory, 0));
  BATON_RETURN_IF_ERROR(HandOver(first, divided));
  // The bytes that are sealed next must come from the ranks, not from the earlier adoption.
  BATON_RETURN_IF_ERROR(device->Wait());
  std::memset(divided.arena->base(), 0xFF, divided.arena->size_bytes());
  BATON_RETURN_IF_ERROR(HandOver(divided, last));
  BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> adopted,
                         BytesFrom(device, last.store->memory(), 2));
  if (adopted != computed) return Internal("what was adopted has other bytes");
  return fmt::format("{} blocks of {} bytes to 2 ranks and back to 1", memory.num_blocks,
                     memory.layout.BlockBytes());
}

// ---- Weights.

absl::StatusOr<std::string> CheckUpload(const StageInput& input, Accelerator* device) {
  const size_t piece_bytes = input.is_tiny ? 4096 : WeightUpload::kPieceBytes;
  std::vector<std::byte> bytes(5 * piece_bytes + 1016);  // the last piece is not full
  TestRandom random(TestSeed());
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
  device->MakeCurrent();
  BATON_ASSIGN_OR_RETURN(const DeviceBuffer weights,
                         DeviceBuffer::Create(device, bytes.size(), "weights"));
  BATON_ASSIGN_OR_RETURN(WeightUpload upload, WeightUpload::Create(device, piece_bytes));
  for (size_t at = 0; at < bytes.size(); at += piece_bytes) {
    const size_t count = std::min(piece_bytes, bytes.size() - at);
    BATON_ASSIGN_OR_RETURN(const std::span<std::byte> piece, upload.Next());
    std::memcpy(piece.data(), bytes.data() + at, count);
    std::byte* const place = weights.data() + at;
    BATON_RETURN_IF_ERROR(upload.Send({&place, 1}, count));
  }
  BATON_ASSIGN_OR_RETURN(const UploadReport report, upload.Finish());
  std::vector<std::byte> there(bytes.size());
  BATON_RETURN_IF_ERROR(device->CopyOut(there.data(), weights.data(), there.size()));
  BATON_RETURN_IF_ERROR(device->Wait());
  if (there != bytes) return Internal("what was uploaded has other bytes");
  const std::string detail = fmt::format("{} bytes", report.bytes);
  if (!input.body.is_gpu) return detail;
  return fmt::format("{}, the link copies {:.1f} GB/s", detail, report.link_bytes_per_second / 1e9);
}

}  // namespace

absl::Status CheckHostMemory(const StageInput& input, Report& report) {
  const std::string name = "KV through pinned arenas";
  const absl::StatusOr<ComputeDevice> device =
      OpenComputeDevice(input.body.is_gpu ? DeviceKind::kCuda : DeviceKind::kSimt);
  if (!device.ok()) return AddOutcome(name, device.status(), report);
  Accelerator* const accelerator = device->accelerator.get();
  BATON_RETURN_IF_ERROR(AddChecked(name, report, [&] { return CheckArenas(input, accelerator); }));
  return AddChecked("weights through pinned buffers", report,
                    [&] { return CheckUpload(input, accelerator); });
}

}  // namespace baton::kernels::gpu_check
