// TensorReader: gives ranges of a model's files in the order in which they were announced, and
// reads ahead of the caller. It reads past the page cache (O_DIRECT) through io_uring into a ring
// of slots, a range to a slot. These files it takes as they lie in the mapping instead:
//   - a file that is in the page cache already (nine tenths of 64 places): no disk is as fast
//   - tmpfs, a file system without O_DIRECT, a system that refuses io_uring: one line of the log
//     says which
// A range that lies in no file is taken as it is. Private to src/model. One thread.
//
//   ring:   | taken | read | reading | reading |        a slot is read into again once the next
//             ^ until the next call of Next              range has been asked for
#ifndef BATON_MODEL_TENSOR_READER_H_
#define BATON_MODEL_TENSOR_READER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "src/device/aligned_buffer.h"
#include "src/model/file_mapping.h"
#include "src/model/read_queue.h"

namespace baton::model {

// Counts of the reads so far.
struct ReadReport {
  size_t bytes = 0;
  size_t direct_bytes = 0;  // of them past the page cache
  double wait_seconds = 0;  // in which the caller stood still
};

// How to read.
struct TensorReaderOptions {
  uint32_t num_slots = 4;
  bool uses_page_cache = true;  // of files that lie there
  OpenReadQueue open_queue = OpenIoUring;
  const Clock* clock = &SystemClock();
};

// See the file comment.
class TensorReader {
 public:
  // Files are opened once more, by name. `files` and what `ranges` point to outlive it; none of
  // `ranges` is empty, and each lies in one file or in none.
  TensorReader(std::span<const FileMapping* const> files,
               std::vector<std::span<const std::byte>> ranges, TensorReaderOptions options = {});
  // Waits for reads that are under way.
  ~TensorReader();
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  // The bytes of the next range, until the next call. DataLoss naming file and byte when they
  // cannot be read, or the file has become shorter; every later call gives the same.
  absl::StatusOr<std::span<const std::byte>> Next();
  const ReadReport& report() const { return report_; }
  // Why some file is not read directly; empty when all are, or are in the page cache.
  const std::string& refusal() const { return refusal_; }

 private:
  struct File {
    const FileMapping* mapping;
    UniqueFd direct;  // invalid when the mapping is used
  };
  // The range that a slot is filled with, and its requests.
  struct Slot {
    size_t range_idx = 0;
    std::vector<ReadRequest> requests;
    size_t num_pending = 0;
    uint32_t num_retries = 0;  // of all its requests
  };

  void OpenFiles();
  // Opens a file for direct reads. An error is the reason to read the file by its mapping. OK with
  // `file`.direct valid: the file is read directly. OK without it: the file is in the page cache.
  absl::Status OpenDirect(File& file) const;
  const File* FileOf(std::span<const std::byte> range) const;
  bool IsDirect(size_t range_idx) const;
  std::byte* SlotBegin(size_t slot_idx);
  // Begins to read ranges ahead while there are free slots.
  absl::Status ReadAhead();
  absl::Status BeginRead(size_t slot_idx, size_t range_idx);
  absl::Status TakeResult();
  // As Next, but without the error that Next keeps.
  absl::StatusOr<std::span<const std::byte>> Take();
  absl::StatusOr<std::span<const std::byte>> TakeMapped(std::span<const std::byte> range) const;
  absl::Status ReadError(const ReadRequest& request, std::string_view what) const;

  // Constant after construction.
  const TensorReaderOptions options_;
  const std::vector<std::span<const std::byte>> ranges_;
  std::vector<File> files_;  // by ascending address
  std::string refusal_;
  size_t slot_bytes_ = 0;

  device::AlignedBuffer ring_;
  std::vector<Slot> slots_;
  std::deque<size_t> free_slots_;
  std::deque<size_t> busy_slots_;     // in the order of their ranges
  std::unique_ptr<ReadQueue> queue_;  // goes before the ring, into which it reads
  size_t next_ = 0;                   // the range that Next gives
  size_t ahead_ = 0;                  // the first that ReadAhead has not seen
  bool holds_slot_ = false;           // the front of busy_slots_ was given out
  absl::Status error_;
  ReadReport report_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_TENSOR_READER_H_
