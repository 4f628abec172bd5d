#include "src/model/tensor_reader.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/base/check.h"
#include "src/base/errno_text.h"
#include "src/base/log.h"

namespace baton::model {

using device::AlignedBuffer;

namespace {

// The multiple that O_DIRECT wants of offsets, sizes and memory; no disk here has larger blocks.
constexpr uint64_t kBlock = 4096;
// One read of a slot; 1 MiB and more reach a disk's full rate with some under way (NOTES.md).
constexpr uint64_t kRequestBytes = uint64_t{1} << 20;
// Each has a descriptor open while a model is loaded; a process may have 1,024.
constexpr size_t kMaxDirectFiles = 256;
// Retries of one slot, for reads that the system did not begin.
constexpr uint32_t kMaxRetries = 64;

uint64_t RoundDown(uint64_t value) { return value / kBlock * kBlock; }
uint64_t RoundUp(uint64_t value) { return RoundDown(value + kBlock - 1); }

// Asks for a byte at 64 places, without waiting for a disk. Not mincore: of files that the caller
// may not write it says that all is there.
bool IsInPageCache(int file, uint64_t size) {
  constexpr uint64_t kPlaces = 64;
  constexpr uint64_t kWanted = kPlaces * 9 / 10;
  (void)::posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);  // asking reads nothing ahead
  uint64_t num_there = 0;
  for (uint64_t i = 0; i < kPlaces; ++i) {
    char byte = 0;
    const iovec to = {&byte, 1};
    const auto offset = static_cast<off_t>(size / kPlaces * i + size % kPlaces * i / kPlaces);
    if (::preadv2(file, &to, 1, offset, RWF_NOWAIT) == 1) ++num_there;
  }
  return num_there >= kWanted;
}

bool IsInMemory(int file) {
  struct statfs info {};
  if (::fstatfs(file, &info) != 0) return false;
  return info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC;
}

bool IsSameFile(int file, const FileMapping& mapping) {
  struct stat info {};
  return ::fstat(file, &info) == 0 && info.st_dev == mapping.identity().device &&
         info.st_ino == mapping.identity().inode;
}

}  // namespace

TensorReader::TensorReader(std::span<const FileMapping* const> files,
                           std::vector<std::span<const std::byte>> ranges,
                           TensorReaderOptions options)
    : options_(std::move(options)), ranges_(std::move(ranges)) {
  BATON_CHECK(options_.num_slots >= 2, "a ring of {} slots reads nothing ahead",
              options_.num_slots);
  for (const FileMapping* mapping : files) files_.push_back({mapping, UniqueFd()});
  std::sort(files_.begin(), files_.end(), [](const File& a, const File& b) {
    return a.mapping->bytes().data() < b.mapping->bytes().data();
  });
  OpenFiles();
  if (!refusal_.empty()) {
    BATON_LOG_INFO("weights are read through the page cache: {}", refusal_);
  }
}

TensorReader::~TensorReader() = default;

void TensorReader::OpenFiles() {
  absl::Status refused;
  bool is_any_direct = false;
  for (File& file : files_) {
    const absl::Status status = OpenDirect(file);
    is_any_direct = is_any_direct || file.direct.valid();
    refused.Update(status);
  }
  if (is_any_direct) {
    size_t largest = 0;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (IsDirect(i)) largest = std::max(largest, ranges_[i].size());
    }
    slot_bytes_ = RoundUp(largest) + kBlock;  // a range may begin within a block
    // Memory of huge pages begins with one, so with a block.
    absl::StatusOr<AlignedBuffer> ring = AlignedBuffer::Allocate(
        std::max(options_.num_slots * slot_bytes_, AlignedBuffer::kHugePageBytes));
    absl::StatusOr<std::unique_ptr<ReadQueue>> queue = options_.open_queue();
    refused.Update(ring.status());
    refused.Update(queue.status());
    if (ring.ok() && queue.ok()) {
      ring_ = *std::move(ring);
      queue_ = *std::move(queue);
      slots_.resize(options_.num_slots);
      for (size_t i = 0; i < slots_.size(); ++i) free_slots_.push_back(i);
    } else {
      for (File& file : files_) file.direct.reset();
    }
  }
  refusal_ = std::string(refused.message());
}

