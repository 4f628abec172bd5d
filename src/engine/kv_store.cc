#include "src/engine/kv_store.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kvcache/transport/slice_copy.h"
#include "kvcache/transport/slice_device.h"
#include "src/base/log.h"
#include "src/device/device_stream.h"
#include "src/device/host_staging.h"

namespace baton {
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
  explicit HostKvStore(const KvArena* arena) : KvStore(arena->memory()), arena_(arena) {}

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
  const KvArena* const arena_;
};

// Where what is sealed is copied or hashed: a stream beside that of the device, behind what the
// store itself put into that.
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
    // What Adopt put into the stream may still read it.
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

// A store whose blocks are in a device's memory.
class DeviceBlocks : public KvStore {
 public:
  void Copy(uint32_t from, uint32_t to) override {
    device_->MakeCurrent();
    MustWork(device_->CopyWithin(memory().Block(BlockIndex(to)), memory().Block(BlockIndex(from)),
                                 layout().BlockBytes()));
    seals_.NoteChange();
  }

 protected:
  DeviceBlocks(Accelerator* device, SealStream seals, DeviceBuffer blocks, const KvLayout& layout,
               uint32_t num_blocks)
      : KvStore({blocks.data(), layout, num_blocks}),
        device_(device),
        blocks_(std::move(blocks)),
        seals_(std::move(seals)) {}
  Accelerator* device() const { return device_; }
  SealStream& seals() { return seals_; }

 private:
  Accelerator* const device_;
  const DeviceBuffer blocks_;
  SealStream seals_;
};

// See KvStore.
class MirroredKvStore final : public DeviceBlocks {
 public:
  MirroredKvStore(Accelerator* device, SealStream seals, DeviceBuffer blocks, const KvArena* arena)
      : DeviceBlocks(device, std::move(seals), std::move(blocks), arena->layout(),
                     arena->num_blocks()),
        arena_(device, arena) {}

  void Seal(std::span<const BlockHandle> blocks, uint32_t layer,
            std::span<uint64_t> checksums) override {
    Accelerator& stream = seals().Begin();
    for (const BlockHandle block : blocks) {
      MustWork(stream.CopyOut(arena_->Slice(block.index, layer), memory().Slice(block.index, layer),
                              layout().SliceBytes()));
    }
    seals().Wait();
    HashSlices(*arena_, blocks, layer, checksums);
  }
  void Adopt(std::span<const BlockHandle> blocks) override {
    device()->MakeCurrent();
    for (const BlockHandle block : blocks) {
      MustWork(device()->CopyIn(memory().Block(block.index), arena_->Block(block.index),
                                layout().BlockBytes()));
    }
    seals().NoteChange();
  }

 private:
  const PinnedArena arena_;
};

// Where the blocks of one rank lie.
struct RankBlocks {
  Accelerator* device;
  DeviceBuffer blocks;
  SealStream seals;
};

// See KvStore.
class RankedKvStore final : public KvStore {
 public:
  RankedKvStore(std::vector<RankBlocks> ranks, const KvArena* arena)
      : KvStore({nullptr, arena->layout(), arena->num_blocks()}, BasesOf(ranks)),
        rank_layout_(RankLayout(arena->layout(), static_cast<uint32_t>(ranks.size()))),
        ranks_(std::move(ranks)),
        arena_(ranks_[0].device, arena) {}

  // What Adopt put into the streams may still read the arena.
  ~RankedKvStore() override {
    for (const RankBlocks& rank : ranks_) {
      rank.device->MakeCurrent();
      (void)rank.device->Wait();
    }
  }

