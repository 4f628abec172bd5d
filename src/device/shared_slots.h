// SharedSlots: memory that several processes fill together, slot by slot, each slot once, and then
// read. It is a memory file whose descriptor they all have. CreateFile makes the first page; the
// first process that joins lays out the rest.
//
//   [header page][filled words, one a slot][slot 0][slot 1] ..   each slot at a multiple of 64
//   bytes
//
// Filling a slot needs its lock: a lock of the file's byte range (F_OFD_SETLK), which the system
// takes back when a process ends, however it ends. What a process that was killed left in a slot is
// filled again by the next one.
//
// Invariants
//  1. A slot that is filled is whole, and nobody writes to it any more.
//  2. The file is sealed and has all its memory before slots are looked at: no access faults.
//  3. Nobody waits for another process for longer than the patience that was given.
//
// Each process, and in tests each thread that stands for one, has an object of its own. One thread.
#ifndef BATON_DEVICE_SHARED_SLOTS_H_
#define BATON_DEVICE_SHARED_SLOTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"

#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "src/base/xxh3.h"
#include "src/device/thread_pool.h"

namespace baton::device {

// The contents that a process wants to find, or to make.
struct SlotsWanted {
  std::vector<uint64_t> sizes;  // bytes of each slot, none 0
  Hash128 identity;             // of what fills them; equal slots of equal identity are equal bytes
  // Give up where the system has no huge pages for shared memory: reading is slower without.
  bool needs_huge_pages = true;
  int64_t patience_us = 30'000'000;  // for one step of another process
};

// The first bytes of the file.
struct SlotsHeader {
  static constexpr uint64_t kMagic = 0x31544F4C'534E5442;  // "BTNSLOT1"

  uint64_t magic;
  std::atomic<uint32_t> is_laid_out;  // the fields below are there, and the file is whole
  uint64_t num_slots;
  uint64_t size_bytes;  // of the file
  Hash128 identity;
  uint64_t huge_bytes;  // of the file, on huge pages
  // Raised when a lock is given back; those that wait for one sleep on it.
  alignas(64) std::atomic<uint32_t> changes;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// See the file comment.
class SharedSlots {
 public:
  // How a slot got its bytes, if it has them.
  enum class State : uint8_t {
    kFilledNow = 0,     // by this call
    kFilledBefore = 1,  // by an earlier one, mostly of another process
    kBusy = 2,          // another process fills it
  };
  using FillFn = absl::FunctionRef<Status(std::span<std::byte> slot)>;

  // The file of one set of slots, for the processes that get its descriptor; it takes one page
  // until one of them joins. Errors as CreateMemoryFile.
  static StatusOr<UniqueFd> CreateFile();
  // Joins the file behind `fd`, which stays the caller's; lays it out if nobody has.
  // FailedPrecondition when it is no such file, holds something else, or cannot be on huge pages
  // although they are needed. ResourceExhausted when memory is short. DeadlineExceeded when another
  // process lays it out for longer than patience lasts. Taking the memory costs 0.1 s a GiB, or up
  // to 1.6 s where free memory is in pieces.
  static StatusOr<std::unique_ptr<SharedSlots>> Join(int fd, const SlotsWanted& wanted,
                                                     ThreadPool& pool);
  ~SharedSlots();
  SharedSlots(const SharedSlots&) = delete;
  SharedSlots& operator=(const SharedSlots&) = delete;

  size_t num_slots() const { return sizes_.size(); }
  // The bytes of a slot, 64-byte aligned; they are constant once it is filled.
  std::span<const std::byte> slot(size_t idx) const;
  bool IsFilled(size_t idx) const { return filled(idx).load(std::memory_order_acquire) != 0; }
  uint64_t size_bytes() const { return size_bytes_; }
  uint64_t huge_bytes() const { return header_->huge_bytes; }

  // Fills the slot by `fill`, unless it is filled or another process is at it. An error of `fill`
  // leaves the slot as one that was never begun.
  StatusOr<State> TryFill(size_t idx, FillFn fill);
  // As TryFill, but waits for another process as long as patience lasts; then kBusy.
  StatusOr<State> Fill(size_t idx, FillFn fill);
  // No write from this process any more. Fill only finds slots from here on.
  Status Protect();

 private:
  SharedSlots(const SlotsWanted& wanted, UniqueFd fd);

  // Maps the first page, then all of it; header_ is in the mapping.
  Status Map(size_t size_bytes);
  void Unmap();
  // These three hold the lock of the header.
  Status JoinLocked(const SlotsWanted& wanted, ThreadPool& pool);
  Status CheckLayout() const;
  Status LayOut(const SlotsWanted& wanted, ThreadPool& pool);
  // Gives the whole file memory, on huge pages where there are any.
  Status TakeMemory(bool needs_huge_pages, ThreadPool& pool);

  // True = taken; false = another process has it.
  StatusOr<bool> TryLock(uint64_t lock) const;
  void Unlock(uint64_t lock);
  // Sleeps until a lock was given back since `seen`, or for a moment: a process that was killed
  // tells nobody that its locks are free.
  void WaitForChange(uint32_t seen) const;
  uint32_t changes() const { return header_->changes.load(std::memory_order_acquire); }
  std::atomic<uint32_t>& filled(size_t idx) const;

  const Hash128 identity_;
  const int64_t patience_us_;
  const std::vector<uint64_t> sizes_;  // of the slots
  std::vector<uint64_t> offsets_;      // of the slots, in the file
  uint64_t size_bytes_ = 0;            // of the file, as it is wanted
  const UniqueFd fd_;                  // an open file of its own: it holds this process's locks

  SlotsHeader* header_ = nullptr;
  size_t mapped_bytes_ = 0;  // from header_ on
  bool is_protected_ = false;
};

}  // namespace baton::device

#endif  // BATON_DEVICE_SHARED_SLOTS_H_
