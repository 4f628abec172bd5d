#include "kvcache/kv_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "kvcache/available_memory.h"
#include "src/base/checked_math.h"
#include "src/base/errno_text.h"
#include "src/base/memory_file.h"
#include "src/base/size_text.h"

namespace baton::kv {
namespace {

// Pages get memory in such steps, and before each the system is asked whether it has so much.
constexpr uint64_t kAllocateStepBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxReadBytes = uint64_t{128} << 20;

}  // namespace

StatusOr<std::unique_ptr<KvArena>> KvArena::Create(const KvLayout& layout, uint32_t num_blocks,
                                                   const KvArenaOptions& options) {
  BATON_RETURN_IF_ERROR(layout.Validate());
  if (num_blocks == 0) return InvalidArgument("a KV arena needs at least one block");
  const auto need = CheckedMul(num_blocks, layout.BlockStride());
  if (!need.has_value() || *need > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return InvalidArgument("{} blocks of {} bytes are too many", num_blocks, layout.BlockStride());
  }
  std::unique_ptr<KvArena> arena(new KvArena(layout, num_blocks, options));
  BATON_ASSIGN_OR_RETURN(const uint64_t available, arena->AvailableBytes());
  if (available < options.reserve_bytes || available - options.reserve_bytes < *need) {
    return ResourceExhausted(
        "the KV arena needs {} bytes ({}) and {} bytes must stay free, but only {} bytes ({}) are "
        "available; lower --kv-memory or --max-context",
        *need, FormatSize(*need), options.reserve_bytes, available, FormatSize(available));
  }
  BATON_RETURN_IF_ERROR(arena->Map());
  BATON_RETURN_IF_ERROR(WithPrefix(SealMemoryFile(arena->fd_.get()), "the KV arena"));
  const uint32_t wanted = std::min(options.num_ready, num_blocks);
  arena->checked_bytes_ = wanted * layout.BlockStride();
  if (arena->Extend(wanted).num_ready < wanted) return arena->shortage();
  return arena;
}

KvArena::~KvArena() {
  if (base_ != nullptr) munmap(base_, size_bytes());
}

Status KvArena::Map() {
  BATON_ASSIGN_OR_RETURN(fd_, CreateMemoryFile("baton-kv-arena", size_bytes()));
  void* const base = mmap(nullptr, size_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (base == MAP_FAILED) {
    return ResourceExhausted("mapping {} bytes: {}", size_bytes(), ErrnoText(errno));
  }
  base_ = static_cast<std::byte*>(base);
  // Hints: huge pages where shmem_enabled allows them; no KV in core dumps.
  (void)madvise(base_, size_bytes(), MADV_HUGEPAGE);
  (void)madvise(base_, size_bytes(), MADV_DONTDUMP);
  return OkStatus();
}

StatusOr<uint64_t> KvArena::AvailableBytes() const {
  return options_.available_bytes ? options_.available_bytes() : AvailableMemoryBytes();
}

ReadyBlocks KvArena::ready() const {
  const uint32_t num_ready = num_ready_.load(std::memory_order_acquire);
  return {num_ready, limit_.load(std::memory_order_acquire)};
}

ReadyBlocks KvArena::Extend(uint32_t num_blocks) {
  const ReadyBlocks now = ready();
  if (num_blocks <= now.num_ready || now.is_final()) return now;
  const uint64_t end = uint64_t{std::min(num_blocks, num_blocks_)} * layout_.BlockStride();
  while (shortage_.ok() && allocated_bytes_ < end) shortage_ = AllocateNext(end);
  const auto num_ready = static_cast<uint32_t>(allocated_bytes_ / layout_.BlockStride());
  num_ready_.store(num_ready, std::memory_order_release);
  if (!shortage_.ok()) limit_.store(num_ready, std::memory_order_release);
  return ready();
}

Status KvArena::AllocateNext(uint64_t end) {
  const uint64_t step = std::min(kAllocateStepBytes, end - allocated_bytes_);
  if (allocated_bytes_ + step > checked_bytes_) {
    const uint64_t next = std::min(kAllocateStepBytes, size_bytes() - allocated_bytes_);
    BATON_ASSIGN_OR_RETURN(const uint64_t available, AvailableBytes());
    if (available < options_.reserve_bytes || available - options_.reserve_bytes < next) {
      return ResourceExhausted(
          "the KV arena has {} of its {} bytes, {} bytes must stay free, and only {} are available",
          allocated_bytes_, size_bytes(), options_.reserve_bytes, available);
    }
    checked_bytes_ = allocated_bytes_ + next;
  }
  BATON_RETURN_IF_ERROR(
      WithPrefix(AllocateMemoryFile(fd_.get(), allocated_bytes_, step), "the KV arena"));
  allocated_bytes_ += step;
  return OkStatus();
}

StatusOr<std::unique_ptr<PeerArena>> PeerArena::Map(UniqueFd fd, const KvLayout& layout,
                                                    uint32_t num_blocks) {
  const auto size_bytes = CheckedMul(num_blocks, layout.BlockStride());
  if (!size_bytes.has_value() || *size_bytes == 0) {
    return FailedPrecondition("the peer's arena claims {} blocks", num_blocks);
  }
  BATON_RETURN_IF_ERROR(CheckSealedFile(fd.get(), *size_bytes, "the peer's arena"));
  void* const base = mmap(nullptr, *size_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) {
    return FailedPrecondition("mapping {} bytes of the peer's arena: {}", *size_bytes,
                              ErrnoText(errno));
  }
  (void)madvise(base, *size_bytes, MADV_HUGEPAGE);
  (void)madvise(base, *size_bytes, MADV_DONTDUMP);
  std::unique_ptr<PeerArena> arena(new PeerArena(std::move(fd), layout, num_blocks));
  arena->base_ = static_cast<const std::byte*>(base);
  return arena;
}

PeerArena::~PeerArena() {
  if (base_ == nullptr) return;
  munmap(const_cast<std::byte*>(base_), uint64_t{num_blocks_} * layout_.BlockStride());
}

bool PeerArena::HasMemory(BlockIndex block) {
  if (block.value() >= num_blocks_) return false;
  const uint64_t end = (uint64_t{block.value()} + 1) * layout_.BlockStride();
  if (end > seen_bytes_) seen_bytes_ = AllocatedBytes(fd_.get());
  return end <= seen_bytes_;
}

void PeerArena::NoteRead(BlockIndex block) {
  if (read_[block.value()]) return;
  if (read_bytes_ >= kMaxReadBytes) {
    (void)madvise(const_cast<std::byte*>(base_), uint64_t{num_blocks_} * layout_.BlockStride(),
                  MADV_DONTNEED);
    read_.assign(num_blocks_, false);
    read_bytes_ = 0;
  }
  read_[block.value()] = true;
  read_bytes_ += layout_.BlockStride();
}

}  // namespace baton::kv