  void Seal(std::span<const BlockHandle> blocks, uint32_t layer,
            std::span<uint64_t> checksums) override {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Accelerator& stream = ranks_[rank].seals.Begin();
      for (const BlockHandle block : blocks) {
        MustWork(stream.CopyRowsOut(arena_->Slice(block.index, layer) + rank * HeadBytes(),
                                    BlockOf(rank, block.index) + layer * rank_layout_.SliceBytes(),
                                    Heads(1)));
      }
    }
    for (RankBlocks& rank : ranks_) rank.seals.Wait();
    HashSlices(*arena_, blocks, layer, checksums);
  }
  void Adopt(std::span<const BlockHandle> blocks) override {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].device->MakeCurrent();
      for (const BlockHandle block : blocks) {
        MustWork(ranks_[rank].device->CopyRowsIn(BlockOf(rank, block.index),
                                                 arena_->Block(block.index) + rank * HeadBytes(),
                                                 Heads(layout().num_layers)));
      }
      ranks_[rank].seals.NoteChange();
    }
  }
  void Copy(uint32_t from, uint32_t to) override {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].device->MakeCurrent();
      MustWork(ranks_[rank].device->CopyWithin(BlockOf(rank, BlockIndex(to)),
                                               BlockOf(rank, BlockIndex(from)),
                                               rank_layout_.BlockBytes()));
      ranks_[rank].seals.NoteChange();
    }
  }

 private:
  static std::vector<std::byte*> BasesOf(const std::vector<RankBlocks>& ranks) {
    std::vector<std::byte*> bases;
    for (const RankBlocks& rank : ranks) bases.push_back(rank.blocks.data());
    return bases;
  }
  std::byte* BlockOf(size_t rank, BlockIndex block) const {
    return ranks_[rank].blocks.data() + block.value() * rank_layout_.BlockStride();
  }
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
  std::vector<RankBlocks> ranks_;
  const PinnedArena arena_;
};

// See KvStore. Slices are hashed where they lie, by KvScatter with the blocks as its staging.
class DeviceKvStore final : public DeviceBlocks {
 public:
  DeviceKvStore(Accelerator* device, SealStream seals, const cuda::KernelTable* kernels,
                DeviceBuffer blocks, const KvMemory& shape)
      : DeviceBlocks(device, std::move(seals), std::move(blocks), shape.layout, shape.num_blocks),
        kernels_(kernels) {}

  Status Prepare() {
    const auto keys = cuda::Xxh3Keys();
    BATON_ASSIGN_OR_RETURN(keys_, DeviceBuffer::Create(device(), sizeof(keys), "keys of XXH3"));
    BATON_RETURN_IF_ERROR(device()->CopyIn(keys_.data(), keys.data(), sizeof(keys)));
    BATON_ASSIGN_OR_RETURN(
        places_, DeviceBuffer::Create(device(), kMaxHashedAtOnce * sizeof(cuda::KvSlicePlace),
                                      "places of KV slices"));
    const size_t list_bytes = kMaxHashedAtOnce * sizeof(uint64_t);
    BATON_ASSIGN_OR_RETURN(expected_, DeviceBuffer::Create(device(), list_bytes, "checksums"));
    BATON_ASSIGN_OR_RETURN(found_, DeviceBuffer::Create(device(), list_bytes, "found checksums"));
    BATON_ASSIGN_OR_RETURN(results_,
                           HostStaging::Create(seals().device(), list_bytes, "checksums"));
    const std::vector<uint64_t> zeroes(kMaxHashedAtOnce);
    BATON_RETURN_IF_ERROR(device()->CopyIn(expected_.data(), zeroes.data(), list_bytes));
    host_places_.reserve(kMaxHashedAtOnce);
    return device()->Wait();
  }

  void Seal(std::span<const BlockHandle> blocks, uint32_t layer,
            std::span<uint64_t> checksums) override {
    Accelerator& stream = seals().Begin();
    for (size_t done = 0; done < blocks.size(); done += kMaxHashedAtOnce) {
      const size_t count = std::min(kMaxHashedAtOnce, blocks.size() - done);
      HashSome(stream, blocks.subspan(done, count), layer, checksums.subspan(done, count));
    }
  }
  void Adopt(std::span<const BlockHandle>) override {}
  // The transport has another stream: a block that the engine lets go of may be written by it.
  void Copy(uint32_t from, uint32_t to) override {
    DeviceBlocks::Copy(from, to);
    MustWork(device()->Wait());
  }

