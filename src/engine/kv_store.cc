#include "src/engine/kv_store.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kvcache/transport/slice_copy.h"
#include "kvcache/transport/slice_device.h"
#include "src/base/log.h"
#include "src/base/mutex.h"
#include "src/device/device_stream.h"
#include "src/device/host_buffer.h"
#include "src/device/host_staging.h"

namespace baton::engine {

namespace cuda = kernels::cuda;
using device::Accelerator;
using device::CopyShape;
using device::DeviceBuffer;
using device::DeviceEvent;
using device::HostBuffer;
using device::HostStaging;
using kv::BlockHandle;
using kv::CheckSliceSize;
using kv::KvArena;
using kv::KvLayout;
using kv::KvMemory;
using kv::MustWork;
using kv::RankLayout;
using kv::ReadyBlocks;
using kv::SideOf;
using kv::SliceChecksum;

namespace {

// Slices of one launch on a device: 16 KiB of lists, and more ctas than any GPU runs at once.
constexpr size_t kMaxHashedAtOnce = 512;

void HashSlices(const KvArena& arena, std::span<const BlockHandle> blocks, uint32_t layer,
                std::span<uint64_t> checksums) {
  const size_t slice_bytes = arena.layout().SliceBytes();
  for (size_t i = 0; i < blocks.size(); ++i) {
    checksums[i] = SliceChecksum(arena.Slice(blocks[i].index, layer), slice_bytes);
  }
}

// See KvStore.
class HostKvStore final : public KvStore {
 public:
  explicit HostKvStore(KvArena* arena) : KvStore(arena->memory()), arena_(arena) {}

  ReadyBlocks ready() const override { return arena_->ready(); }
  ReadyBlocks Extend(uint32_t num_blocks) override {
    MutexLock lock(extend_mutex_);
    return arena_->Extend(num_blocks);
  }
  void Seal(std::span<const BlockHandle> blocks, uint32_t layer,
            std::span<uint64_t> checksums) override {
    HashSlices(*arena_, blocks, layer, checksums);
  }
  void Adopt(std::span<const BlockHandle>) override {}
  void Copy(uint32_t from, uint32_t to) override {
    std::memcpy(memory().Block(BlockIndex(to)), memory().Block(BlockIndex(from)),
                layout().BlockBytes());
  }

 private:
  KvArena* const arena_;
  Mutex extend_mutex_;  // one Extend at a time; held while up to 16 MiB get their memory
};

// The stream that copies or hashes what is sealed. It runs beside the stream of the device, after
// what the store itself put into that.
class SealStream {
 public:
  static StatusOr<SealStream> Create(Accelerator* device) {
    device->MakeCurrent();
    SealStream out;
    out.main_ = device;
    BATON_ASSIGN_OR_RETURN(out.own_, device->Share());
    BATON_ASSIGN_OR_RETURN(out.changed_, DeviceEvent::Create(device));
    BATON_ASSIGN_OR_RETURN(out.done_, DeviceEvent::Create(out.own_.get()));
    return out;
  }

  // The store has put something into the device's stream.
  void NoteChange() {
    MustWork(changed_.Record(main_->stream()));
    has_changed_ = true;
  }
  // Waits for the last of that. The stream is current then.
  Accelerator& Begin() const {
    if (std::exchange(has_changed_, false)) {
      main_->MakeCurrent();
      MustWork(changed_.Wait());
    }
    own_->MakeCurrent();
    return *own_;
  }
  // For what was put into this stream.
  void Wait() {
    own_->MakeCurrent();
    MustWork(done_.Record(own_->stream()));
    MustWork(done_.Wait());
  }
  Accelerator* device() const { return own_.get(); }

 private:
  Accelerator* main_ = nullptr;
  std::unique_ptr<Accelerator> own_;
  DeviceEvent changed_;
  DeviceEvent done_;
  mutable bool has_changed_ = false;
};

// An arena that a device pinned, or refused to.
class PinnedArena {
 public:
  PinnedArena(Accelerator* device, const KvArena* arena) : device_(device), arena_(arena) {
    device->MakeCurrent();
    const Status pinned = device->PinHost(arena->memory().base, arena->size_bytes());
    is_pinned_ = pinned.ok();
    if (!is_pinned_) {
      BATON_LOG_WARN("KV blocks cross to {} by way of memory that is not pinned, slowly: {}",
                     device->Describe(), std::string(pinned.message()));
    }
  }
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;
  ~PinnedArena() {
    if (!is_pinned_) return;
    device_->MakeCurrent();
    // Copies that Adopt put into the stream may still read the arena.
    if (const Status status = device_->Wait(); !status.ok()) return;
    device_->UnpinHost(arena_->memory().base);
  }
  const KvArena& operator*() const { return *arena_; }
  const KvArena* operator->() const { return arena_; }

