#include "kernels/simt/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "kernels/simt/device_memory.h"
#include "src/base/check.h"
#include "src/base/status.h"

namespace baton::simt {
inline namespace runner {
namespace {

size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void* MapNoReserve(size_t bytes, int protection) {
  void* base = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BATON_CHECK(base != MAP_FAILED, "{} bytes of addresses for the runner are refused", bytes);
  return base;
}

}  // namespace

Arena::Arena()
    : base_(static_cast<std::byte*>(MapNoReserve(kRangeBytes, PROT_NONE))),
      used_(kPageBytes),
      page_owner_(static_cast<uint32_t*>(
          MapNoReserve(kRangeBytes / kPageBytes * sizeof(uint32_t), PROT_READ | PROT_WRITE))) {}

Arena::~Arena() {
  munmap(base_, kRangeBytes);
  munmap(page_owner_, kRangeBytes / kPageBytes * sizeof(uint32_t));
}

absl::StatusOr<ArenaBuffer*> Arena::Place(size_t size, std::string name) {
  // [guard page, there already][pages of the buffer, its end at their end][guard page]
  const size_t bytes = RoundUp(size, kAlignment);
  const size_t pages = RoundUp(bytes, kPageBytes);
  if (pages + kPageBytes > kRangeBytes - used_) {
    return ResourceExhausted("buffer '{}' needs {} bytes, {} of {} addresses are left", name, size,
                             kRangeBytes - used_, kRangeBytes);
  }
  std::byte* first_page = base_ + used_;
  buffers_.push_back({first_page + pages - bytes, size, std::move(name), false, true});
  // The guard page behind belongs to the buffer too: an address there is reported as past its end.
  for (size_t page = 0; page <= pages / kPageBytes; ++page) {
    page_owner_[used_ / kPageBytes + page] = static_cast<uint32_t>(buffers_.size());
  }
  used_ += pages + kPageBytes;
  return &buffers_.back();
}

ArenaBuffer* Arena::FindFreeShared(size_t size) {
  const auto it = std::find_if(free_shared_.begin(), free_shared_.end(),
                               [&](uint32_t idx) { return buffers_[idx].size == size; });
  if (it == free_shared_.end()) return nullptr;
  ArenaBuffer* const buffer = &buffers_[*it];
  free_shared_.erase(it);
  buffer->live = true;
  return buffer;
}

std::span<std::byte> Arena::PagesOf(const ArenaBuffer& buffer) {
  const size_t bytes = RoundUp(buffer.size, kAlignment);
  const size_t pages = RoundUp(bytes, kPageBytes);
  return {buffer.begin + bytes - pages, pages};
}

absl::Status Arena::MakeReadable(const ArenaBuffer& buffer) {
  const std::span<std::byte> pages = PagesOf(buffer);
  if (pages.empty()) return absl::OkStatus();
  if (mprotect(pages.data(), pages.size(), PROT_READ | PROT_WRITE) != 0) {
    return ResourceExhausted("no memory for buffer '{}' of {} bytes", buffer.name, buffer.size);
  }
  std::memset(buffer.begin, 0xFF, RoundUp(buffer.size, kAlignment));
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> Arena::Allocate(size_t size, std::string name, bool is_shared) {
  ArenaBuffer* buffer = is_shared ? FindFreeShared(size) : nullptr;
  if (buffer == nullptr) {
    BATON_ASSIGN_OR_RETURN(buffer, Place(size, std::move(name)));
    buffer->is_shared = is_shared;
  }
  if (absl::Status status = MakeReadable(*buffer); !status.ok()) {
    buffer->live = false;
    return status;
  }
  return buffer->begin;
}

void Arena::Free(std::byte* begin) {
  const uint32_t id = page_owner_[OffsetOf(begin) / kPageBytes];
  BATON_CHECK(id != 0 && buffers_[id - 1].live && buffers_[id - 1].begin == begin,
              "no buffer begins at {}", static_cast<void*>(begin));
  ArenaBuffer& buffer = buffers_[id - 1];
  buffer.live = false;
  if (buffer.is_shared) free_shared_.push_back(id - 1);
  const std::span<std::byte> pages = PagesOf(buffer);
  if (pages.empty()) return;
  madvise(pages.data(), pages.size(), MADV_DONTNEED);
  BATON_CHECK(mprotect(pages.data(), pages.size(), PROT_NONE) == 0,
              "a freed buffer stays readable");
}

std::string Arena::Describe(const void* address) const {
  if (!Contains(address)) return fmt::format("{}, outside the device's memory", address);
  const auto* at = static_cast<const std::byte*>(address);
  const uint32_t id = page_owner_[OffsetOf(address) / kPageBytes];
  if (id != 0 && !buffers_[id - 1].live) {
    return fmt::format("byte {} of '{}', which was freed", at - buffers_[id - 1].begin,
                       buffers_[id - 1].name);
  }
  if (id == 0) return fmt::format("{}, in no buffer", address);
  const ArenaBuffer& buffer = buffers_[id - 1];
  const auto offset = at - buffer.begin;
  const auto size = static_cast<ptrdiff_t>(buffer.size);
  const std::string what = fmt::format("'{}' ({} bytes)", buffer.name, buffer.size);
  if (offset < 0) return fmt::format("{} bytes before {}", -offset, what);
  if (offset >= size) return fmt::format("{} bytes behind the end of {}", offset - size, what);
  return fmt::format("byte {} of {}", offset, what);
}

SimBuffer::SimBuffer(size_t size, std::string name) : begin_(nullptr), size_(size) {
  auto begin = DeviceMemory::OfThisThread().arena.Allocate(size, std::move(name));
  BATON_CHECK(begin.ok(), "{}", std::string(begin.status().message()));
  begin_ = *begin;
}

SimBuffer::~SimBuffer() {
  if (begin_ != nullptr) DeviceMemory::OfThisThread().arena.Free(begin_);
}

}  // namespace runner
}  // namespace baton::simt
