#include "tests/model/memory_meter.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace baton::model {
namespace {

std::atomic<size_t> g_live_bytes{0};
std::atomic<size_t> g_peak_bytes{0};
std::atomic<uint64_t> g_num_allocations{0};

void* Allocate(size_t size, size_t alignment) {
  void* memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  const size_t live = g_live_bytes += malloc_usable_size(memory);
  size_t peak = g_peak_bytes.load();
  while (live > peak && !g_peak_bytes.compare_exchange_weak(peak, live)) {
  }
  ++g_num_allocations;
  return memory;
}

void Release(void* memory) {
  if (memory == nullptr) return;
  g_live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

MemoryMeter::MemoryMeter()
    : start_bytes_(g_live_bytes.load()), start_allocations_(g_num_allocations.load()) {
  g_peak_bytes = start_bytes_;
}

size_t MemoryMeter::PeakBytes() const { return g_peak_bytes.load() - start_bytes_; }

uint64_t MemoryMeter::NumAllocations() const {
  return g_num_allocations.load() - start_allocations_;
}

}  // namespace baton::model

void* operator new(size_t size) { return baton::model::Allocate(size, 0); }
void* operator new[](size_t size) { return baton::model::Allocate(size, 0); }
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return baton::model::Allocate(size, 0);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return baton::model::Allocate(size, 0);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return baton::model::Allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return baton::model::Allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { baton::model::Release(memory); }
void operator delete[](void* memory) noexcept { baton::model::Release(memory); }
void operator delete(void* memory, size_t) noexcept { baton::model::Release(memory); }
void operator delete[](void* memory, size_t) noexcept { baton::model::Release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { baton::model::Release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { baton::model::Release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  baton::model::Release(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  baton::model::Release(memory);
}