 private:
  Accelerator* const device_;
  const KvArena* const arena_;
  bool is_pinned_ = false;
};

// Where the blocks of one rank lie, or of all.
struct RankBlocks {
  Accelerator* device;
  DeviceBuffer blocks;

  // A whole block to another one, in the stream.
  void Copy(const KvMemory& memory, uint32_t from, uint32_t to) const {
    device->MakeCurrent();
    MustWork(device->CopyWithin(blocks.data() + memory.SliceOffset(BlockIndex(to), 0),
                                blocks.data() + memory.SliceOffset(BlockIndex(from), 0),
                                memory.rank_layout().BlockBytes()));
  }
};

KvMemory MemoryOf(const std::vector<RankBlocks>& ranks, const KvLayout& layout,
                  uint32_t num_blocks) {
  KvMemory memory{ranks[0].blocks.data(), layout, num_blocks};
  for (const RankBlocks& rank : ranks) memory.ranks.push_back(rank.blocks.data());
  return memory;
}

// See KvStore.
class MirroredKvStore final : public KvStore {
 public:
  MirroredKvStore(RankBlocks own, SealStream seals, const KvArena* arena)
      : KvStore({own.blocks.data(), arena->layout(), arena->num_blocks()}),
        own_(std::move(own)),
        seals_(std::move(seals)),
        arena_(own_.device, arena) {}

  void Seal(std::span<const BlockHandle> blocks, uint32_t layer,
            std::span<uint64_t> checksums) override {
    Accelerator& stream = seals_.Begin();
    for (const BlockHandle block : blocks) {
      MustWork(stream.CopyOut(arena_->Slice(block.index, layer), memory().Slice(block.index, layer),
                              layout().SliceBytes()));
    }
    seals_.Wait();
    HashSlices(*arena_, blocks, layer, checksums);
  }
  void Adopt(std::span<const BlockHandle> blocks) override {
    own_.device->MakeCurrent();
    for (const BlockHandle block : blocks) {
      MustWork(own_.device->CopyIn(memory().Block(block.index), arena_->Block(block.index),
                                   layout().BlockBytes()));
    }
    seals_.NoteChange();
  }
  void Copy(uint32_t from, uint32_t to) override {
    own_.Copy(memory(), from, to);
    seals_.NoteChange();
  }

 private:
  const RankBlocks own_;
  SealStream seals_;
  const PinnedArena arena_;
};

// See KvStore.
class RankedKvStore final : public KvStore {
 public:
  // `seals` are one a rank.
  RankedKvStore(std::vector<RankBlocks> ranks, std::vector<SealStream> seals, const KvArena* arena)
      : KvStore(MemoryOf(ranks, arena->layout(), arena->num_blocks())),
        rank_layout_(memory().rank_layout()),
        ranks_(std::move(ranks)),
        seals_(std::move(seals)),
        arena_(ranks_[0].device, arena) {}

  // Copies that Adopt put into the streams may still read the arena.
  ~RankedKvStore() override {
    for (const RankBlocks& rank : ranks_) {
      rank.device->MakeCurrent();
      (void)rank.device->Wait();
    }
  }

  void Seal(std::span<const BlockHandle> blocks, uint32_t layer,
            std::span<uint64_t> checksums) override {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Accelerator& stream = seals_[rank].Begin();
      for (const BlockHandle block : blocks) {
        MustWork(stream.CopyRowsOut(
            arena_->Slice(block.index, layer) + rank * HeadBytes(),
            ranks_[rank].blocks.data() + memory().SliceOffset(block.index, layer), Heads(1)));
      }
    }
    for (SealStream& seals : seals_) seals.Wait();
    HashSlices(*arena_, blocks, layer, checksums);
  }
  void Adopt(std::span<const BlockHandle> blocks) override {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const RankBlocks& own = ranks_[rank];
      own.device->MakeCurrent();
      for (const BlockHandle block : blocks) {
        MustWork(own.device->CopyRowsIn(own.blocks.data() + memory().SliceOffset(block.index, 0),
                                        arena_->Block(block.index) + rank * HeadBytes(),
                                        Heads(layout().num_layers)));
      }
      seals_[rank].NoteChange();
    }
  }
  void Copy(uint32_t from, uint32_t to) override {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].Copy(memory(), from, to);
      seals_[rank].NoteChange();
    }
  }

 private:
  // K or V of a rank's heads in one layer.
  size_t HeadBytes() const { return rank_layout_.SliceBytes() / 2; }
  // K and V of a rank's heads in so many layers.
  CopyShape Heads(uint32_t num_layers) const {
    return {.num_rows = size_t{2} * num_layers,
            .row_bytes = HeadBytes(),
            .device_pitch = HeadBytes(),
            .host_pitch = layout().SliceBytes() / 2};
  }

  const KvLayout rank_layout_;
  const std::vector<RankBlocks> ranks_;
  std::vector<SealStream> seals_;
  const PinnedArena arena_;
};

