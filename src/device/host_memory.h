// HostMemory: the memory that stands for pinned memory on a device that has none of it (the runner,
// a fake in tests). It is plain memory of which the class knows every piece. So a copy to or from
// any other memory can be noted. With a GPU that copy would, or might, wait (HostBuffer).
//
// Any thread.
#ifndef BATON_DEVICE_HOST_MEMORY_H_
#define BATON_DEVICE_HOST_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "src/base/mutex.h"
#include "src/device/aligned_buffer.h"

namespace baton::device {

// See the file comment.
class HostMemory {
 public:
  // As Accelerator's AllocateHost.
  absl::StatusOr<std::byte*> Allocate(size_t size_bytes, std::string_view name) {
    absl::StatusOr<AlignedBuffer> made = AlignedBuffer::Allocate(size_bytes);
    if (!made.ok()) return WithPrefix(made.status(), absl::string_view(name.data(), name.size()));
    AlignedBuffer piece = *std::move(made);
    std::byte* const begin = piece.data();
    const MutexLock lock(mutex_);
    pieces_[begin] = {size_bytes, std::move(piece)};
    return begin;
  }
  void Free(std::byte* begin) {
    const MutexLock lock(mutex_);
    pieces_.erase(begin);
  }
  // Memory of others that counts as this kind until Free.
  void Pin(std::byte* begin, size_t size_bytes) {
    const MutexLock lock(mutex_);
    pieces_[begin] = {size_bytes, AlignedBuffer()};
  }
  bool Has(const void* begin, size_t size_bytes) const {
    const auto* const first = static_cast<const std::byte*>(begin);
    const MutexLock lock(mutex_);
    const auto next = pieces_.upper_bound(first);
    if (next == pieces_.begin()) return false;
    const auto& [start, piece] = *std::prev(next);
    return first + size_bytes <= start + piece.size_bytes;
  }

  // A device copies out to this place.
  void NoteCopy(const void* to, size_t size_bytes) {
    if (!Has(to, size_bytes)) num_waits_.fetch_add(1, std::memory_order_relaxed);
  }
  // Such copies so far for which a GPU would have waited.
  uint64_t num_waits() const { return num_waits_.load(std::memory_order_relaxed); }

  // A device copies in from this place.
  void NoteCopyFrom(const void* from, size_t size_bytes) {
    if (!Has(from, size_bytes)) num_staged_.fetch_add(1, std::memory_order_relaxed);
  }
  // Such copies so far that a GPU might have waited for.
  uint64_t num_staged() const { return num_staged_.load(std::memory_order_relaxed); }

 private:
  struct Piece {
    size_t size_bytes = 0;
    AlignedBuffer memory;  // empty where it is others'
  };

  mutable Mutex mutex_;
  std::map<const std::byte*, Piece> pieces_ BATON_GUARDED_BY(mutex_);
  std::atomic<uint64_t> num_waits_ = 0;
  std::atomic<uint64_t> num_staged_ = 0;
};

}  // namespace baton::device

#endif  // BATON_DEVICE_HOST_MEMORY_H_
