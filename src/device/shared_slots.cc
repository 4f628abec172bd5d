#include "src/device/shared_slots.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>
#include <utility>

#include "absl/cleanup/cleanup.h"

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/errno_text.h"
#include "src/base/memory_file.h"
#include "src/base/size_text.h"
#include "src/device/aligned_buffer.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

namespace baton::device {
namespace {

constexpr int kRequiredSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr uint64_t kWindowBytes = AlignedBuffer::kHugePageBytes;
constexpr uint64_t kPageBytes = 4096;  // at least one of the header's; the smallest piece of memory
static_assert(sizeof(SlotsHeader) <= kPageBytes);
// So much memory is taken at once by a thread.
constexpr uint64_t kPieceBytes = 32 * kWindowBytes;
// The lock of the header; slot i has the lock i + 1.
constexpr uint64_t kHeaderLock = 0;
// After so long, one that waits looks whether the process with the lock was killed.
constexpr int64_t kLookUs = 5'000;

constexpr uint64_t RoundUp(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}

Status CheckDescriptor(int fd) {
  if (::fcntl(fd, F_GET_SEALS) < 0)
    return FailedPrecondition("descriptor {} is no memory file", fd);
  struct stat info;
  if (::fstat(fd, &info) != 0) return FailedPrecondition("the memory file: {}", ErrnoText(errno));
  if (info.st_uid != ::geteuid()) {
    return FailedPrecondition("the memory file belongs to user {}, this process to user {}",
                              info.st_uid, ::geteuid());
  }
  if (static_cast<uint64_t>(info.st_size) < kPageBytes) {
    return FailedPrecondition("the memory file has {} bytes, shared slots have {} and more",
                              info.st_size, kPageBytes);
  }
  return OkStatus();
}

// Places in the address space where a mapping of `size` begins at a border of huge pages.
void* ReserveAligned(size_t size) {
  void* const mapped = ::mmap(nullptr, size + kWindowBytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  std::byte* const begin = static_cast<std::byte*>(mapped);
  const size_t head =
      (kWindowBytes - reinterpret_cast<uintptr_t>(begin) % kWindowBytes) % kWindowBytes;
  if (head > 0) (void)::munmap(begin, head);
  const size_t used = RoundUp(size, kPageBytes);
  (void)::munmap(begin + head + used, size + kWindowBytes - head - used);
  return begin + head;
}

}  // namespace

StatusOr<UniqueFd> SharedSlots::CreateFile() {
  BATON_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemoryFile("baton-weights", kPageBytes));
  BATON_RETURN_IF_ERROR(AllocateMemoryFile(fd.get(), 0, kPageBytes));
  const uint64_t magic = SlotsHeader::kMagic;
  if (::pwrite(fd.get(), &magic, sizeof(magic), offsetof(SlotsHeader, magic)) != sizeof(magic)) {
    return Unavailable("writing a memory file: {}", ErrnoText(errno));
  }
  return fd;
}

SharedSlots::SharedSlots(const SlotsWanted& wanted, UniqueFd fd)
    : identity_(wanted.identity),
      patience_us_(wanted.patience_us),
      sizes_(wanted.sizes),
      fd_(std::move(fd)) {
  uint64_t at = kPageBytes + sizes_.size() * sizeof(std::atomic<uint32_t>);
  for (const uint64_t size : sizes_) {
    at = RoundUp(at, AlignedBuffer::kAlignment);
    offsets_.push_back(at);
    at += size;
  }
  size_bytes_ = RoundUp(at, kWindowBytes);
}

SharedSlots::~SharedSlots() { Unmap(); }

StatusOr<std::unique_ptr<SharedSlots>> SharedSlots::Join(int fd, const SlotsWanted& wanted,
                                                         ThreadPool& pool) {
  BATON_RETURN_IF_ERROR(CheckDescriptor(fd));
  // Processes that inherited `fd` share its open file, and with it each other's locks.
  UniqueFd own(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDWR | O_CLOEXEC));
  if (!own) return FailedPrecondition("the memory file cannot be opened: {}", ErrnoText(errno));
  std::unique_ptr<SharedSlots> slots(new SharedSlots(wanted, std::move(own)));
  BATON_RETURN_IF_ERROR(slots->Map(kPageBytes));
  if (slots->header_->magic != SlotsHeader::kMagic) {
    return FailedPrecondition("the memory file begins with {:#x}, shared slots with {:#x}",
                              slots->header_->magic, SlotsHeader::kMagic);
  }
  const int64_t deadline_us = SystemClock().NowUs() + wanted.patience_us;
  for (;;) {
    const uint32_t seen = slots->changes();
    BATON_ASSIGN_OR_RETURN(const bool is_taken, slots->TryLock(kHeaderLock));
    if (is_taken) break;
    if (SystemClock().NowUs() >= deadline_us) {
      return DeadlineExceeded("another process lays out the memory file for {} s",
                              wanted.patience_us / 1'000'000);
    }
    slots->WaitForChange(seen);
  }
  const Status status = slots->JoinLocked(wanted, pool);
  slots->Unlock(kHeaderLock);
  if (!status.ok()) return status;
  return slots;
}