 private:
  void HashSome(Accelerator& stream, std::span<const BlockHandle> blocks, uint32_t layer,
                std::span<uint64_t> checksums) {
    host_places_.clear();
    for (const BlockHandle block : blocks) {
      const uint64_t offset = memory().SliceOffset(block.index, layer);
      host_places_.push_back({offset, offset});
    }
    MustWork(stream.CopyIn(places_.data(), host_places_.data(),
                           blocks.size() * sizeof(cuda::KvSlicePlace)));
    MustWork(kernels_->kv_scatter({.blocks = memory().base,
                                   .staging = memory().base,
                                   .places = places_.as<cuda::KvSlicePlace>(),
                                   .keys = keys_.as<uint64_t>(),
                                   .expected = expected_.as<uint64_t>(),
                                   .checksums = found_.as<uint64_t>(),
                                   .num_slices = static_cast<uint32_t>(blocks.size()),
                                   .slice_bytes = static_cast<uint32_t>(layout().SliceBytes())},
                                  stream.stream()));
    MustWork(results_->CopyOut(checksums.data(), found_.data(), blocks.size() * sizeof(uint64_t)));
    MustWork(results_->Finish());
  }

  const cuda::KernelTable* const kernels_;
  DeviceBuffer keys_;
  DeviceBuffer places_;
  DeviceBuffer expected_;  // zeroes: a slice that has this checksum is copied onto itself
  DeviceBuffer found_;
  std::unique_ptr<HostStaging> results_;
  std::vector<cuda::KvSlicePlace> host_places_;
};

StatusOr<DeviceBuffer> AllocateBlocks(Accelerator* device, const KvLayout& layout,
                                      uint32_t num_blocks, KvSharing sharing) {
  device->MakeCurrent();
  const size_t size_bytes = num_blocks * layout.BlockStride();
  if (sharing == KvSharing::kHost) {
    return DeviceBuffer::CreateShared(device, size_bytes, "KV blocks");
  }
  return DeviceBuffer::Create(device, size_bytes, "KV blocks");
}

}  // namespace

std::unique_ptr<KvStore> KvStore::OnHost(const KvArena* arena) {
  return std::make_unique<HostKvStore>(arena);
}

StatusOr<std::unique_ptr<KvStore>> KvStore::Mirrored(Accelerator* device, const KvArena* arena) {
  BATON_ASSIGN_OR_RETURN(
      DeviceBuffer blocks,
      AllocateBlocks(device, arena->layout(), arena->num_blocks(), KvSharing::kPrivate));
  BATON_ASSIGN_OR_RETURN(SealStream seals, SealStream::Create(device));
  return std::make_unique<MirroredKvStore>(device, std::move(seals), std::move(blocks), arena);
}

StatusOr<std::unique_ptr<KvStore>> KvStore::Ranked(std::span<Accelerator* const> devices,
                                                   uint32_t num_ranks, const KvArena* arena) {
  std::vector<RankBlocks> ranks;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    Accelerator* const device = devices[devices.size() == 1 ? 0 : rank];
    BATON_ASSIGN_OR_RETURN(DeviceBuffer blocks,
                           AllocateBlocks(device, RankLayout(arena->layout(), num_ranks),
                                          arena->num_blocks(), KvSharing::kPrivate));
    BATON_ASSIGN_OR_RETURN(SealStream seals, SealStream::Create(device));
    ranks.push_back({device, std::move(blocks), std::move(seals)});
  }
  return std::make_unique<RankedKvStore>(std::move(ranks), arena);
}

StatusOr<std::unique_ptr<KvStore>> KvStore::OnDevice(Accelerator* device,
                                                     const cuda::KernelTable* kernels,
                                                     const KvLayout& layout, uint32_t num_blocks,
                                                     KvSharing sharing) {
  BATON_RETURN_IF_ERROR(CheckSliceSize(layout));
  BATON_ASSIGN_OR_RETURN(DeviceBuffer blocks, AllocateBlocks(device, layout, num_blocks, sharing));
  BATON_ASSIGN_OR_RETURN(SealStream seals, SealStream::Create(device));
  auto store = std::make_unique<DeviceKvStore>(device, std::move(seals), kernels, std::move(blocks),
                                               KvMemory{nullptr, layout, num_blocks});
  BATON_RETURN_IF_ERROR(store->Prepare());
  return store;
}

}  // namespace baton
