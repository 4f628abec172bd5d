#include "src/device/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "src/base/check.h"

namespace baton {

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

absl::StatusOr<AlignedBuffer> AlignedBuffer::Allocate(size_t size) {
  AlignedBuffer buffer;
  if (size == 0) return buffer;
  const bool huge = size >= kHugePageBytes;
  const size_t alignment = huge ? kHugePageBytes : kAlignment;
  if (size > SIZE_MAX - alignment) return ResourceExhausted("cannot allocate {} bytes", size);
  const size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) return ResourceExhausted("cannot allocate {} bytes", rounded);
  // A hint: without huge pages the same bytes are there, a little slower.
  if (huge) (void)madvise(memory, rounded, MADV_HUGEPAGE);
  std::memset(memory, 0, rounded);
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.size_ = size;
  return buffer;
}

AlignedBuffer AlignedBuffer::AllocateOrDie(size_t size) {
  absl::StatusOr<AlignedBuffer> buffer = Allocate(size);
  BATON_CHECK(buffer.ok(), "out of memory for {} bytes at start", size);
  return *std::move(buffer);
}

}  // namespace baton