Status SharedSlots::JoinLocked(const SlotsWanted& wanted, ThreadPool& pool) {
  if (header_->is_laid_out.load(std::memory_order_acquire) == 0) return LayOut(wanted, pool);
  BATON_RETURN_IF_ERROR(CheckLayout());
  return Map(size_bytes_);
}

// A file of our own making is right; one that somebody else spoils must not make us fault.
Status SharedSlots::CheckLayout() const {
  if (header_->num_slots != num_slots() || header_->size_bytes != size_bytes_) {
    return FailedPrecondition("the memory file has {} slots in {} bytes, wanted are {} in {}",
                              header_->num_slots, header_->size_bytes, num_slots(), size_bytes_);
  }
  if (header_->identity != identity_) {
    return FailedPrecondition("the memory file is filled from other files, or by another build");
  }
  const int seals = ::fcntl(fd_.get(), F_GET_SEALS);
  struct stat info;
  if (::fstat(fd_.get(), &info) != 0) return FailedPrecondition("{}", ErrnoText(errno));
  if ((seals & kRequiredSeals) != kRequiredSeals ||
      static_cast<uint64_t>(info.st_size) != size_bytes_ ||
      static_cast<uint64_t>(info.st_blocks) * 512 < size_bytes_) {
    return FailedPrecondition("the memory file has seals {:#x}, {} bytes and {} blocks of 512",
                              seals, info.st_size, info.st_blocks);
  }
  return OkStatus();
}

// Also after a process that was killed in the middle: the file then has some of its memory.
Status SharedSlots::LayOut(const SlotsWanted& wanted, ThreadPool& pool) {
  const int seals = ::fcntl(fd_.get(), F_GET_SEALS);
  if ((seals & kRequiredSeals) == 0 &&
      ::ftruncate(fd_.get(), static_cast<off_t>(size_bytes_)) != 0) {
    return ResourceExhausted("a memory file of {}: {}", FormatSize(size_bytes_), ErrnoText(errno));
  }
  struct stat info;
  if (::fstat(fd_.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) != size_bytes_) {
    return FailedPrecondition("the memory file is sealed at {} bytes, wanted are {}", info.st_size,
                              size_bytes_);
  }
  BATON_RETURN_IF_ERROR(Map(size_bytes_));
  if (const Status status = TakeMemory(wanted.needs_huge_pages, pool); !status.ok()) {
    // Back to the first page; nobody else has mapped more.
    BATON_RETURN_IF_ERROR(Map(kPageBytes));
    (void)::ftruncate(fd_.get(), static_cast<off_t>(kPageBytes));
    return status;
  }
  if ((seals & kRequiredSeals) != kRequiredSeals &&
      ::fcntl(fd_.get(), F_ADD_SEALS, kRequiredSeals) != 0) {
    return FailedPrecondition("sealing the memory file: {}", ErrnoText(errno));
  }
  header_->num_slots = num_slots();
  header_->size_bytes = size_bytes_;
  header_->identity = identity_;
  header_->is_laid_out.store(1, std::memory_order_release);
  return OkStatus();
}

// The system makes a huge page of one small page; it has no other way that no setting of the
// administrator stands against. So 64 MiB take 4 ms; as small pages 20 ms, and 20 more when they
// are written. Each call of madvise waits for all processors once, whatever its length.
Status SharedSlots::TakeMemory(bool needs_huge_pages, ThreadPool& pool) {
  std::byte* const base = reinterpret_cast<std::byte*>(header_);
  std::atomic<uint64_t> huge_bytes = 0;
  std::atomic<bool> is_short = false;
  const auto allocate = [&](uint64_t begin, uint64_t size) {
    if (!AllocateMemoryFile(fd_.get(), begin, size).ok()) is_short = true;
  };
  const auto take = [&](uint64_t begin, uint64_t end, uint64_t step) {
    for (; begin < end && !is_short; begin += step) {
      const uint64_t size = std::min(step, end - begin);
      for (uint64_t at = 0; at < size; at += kWindowBytes) allocate(begin + at, kPageBytes);
      if (::madvise(base + begin, size, MADV_COLLAPSE) == 0) {
        huge_bytes += size;
      } else if (step == kWindowBytes) {
        allocate(begin, size);
      } else {
        return false;
      }
    }
    return true;
  };
  (void)take(0, kWindowBytes, kWindowBytes);
  if (needs_huge_pages && huge_bytes == 0 && !is_short) {
    return FailedPrecondition(
        "the system gives shared memory no huge pages, and small ones are slower to read");
  }
  const auto num_pieces = static_cast<uint32_t>((size_bytes_ + kPieceBytes - 1) / kPieceBytes);
  pool.Run(num_pieces, [&](uint32_t piece, uint32_t) {
    const uint64_t begin = std::max(piece * kPieceBytes, kWindowBytes);
    const uint64_t end = std::min((piece + uint64_t{1}) * kPieceBytes, size_bytes_);
    if (!take(begin, end, kPieceBytes)) (void)take(begin, end, kWindowBytes);
  });
  if (is_short) {
    return ResourceExhausted("a memory file could not get {} of memory", FormatSize(size_bytes_));
  }
  header_->huge_bytes = huge_bytes;
  return OkStatus();
}