// See KvStore. Slices are hashed where they lie, by KvScatter with the blocks as its staging: those
// of ranks by the first one's device, which reads the others' memory.
class DeviceKvStore final : public KvStore {
 public:
  // Whole blocks are those of one rank.
  DeviceKvStore(std::vector<RankBlocks> ranks, SealStream seals, const cuda::KernelTable* kernels,
                KvMemory memory)
      : KvStore(std::move(memory)),
        ranks_(std::move(ranks)),
        seals_(std::move(seals)),
        kernels_(kernels) {}

  Status Prepare() {
    Accelerator* const device = ranks_[0].device;
    device->MakeCurrent();
    const auto keys = kv::Xxh3Keys();
    BATON_ASSIGN_OR_RETURN(keys_, DeviceBuffer::Create(device, sizeof(keys), "keys of XXH3"));
    BATON_RETURN_IF_ERROR(device->CopyIn(keys_.data(), keys.data(), sizeof(keys)));
    BATON_ASSIGN_OR_RETURN(places_,
                           DeviceBuffer::Create(device, kMaxHashedAtOnce * sizeof(kv::KvSlicePlace),
                                                "places of KV slices"));
    const size_t list_bytes = kMaxHashedAtOnce * sizeof(uint64_t);
    BATON_ASSIGN_OR_RETURN(expected_, DeviceBuffer::Create(device, list_bytes, "checksums"));
    BATON_ASSIGN_OR_RETURN(found_, DeviceBuffer::Create(device, list_bytes, "found checksums"));
    BATON_ASSIGN_OR_RETURN(results_, HostStaging::Create(seals_.device(), list_bytes, "checksums"));
    const std::vector<uint64_t> zeroes(kMaxHashedAtOnce);
    BATON_RETURN_IF_ERROR(device->CopyIn(expected_.data(), zeroes.data(), list_bytes));
    BATON_ASSIGN_OR_RETURN(
        host_places_,
        HostBuffer::Create(seals_.device(), kMaxHashedAtOnce * sizeof(kv::KvSlicePlace),
                           "places of KV slices"));
    return device->Wait();
  }

  void Seal(std::span<const BlockHandle> blocks, uint32_t layer,
            std::span<uint64_t> checksums) override {
    Accelerator& stream = seals_.Begin();
    for (size_t done = 0; done < blocks.size(); done += kMaxHashedAtOnce) {
      const size_t count = std::min(kMaxHashedAtOnce, blocks.size() - done);
      HashSome(stream, blocks.subspan(done, count), layer, checksums.subspan(done, count));
    }
  }
  void Adopt(std::span<const BlockHandle>) override {}
  // The transport has another stream: a block that the engine lets go of may be written by it.
  void Copy(uint32_t from, uint32_t to) override {
    for (const RankBlocks& rank : ranks_) rank.Copy(memory(), from, to);
    for (const RankBlocks& rank : ranks_) {
      rank.device->MakeCurrent();
      MustWork(rank.device->Wait());
    }
  }

