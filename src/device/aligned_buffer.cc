#include "src/device/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "src/base/check.h"

namespace baton::device {
namespace {

// Bytes that are mapped for `size` bytes.
size_t MappedBytes(size_t size) {
  constexpr size_t kMask = AlignedBuffer::kHugePageBytes - 1;
  return (size + kMask) & ~kMask;
}

// Zero pages at a multiple of 2 MiB, or nullptr: maps more and gives the ends back.
void* MapHuge(size_t bytes) {
  constexpr size_t kHuge = AlignedBuffer::kHugePageBytes;
  void* const mapped =
      mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  std::byte* const begin = static_cast<std::byte*>(mapped);
  const size_t head = (kHuge - reinterpret_cast<uintptr_t>(begin) % kHuge) % kHuge;
  if (head > 0) munmap(begin, head);
  if (kHuge > head) munmap(begin + head + bytes, kHuge - head);
  // A hint: without huge pages the same bytes are there, a little slower.
  (void)madvise(begin + head, bytes, MADV_HUGEPAGE);
  return begin + head;
}

}  // namespace

AlignedBuffer::~AlignedBuffer() {
  if (size_ >= kHugePageBytes) {
    munmap(data_, MappedBytes(size_));
  } else {
    std::free(data_);
  }
}

absl::StatusOr<AlignedBuffer> AlignedBuffer::Allocate(size_t size) {
  AlignedBuffer buffer;
  if (size == 0) return buffer;
  if (size > SIZE_MAX / 2) return ResourceExhausted("cannot allocate {} bytes", size);
  void* memory = nullptr;
  if (size >= kHugePageBytes) {
    memory = MapHuge(MappedBytes(size));
  } else {
    const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
    memory = std::aligned_alloc(kAlignment, rounded);
    if (memory != nullptr) std::memset(memory, 0, rounded);
  }
  if (memory == nullptr) return ResourceExhausted("cannot allocate {} bytes", size);
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.size_ = size;
  return buffer;
}

AlignedBuffer AlignedBuffer::AllocateOrDie(size_t size) {
  absl::StatusOr<AlignedBuffer> buffer = Allocate(size);
  BATON_CHECK(buffer.ok(), "out of memory for {} bytes at start", size);
  return *std::move(buffer);
}

}  // namespace baton::device
