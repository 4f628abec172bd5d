// WeightUpload: bytes that are made on the host piece by piece go to a device's memory by way of
// two pinned buffers. One buffer is filled while the other is copied. So loading takes the time of
// the slower of the two: the host's work or the link. Private to src/model. One thread.
//
// Invariants
//  1. A buffer is given out only when no copy reads it any more.
//  2. Copies are begun in the order of Send.
#ifndef BATON_MODEL_WEIGHT_UPLOAD_H_
#define BATON_MODEL_WEIGHT_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/device/device_stream.h"
#include "src/device/host_buffer.h"

namespace baton::model {

// The bytes and the time of an upload.
struct UploadReport {
  size_t bytes = 0;
  double wait_seconds = 0;           // in which the host stood still because both were being copied
  double link_bytes_per_second = 0;  // of these buffers copied one after the other
};

// See the file comment.
class WeightUpload {
 public:
  // A copy of so much takes 0.6 ms of PCIe 5's 55 GB/s, a hundred times what begins and ends it
  // [calc].
  static constexpr size_t kPieceBytes = size_t{32} << 20;

  // Allocates both buffers, of `piece_bytes` each, and measures the link with them (a third of the
  // kind in the device's memory, for that long). ResourceExhausted when a memory is short.
  static absl::StatusOr<WeightUpload> Create(device::Accelerator* device, size_t piece_bytes,
                                             const Clock& clock = SystemClock());
  WeightUpload(WeightUpload&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)),
        clock_(other.clock_),
        pieces_{std::move(other.pieces_[0]), std::move(other.pieces_[1])},
        next_(other.next_),
        report_(other.report_) {}
  // Waits for copies that are under way.
  ~WeightUpload();

  size_t piece_bytes() const { return pieces_[0].buffer.size_bytes(); }
  // A buffer to be filled, of piece_bytes(). Until the second call of Next after it; until then its
  // bytes may also be read.
  absl::StatusOr<std::span<std::byte>> Next();
  // Copies the first `size_bytes` of what Next gave to each of these places of the device.
  absl::Status Send(std::span<std::byte* const> to, size_t size_bytes);
  // Waits until all is in the device's memory.
  absl::StatusOr<UploadReport> Finish();

 private:
  struct Piece {
    device::HostBuffer buffer;
    device::DeviceEvent copied;
  };

  WeightUpload(device::Accelerator* device, const Clock& clock) : device_(device), clock_(&clock) {}
  // `to` has room for a piece.
  absl::Status MeasureLink(std::byte* to);

  device::Accelerator* device_;  // null when moved from
  const Clock* clock_;
  Piece pieces_[2];
  uint32_t next_ = 0;
  UploadReport report_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_WEIGHT_UPLOAD_H_
