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
  BATON_ASSIGN_OR_RETURN(const uint64_t available, AvailableMemoryBytes());
  if (available < options.reserve_bytes || available - options.reserve_bytes < *need) {
    return ResourceExhausted(
        "the KV arena needs {} bytes ({}) and {} bytes must stay free, but only {} bytes ({}) are "
        "available; lower --kv-memory or --max-context",
        *need, FormatSize(*need), options.reserve_bytes, available, FormatSize(available));
  }
  std::unique_ptr<KvArena> arena(new KvArena(layout, num_blocks));
  BATON_RETURN_IF_ERROR(arena->Map());
  BATON_RETURN_IF_ERROR(arena->Allocate(options));
  BATON_RETURN_IF_ERROR(WithPrefix(SealMemoryFile(arena->fd_.get()), "the KV arena"));
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

Status KvArena::Allocate(const KvArenaOptions& options) {
  for (uint64_t done = 0; done < size_bytes();) {
    const uint64_t step = std::min(kAllocateStepBytes, size_bytes() - done);
    BATON_RETURN_IF_ERROR(WithPrefix(AllocateMemoryFile(fd_.get(), done, step), "the KV arena"));
    done += step;
    if (options.progress && !options.progress(done, size_bytes())) {
      return Cancelled("allocating the KV arena was stopped at {} of {} bytes", done, size_bytes());
    }
  }
  return OkStatus();
}

StatusOr<std::unique_ptr<PeerArena>> PeerArena::Map(UniqueFd fd, const KvLayout& layout,
                                                    uint32_t num_blocks) {
  const auto size_bytes = CheckedMul(num_blocks, layout.BlockStride());
  if (!size_bytes.has_value() || *size_bytes == 0) {
    return FailedPrecondition("the peer's arena claims {} blocks", num_blocks);
  }
  BATON_RETURN_IF_ERROR(CheckMemoryFile(fd.get(), *size_bytes, "the peer's arena"));
  void* const base = mmap(nullptr, *size_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) {
    return FailedPrecondition("mapping {} bytes of the peer's arena: {}", *size_bytes,
                              ErrnoText(errno));
  }
  (void)madvise(base, *size_bytes, MADV_HUGEPAGE);
  (void)madvise(base, *size_bytes, MADV_DONTDUMP);
  std::unique_ptr<PeerArena> arena(new PeerArena(layout, num_blocks));
  arena->base_ = static_cast<const std::byte*>(base);
  return arena;
}

PeerArena::~PeerArena() {
  if (base_ == nullptr) return;
  munmap(const_cast<std::byte*>(base_), uint64_t{num_blocks_} * layout_.BlockStride());
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