absl::Status TensorReader::OpenDirect(File& file) const {
  const std::string& path = file.mapping->identity().path;
  const uint64_t size = file.mapping->bytes().size();
  const UniqueFd plain(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!plain.valid()) return FailedPrecondition("{}: {}", path, ErrnoText(errno));
  if (!IsSameFile(plain.get(), *file.mapping)) {
    return FailedPrecondition("{} is another file than the one that was opened", path);
  }
  if (IsInMemory(plain.get())) return FailedPrecondition("{} lies in memory", path);
  if (options_.uses_page_cache && IsInPageCache(plain.get(), size)) return OkStatus();
  if (files_.size() > kMaxDirectFiles) {
    return FailedPrecondition("{} files are more than {}", files_.size(), kMaxDirectFiles);
  }
  UniqueFd direct(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT));
  if (!direct.valid()) return FailedPrecondition("{}: O_DIRECT: {}", path, ErrnoText(errno));
  if (!IsSameFile(direct.get(), *file.mapping)) {
    return FailedPrecondition("{} is another file than the one that was opened", path);
  }
  // io_uring hands no read of a non-blocking file to a thread: on some kernels and devices it would
  // end with EAGAIN for ever.
  if (::fcntl(direct.get(), F_SETFL, O_DIRECT) != 0) {
    return FailedPrecondition("{}: O_DIRECT: {}", path, ErrnoText(errno));
  }
  alignas(kBlock) std::byte block[kBlock];
  if (::pread(direct.get(), block, kBlock, 0) < 0) {
    return FailedPrecondition("{}: O_DIRECT: {}", path, ErrnoText(errno));
  }
  file.direct = std::move(direct);
  return OkStatus();
}

const TensorReader::File* TensorReader::FileOf(std::span<const std::byte> range) const {
  const auto after = std::upper_bound(files_.begin(), files_.end(), range.data(),
                                      [](const std::byte* place, const File& file) {
                                        return place < file.mapping->bytes().data();
                                      });
  if (after == files_.begin()) return nullptr;
  const File& file = *std::prev(after);
  const std::span<const std::byte> bytes = file.mapping->bytes();
  return range.data() < bytes.data() + bytes.size() ? &file : nullptr;
}

bool TensorReader::IsDirect(size_t range_idx) const {
  const File* const file = FileOf(ranges_[range_idx]);
  return file != nullptr && file->direct.valid();
}

std::byte* TensorReader::SlotBegin(size_t slot_idx) {
  return ring_.data() + slot_idx * slot_bytes_;
}

absl::StatusOr<std::span<const std::byte>> TensorReader::Next() {
  if (!error_.ok()) return error_;
  absl::StatusOr<std::span<const std::byte>> out = Take();
  error_ = out.status();
  return out;
}

absl::StatusOr<std::span<const std::byte>> TensorReader::Take() {
  BATON_CHECK(next_ < ranges_.size(), "{} ranges were announced, one more is asked for", next_);
  if (std::exchange(holds_slot_, false)) {
    free_slots_.push_back(busy_slots_.front());
    busy_slots_.pop_front();
  }
  BATON_RETURN_IF_ERROR(ReadAhead());
  const std::span<const std::byte> range = ranges_[next_];
  ++next_;
  report_.bytes += range.size();
  if (busy_slots_.empty() || slots_[busy_slots_.front()].range_idx != next_ - 1) {
    return TakeMapped(range);
  }
  const size_t slot_idx = busy_slots_.front();
  const int64_t begin_us = options_.clock->NowUs();
  while (slots_[slot_idx].num_pending > 0) BATON_RETURN_IF_ERROR(TakeResult());
  report_.wait_seconds += static_cast<double>(options_.clock->NowUs() - begin_us) / 1e6;
  report_.direct_bytes += range.size();
  holds_slot_ = true;
  const auto offset = static_cast<uint64_t>(range.data() - FileOf(range)->mapping->bytes().data());
  return std::span<const std::byte>(SlotBegin(slot_idx) + offset % kBlock, range.size());
}

