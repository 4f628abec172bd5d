// ReadQueue: reads of files that go on while the caller does something else; io_uring on Linux, and
// a seam at which tests put faults. Private to src/model. One thread.
#ifndef BATON_MODEL_READ_QUEUE_H_
#define BATON_MODEL_READ_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "src/base/status.h"

namespace baton::model {

// `to` from `offset` on. With O_DIRECT offset, size and memory are multiples of 4096.
struct ReadRequest {
  int file = -1;
  uint64_t offset = 0;
  std::span<std::byte> to;
  uint64_t id = 0;  // the caller's
};

// The result of one request: bytes read, which are fewer at the end of the file, or -errno.
struct ReadResult {
  uint64_t id = 0;
  int64_t result = 0;
};

// See the file comment. The destructor waits for reads that are under way.
class ReadQueue {
 public:
  virtual ~ReadQueue() = default;
  // Begins them all. Internal naming the system's reason; then some may have begun.
  virtual absl::Status Submit(std::span<const ReadRequest> requests) = 0;
  // The next one that is done, in any order. There is one under way.
  virtual absl::StatusOr<ReadResult> Wait() = 0;
};

using OpenReadQueue = std::function<absl::StatusOr<std::unique_ptr<ReadQueue>>()>;

// FailedPrecondition when the system refuses it: old kernels and many containers do.
absl::StatusOr<std::unique_ptr<ReadQueue>> OpenIoUring();

}  // namespace baton::model

#endif  // BATON_MODEL_READ_QUEUE_H_
