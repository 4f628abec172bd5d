#include "kernels/simt/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/simt/device_memory.h"
#include "src/base/check.h"
#include "src/base/errno_text.h"
#include "src/base/memory_file.h"
#include "src/base/status.h"

namespace baton::kernels::simt {
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
  ArenaBuffer& buffer = buffers_.emplace_back();
  buffer.begin = first_page + pages - bytes;
  buffer.size = size;
  buffer.name = std::move(name);
  buffer.live = true;
  // The guard page after it belongs to the buffer too: an address there is reported as past its
  // end.
  for (size_t page = 0; page <= pages / kPageBytes; ++page) {
    page_owner_[used_ / kPageBytes + page] = static_cast<uint32_t>(buffers_.size());
  }
  used_ += pages + kPageBytes;
  return &buffers_.back();
}

ArenaBuffer* Arena::FindFree(size_t size, bool is_imported) {
  const auto it = std::find_if(free_.begin(), free_.end(), [&](uint32_t idx) {
    return buffers_[idx].size == size && buffers_[idx].is_imported == is_imported;
  });
  if (it == free_.end()) return nullptr;
  ArenaBuffer* const buffer = &buffers_[*it];
  free_.erase(it);
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
  ArenaBuffer* buffer = is_shared ? FindFree(size, false) : nullptr;
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

absl::Status Arena::MapFile(const ArenaBuffer& buffer, int file, int protection) {
  const std::span<std::byte> pages = PagesOf(buffer);
  if (mmap(pages.data(), pages.size(), protection, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    return ResourceExhausted("mapping the file of '{}' of {} bytes: {}", buffer.name, buffer.size,
                             ErrnoText(errno));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> Arena::AllocateFile(size_t size, std::string name) {
  if (size == 0) return InvalidArgument("a memory file of 0 bytes");
  BATON_ASSIGN_OR_RETURN(ArenaBuffer* const buffer, Place(size, std::move(name)));
  const std::span<std::byte> pages = PagesOf(*buffer);
  const auto prepare = [&]() -> absl::Status {
    BATON_ASSIGN_OR_RETURN(buffer->file, CreateMemoryFile("baton-simt-memory", pages.size()));
    BATON_RETURN_IF_ERROR(AllocateMemoryFile(buffer->file.get(), 0, pages.size()));
    BATON_RETURN_IF_ERROR(MapFile(*buffer, buffer->file.get(), PROT_READ | PROT_WRITE));
    std::memset(pages.data(), 0xFF, pages.size());
    return SealMemoryFile(buffer->file.get());
  };
  if (absl::Status status = prepare(); !status.ok()) {
    Free(buffer->begin);
    return status;
  }
  return buffer->begin;
}

absl::StatusOr<std::byte*> Arena::Import(int file, size_t size, std::string name) {
  const size_t pages = RoundUp(RoundUp(size, kAlignment), kPageBytes);
  if (size == 0 || pages < size) return InvalidArgument("'{}' of {} bytes", name, size);
  BATON_RETURN_IF_ERROR(CheckMemoryFile(file, pages, name));
  ArenaBuffer* buffer = FindFree(size, true);
  if (buffer == nullptr) {
    BATON_ASSIGN_OR_RETURN(buffer, Place(size, std::move(name)));
    buffer->is_imported = true;
  }
  if (absl::Status status = MapFile(*buffer, file, PROT_READ); !status.ok()) {
    Free(buffer->begin);
    return status;
  }
  return buffer->begin;
}

int Arena::FileOf(const std::byte* begin) const {
  const ArenaBuffer* const buffer = Contains(begin) ? Find(begin) : nullptr;
  return buffer == nullptr || buffer->begin != begin ? -1 : buffer->file.get();
}

void Arena::Free(std::byte* begin) {
  const uint32_t id = page_owner_[OffsetOf(begin) / kPageBytes];
  BATON_CHECK(id != 0 && buffers_[id - 1].live && buffers_[id - 1].begin == begin,
              "no buffer begins at {}", static_cast<void*>(begin));
  ArenaBuffer& buffer = buffers_[id - 1];
  buffer.live = false;
  if (buffer.is_shared || buffer.is_imported) free_.push_back(id - 1);
  const std::span<std::byte> pages = PagesOf(buffer);
  if (pages.empty()) return;
  if (buffer.is_imported || buffer.file.valid()) {
    buffer.file.reset();
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    BATON_CHECK(mmap(pages.data(), pages.size(), PROT_NONE, flags, -1, 0) != MAP_FAILED,
                "a freed file stays readable");
    return;
  }
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
}  // namespace baton::kernels::simt