// A page of a mapping beyond the file's end stops the process: a file that is shorter already is
// seen here, one that another process shortens right now is not (file_mapping.h).
absl::StatusOr<std::span<const std::byte>> TensorReader::TakeMapped(
    std::span<const std::byte> range) const {
  const File* const file = FileOf(range);
  if (file == nullptr) return range;
  const FileIdentity& identity = file->mapping->identity();
  const uint64_t size = file->mapping->bytes().size();
  struct stat info {};
  const bool is_same = ::stat(identity.path.c_str(), &info) == 0 &&
                       info.st_dev == identity.device && info.st_ino == identity.inode;
  if (!is_same || static_cast<uint64_t>(info.st_size) >= size) return range;
  return DataLoss("{} has {} bytes, it had {} when it was opened", identity.path, info.st_size,
                  size);
}

absl::Status TensorReader::ReadAhead() {
  for (; ahead_ < ranges_.size() && !free_slots_.empty(); ++ahead_) {
    if (!IsDirect(ahead_)) continue;
    const size_t slot_idx = free_slots_.front();
    free_slots_.pop_front();
    busy_slots_.push_back(slot_idx);
    BATON_RETURN_IF_ERROR(BeginRead(slot_idx, ahead_));
  }
  return OkStatus();
}

absl::Status TensorReader::BeginRead(size_t slot_idx, size_t range_idx) {
  const std::span<const std::byte> range = ranges_[range_idx];
  const File& file = *FileOf(range);
  const auto begin = static_cast<uint64_t>(range.data() - file.mapping->bytes().data());
  const uint64_t first = RoundDown(begin);
  const uint64_t end = RoundUp(begin + range.size());
  Slot& slot = slots_[slot_idx];
  slot.range_idx = range_idx;
  slot.requests.clear();
  for (uint64_t at = first; at < end; at += kRequestBytes) {
    const uint64_t size = std::min(kRequestBytes, end - at);
    slot.requests.push_back({.file = file.direct.get(),
                             .offset = at,
                             .to = {SlotBegin(slot_idx) + (at - first), size},
                             .id = slot_idx << 32 | slot.requests.size()});
  }
  slot.num_pending = slot.requests.size();
  slot.num_retries = 0;
  return queue_->Submit(slot.requests);
}

absl::Status TensorReader::TakeResult() {
  BATON_ASSIGN_OR_RETURN(const ReadResult done, queue_->Wait());
  Slot& slot = slots_[done.id >> 32];
  ReadRequest& request = slot.requests[done.id & 0xFFFFFFFF];
  const uint64_t file_size = FileOf(ranges_[slot.range_idx])->mapping->bytes().size();
  const uint64_t wanted = std::min<uint64_t>(request.to.size(), file_size - request.offset);
  const bool is_refused_now = done.result == -EINTR || done.result == -EAGAIN;
  if (is_refused_now && slot.num_retries++ < kMaxRetries) return queue_->Submit({&request, 1});
  if (done.result < 0) return ReadError(request, ErrnoText(static_cast<int>(-done.result)));
  const auto got = static_cast<uint64_t>(done.result);
  if (got >= wanted) {
    --slot.num_pending;
    return OkStatus();
  }
  // The rest of a read that the system cut, from the last whole block on: at a file's end that
  // gives less than a block.
  const uint64_t whole = RoundDown(got);
  if (whole == 0) {
    return ReadError(request, fmt::format("there is no byte {}, of {} when it was opened",
                                          request.offset + got, file_size));
  }
  request.offset += whole;
  request.to = request.to.subspan(whole);
  return queue_->Submit({&request, 1});
}

absl::Status TensorReader::ReadError(const ReadRequest& request, std::string_view what) const {
  const auto of_request = [&request](const File& file) {
    return file.direct.get() == request.file;
  };
  const auto file = std::find_if(files_.begin(), files_.end(), of_request);
  return DataLoss("reading {} at byte {}: {}", file->mapping->identity().path, request.offset,
                  what);
}

}  // namespace baton::model