Status SharedSlots::Map(size_t size_bytes) {
  Unmap();
  void* const place = ReserveAligned(size_bytes);
  void* const memory = place == nullptr ? MAP_FAILED
                                        : ::mmap(place, size_bytes, PROT_READ | PROT_WRITE,
                                                 MAP_SHARED | MAP_FIXED, fd_.get(), 0);
  if (memory == MAP_FAILED) {
    return ResourceExhausted("{} of shared memory cannot be mapped: {}", FormatSize(size_bytes),
                             ErrnoText(errno));
  }
  (void)::madvise(memory, size_bytes, MADV_HUGEPAGE);  // a hint
  header_ = static_cast<SlotsHeader*>(memory);
  mapped_bytes_ = size_bytes;
  return OkStatus();
}

void SharedSlots::Unmap() {
  if (header_ != nullptr) (void)::munmap(header_, mapped_bytes_);
  header_ = nullptr;
}

std::span<const std::byte> SharedSlots::slot(size_t idx) const {
  const std::byte* const base = reinterpret_cast<const std::byte*>(header_);
  return {base + offsets_[idx], sizes_[idx]};
}

std::atomic<uint32_t>& SharedSlots::filled(size_t idx) const {
  std::byte* const words = reinterpret_cast<std::byte*>(header_) + kPageBytes;
  return reinterpret_cast<std::atomic<uint32_t>*>(words)[idx];
}

StatusOr<bool> SharedSlots::TryLock(uint64_t lock) const {
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(lock);
  range.l_len = 1;
  if (::fcntl(fd_.get(), F_OFD_SETLK, &range) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  return FailedPrecondition("the memory file has no locks: {}", ErrnoText(errno));
}

void SharedSlots::Unlock(uint64_t lock) {
  struct flock range = {};
  range.l_type = F_UNLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(lock);
  range.l_len = 1;
  (void)::fcntl(fd_.get(), F_OFD_SETLK, &range);
  if (header_ == nullptr) return;
  header_->changes.fetch_add(1);
  ::syscall(SYS_futex, &header_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SharedSlots::WaitForChange(uint32_t seen) const {
  const timespec timeout = {.tv_sec = 0, .tv_nsec = kLookUs * 1000};
  ::syscall(SYS_futex, &header_->changes, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

StatusOr<SharedSlots::State> SharedSlots::TryFill(size_t idx, FillFn fill) {
  if (IsFilled(idx)) return State::kFilledBefore;
  BATON_CHECK(!is_protected_, "slot {} is filled after Protect", idx);
  BATON_ASSIGN_OR_RETURN(const bool is_taken, TryLock(idx + 1));
  if (!is_taken) return State::kBusy;
  const absl::Cleanup unlock = [&] { Unlock(idx + 1); };
  if (IsFilled(idx)) return State::kFilledBefore;  // between the look and the lock
  std::byte* const base = reinterpret_cast<std::byte*>(header_);
  BATON_RETURN_IF_ERROR(fill({base + offsets_[idx], sizes_[idx]}));
  filled(idx).store(1, std::memory_order_release);
  return State::kFilledNow;
}

StatusOr<SharedSlots::State> SharedSlots::Fill(size_t idx, FillFn fill) {
  const int64_t deadline_us = SystemClock().NowUs() + patience_us_;
  for (;;) {
    const uint32_t seen = changes();
    BATON_ASSIGN_OR_RETURN(const State state, TryFill(idx, fill));
    if (state != State::kBusy || SystemClock().NowUs() >= deadline_us) return state;
    WaitForChange(seen);
  }
}

Status SharedSlots::Protect() {
  is_protected_ = true;
  if (::mprotect(header_, mapped_bytes_, PROT_READ) == 0) return OkStatus();
  return Unavailable("shared memory cannot be made read-only: {}", ErrnoText(errno));
}

}  // namespace baton::device
