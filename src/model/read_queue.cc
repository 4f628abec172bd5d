#include "src/model/read_queue.h"

#include <liburing.h>

#include <cerrno>

#include "src/base/check.h"
#include "src/base/errno_text.h"

namespace baton::model {
namespace {

// More than a TensorReader's ring has under way; a full one is submitted and goes on.
constexpr unsigned kNumEntries = 128;

// See OpenIoUring.
class IoUring final : public ReadQueue {
 public:
  explicit IoUring(const io_uring& ring) : ring_(ring) {}
  ~IoUring() override {
    // The kernel writes into buffers that are freed next.
    while (num_under_way_ > 0 && Wait().ok()) {
    }
    BATON_CHECK(num_under_way_ == 0, "{} reads are still under way", num_under_way_);
    io_uring_queue_exit(&ring_);
  }

  absl::Status Submit(std::span<const ReadRequest> requests) override {
    for (const ReadRequest& request : requests) {
      io_uring_sqe* entry = io_uring_get_sqe(&ring_);
      if (entry == nullptr) {
        BATON_RETURN_IF_ERROR(SubmitEntries());
        entry = io_uring_get_sqe(&ring_);
        if (entry == nullptr) return Internal("io_uring has no room for a read");
      }
      io_uring_prep_read(entry, request.file, request.to.data(),
                         static_cast<unsigned>(request.to.size()), request.offset);
      io_uring_sqe_set_data64(entry, request.id);
    }
    return SubmitEntries();
  }

  absl::StatusOr<ReadResult> Wait() override {
    io_uring_cqe* done = nullptr;
    int error = 0;
    do {
      error = io_uring_wait_cqe(&ring_, &done);
    } while (error == -EINTR);
    if (error != 0) return Internal("io_uring_wait_cqe: {}", ErrnoText(-error));
    const ReadResult out = {io_uring_cqe_get_data64(done), done->res};
    io_uring_cqe_seen(&ring_, done);
    --num_under_way_;
    return out;
  }

 private:
  absl::Status SubmitEntries() {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int submitted = io_uring_submit(&ring_);
      if (submitted == -EINTR) continue;
      if (submitted < 0) return Internal("io_uring_submit: {}", ErrnoText(-submitted));
      num_under_way_ += static_cast<size_t>(submitted);
    }
    return OkStatus();
  }

  io_uring ring_;
  size_t num_under_way_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReadQueue>> OpenIoUring() {
  io_uring ring = {};
  const int error = io_uring_queue_init(kNumEntries, &ring, 0);
  if (error != 0) return FailedPrecondition("io_uring: {}", ErrnoText(-error));
  auto queue = std::make_unique<IoUring>(ring);
  // Kernels from 5.1 on have rings, those from 5.6 on reads without a vector, and a way to ask.
  io_uring_probe* const probe = io_uring_get_probe_ring(&ring);
  const bool reads = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
  io_uring_free_probe(probe);
  if (!reads) return FailedPrecondition("io_uring: this kernel has no IORING_OP_READ (Linux 5.6)");
  return queue;
}

}  // namespace baton::model