 private:
  void HashSome(Accelerator& stream, std::span<const BlockHandle> blocks, uint32_t layer,
                std::span<uint64_t> checksums) {
    auto* const places = host_places_.as<kv::KvSlicePlace>();
    for (size_t i = 0; i < blocks.size(); ++i) {
      const uint64_t offset = memory().SliceOffset(blocks[i].index, layer);
      places[i] = {offset, offset};
    }
    MustWork(stream.CopyIn(places_.data(), places, blocks.size() * sizeof(kv::KvSlicePlace)));
    MustWork(kernels_->kv_scatter({.blocks = SideOf(memory()),
                                   .staging = SideOf(memory()),
                                   .places = places_.as<kv::KvSlicePlace>(),
                                   .keys = keys_.as<uint64_t>(),
                                   .expected = expected_.as<uint64_t>(),
                                   .checksums = found_.as<uint64_t>(),
                                   .num_slices = static_cast<uint32_t>(blocks.size()),
                                   .slice_bytes = static_cast<uint32_t>(layout().SliceBytes())},
                                  stream.stream()));
    MustWork(results_->CopyOut(checksums.data(), found_.data(), blocks.size() * sizeof(uint64_t)));
    MustWork(results_->Finish());
  }

  const std::vector<RankBlocks> ranks_;
  const SealStream seals_;
  const cuda::KernelTable* const kernels_;
  DeviceBuffer keys_;
  DeviceBuffer places_;
  DeviceBuffer expected_;  // zeroes: a slice that has this checksum is copied onto itself
  DeviceBuffer found_;
  std::unique_ptr<HostStaging> results_;
  HostBuffer host_places_;
};

// Blocks of one rank.
StatusOr<RankBlocks> AllocateBlocks(Accelerator* device, const KvLayout& layout,
                                    uint32_t num_blocks, KvSharing sharing) {
  device->MakeCurrent();
  const size_t size_bytes = num_blocks * layout.BlockStride();
  BATON_ASSIGN_OR_RETURN(DeviceBuffer blocks,
                         sharing == KvSharing::kHost
                             ? CreateSharedBuffer(device, size_bytes, "KV blocks")
                             : DeviceBuffer::Create(device, size_bytes, "KV blocks"));
  return RankBlocks{device, std::move(blocks)};
}

}  // namespace

std::unique_ptr<KvStore> KvStore::OnHost(KvArena* arena) {
  return std::make_unique<HostKvStore>(arena);
}

StatusOr<std::unique_ptr<KvStore>> KvStore::Mirrored(Accelerator* device, const KvArena* arena) {
  BATON_ASSIGN_OR_RETURN(
      RankBlocks blocks,
      AllocateBlocks(device, arena->layout(), arena->num_blocks(), KvSharing::kPrivate));
  BATON_ASSIGN_OR_RETURN(SealStream seals, SealStream::Create(device));
  return std::make_unique<MirroredKvStore>(std::move(blocks), std::move(seals), arena);
}

StatusOr<std::unique_ptr<KvStore>> KvStore::Ranked(std::span<Accelerator* const> ranks,
                                                   const KvArena* arena) {
  const KvLayout layout = RankLayout(arena->layout(), static_cast<uint32_t>(ranks.size()));
  std::vector<RankBlocks> blocks;
  std::vector<SealStream> seals;
  for (Accelerator* const device : ranks) {
    BATON_ASSIGN_OR_RETURN(
        blocks.emplace_back(),
        AllocateBlocks(device, layout, arena->num_blocks(), KvSharing::kPrivate));
    BATON_ASSIGN_OR_RETURN(seals.emplace_back(), SealStream::Create(device));
  }
  return std::make_unique<RankedKvStore>(std::move(blocks), std::move(seals), arena);
}

StatusOr<std::unique_ptr<KvStore>> KvStore::OnDevice(std::span<Accelerator* const> ranks,
                                                     const cuda::KernelTable* kernels,
                                                     const KvLayout& layout, uint32_t num_blocks,
                                                     KvSharing sharing) {
  const auto num_ranks = static_cast<uint32_t>(ranks.size());
  BATON_RETURN_IF_ERROR(CheckSliceSize(layout, num_ranks));
  std::vector<RankBlocks> blocks;
  for (Accelerator* const device : ranks) {
    BATON_ASSIGN_OR_RETURN(
        blocks.emplace_back(),
        AllocateBlocks(device, RankLayout(layout, num_ranks), num_blocks, sharing));
  }
  KvMemory memory = MemoryOf(blocks, layout, num_blocks);
  if (num_ranks == 1) memory.ranks.clear();
  BATON_ASSIGN_OR_RETURN(SealStream seals, SealStream::Create(ranks[0]));
  auto store = std::make_unique<DeviceKvStore>(std::move(blocks), std::move(seals), kernels,
                                               std::move(memory));
  BATON_RETURN_IF_ERROR(store->Prepare());
  return store;
}

}  // namespace baton::engine
