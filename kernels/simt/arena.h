// The runner's device memory: one reserved range of addresses. Each buffer in it starts after an
// unreadable page, and ends as close to another as its alignment allows. Freed addresses are never
// used again, so a stale pointer faults. But shared memory, which no pointer may outlive, gets the
// freed addresses of its size, and so does memory of other processes. The range also makes the race
// detector's lookup an addition.
//
// Owned by one operating-system thread, or guarded by LaunchMutex() (device_memory.h).
// Invariants: (1) buffers are aligned to 256 bytes, as
// cudaMalloc's; (2) bytes of a new buffer are 0xFF (NaN in fp32 and bf16); (3) the pages around a
// buffer are never readable; (4) an imported buffer is never written here, neither by kernels
// ("bounds") nor by anybody else (its pages are read-only).
#ifndef BATON_KERNELS_SIMT_ARENA_H_
#define BATON_KERNELS_SIMT_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "src/base/unique_fd.h"

namespace baton::kernels::simt {
inline namespace runner {

// One buffer of an Arena: the bytes [begin, begin + size).
struct ArenaBuffer {
  std::byte* begin = nullptr;
  size_t size = 0;
  std::string name;
  bool is_shared = false;    // a cta's shared memory, which other ctas cannot reach
  bool is_imported = false;  // another arena's file
  bool is_written = false;   // a kernel has written there since the host last waited
  bool live = false;
  UniqueFd file;  // of AllocateFile
};

// The range and its buffers.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;
  static constexpr size_t kPageBytes = 4096;
  static constexpr size_t kRangeBytes = size_t{64} << 30;

  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `size` bytes of 0xFF; a size of 0 gives an address at which nothing may be read.
  // ResourceExhausted when the range is used up or the system refuses.
  absl::StatusOr<std::byte*> Allocate(size_t size, std::string name, bool is_shared = false);
  // Allocates as above, in a sealed memory file, which other arenas can import. InvalidArgument for
  // size 0.
  absl::StatusOr<std::byte*> AllocateFile(size_t size, std::string name);
  // Maps the file of an AllocateFile of `size` bytes, to be read. FailedPrecondition naming what is
  // wrong unless it is one.
  absl::StatusOr<std::byte*> Import(int file, size_t size, std::string name);
  // The descriptor of what AllocateFile gave, which stays the arena's; -1 = it did not.
  int FileOf(const std::byte* begin) const;
  // For all three.
  void Free(std::byte* begin);

  bool Contains(const void* address) const {
    return reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(base_) < kRangeBytes;
  }
  size_t OffsetOf(const void* address) const {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - base_);
  }
  // The live buffer that owns the page of an address the arena contains, or null.
  const ArenaBuffer* Find(const void* address) const {
    const uint32_t id = page_owner_[OffsetOf(address) / kPageBytes];
    return id == 0 || !buffers_[id - 1].live ? nullptr : &buffers_[id - 1];
  }
  // A kernel writes to an address of a live buffer.
  void NoteWrite(const void* address) {
    buffers_[page_owner_[OffsetOf(address) / kPageBytes] - 1].is_written = true;
  }
  // The host has waited for all kernels.
  void NoteWait() {
    for (ArenaBuffer& buffer : buffers_) buffer.is_written = false;
  }
  // "byte 12 of 'weights' (64 bytes)", "8 bytes behind 'weights' (64 bytes)".
  std::string Describe(const void* address) const;

 private:
  // A buffer at the next addresses, with its guard pages; nothing is readable yet.
  absl::StatusOr<ArenaBuffer*> Place(size_t size, std::string name);
  // A freed piece of shared or imported memory of this size, or null.
  ArenaBuffer* FindFree(size_t size, bool is_imported);
  static std::span<std::byte> PagesOf(const ArenaBuffer& buffer);
  static absl::Status MakeReadable(const ArenaBuffer& buffer);
  // Maps a file over the buffer's pages.
  static absl::Status MapFile(const ArenaBuffer& buffer, int file, int protection);

  std::byte* base_ = nullptr;
  size_t used_ = 0;
  uint32_t* page_owner_ = nullptr;  // [kRangeBytes / kPageBytes] 1 + index in buffers_, 0 = none
  std::vector<ArenaBuffer> buffers_;
  std::vector<uint32_t> free_;  // indices in buffers_: shared and imported memory
};

// One owned buffer of the calling thread's arena; move-only.
class SimBuffer {
 public:
  // Stops the process when there is no memory: for tests and small fixed sizes.
  SimBuffer(size_t size, std::string name);
  // Owns what Arena::Allocate gave.
  SimBuffer(std::byte* begin, size_t size) : begin_(begin), size_(size) {}
  SimBuffer(SimBuffer&& other) noexcept
      : begin_(std::exchange(other.begin_, nullptr)), size_(other.size_) {}
  SimBuffer& operator=(SimBuffer&&) = delete;
  ~SimBuffer();

  std::byte* data() const { return begin_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(begin_);
  }

 private:
  std::byte* begin_;
  size_t size_;
};

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_ARENA_H_
