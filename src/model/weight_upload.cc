#include "src/model/weight_upload.h"

#include <algorithm>

#include "src/base/check.h"

namespace baton::model {

using device::Accelerator;
using device::DeviceBuffer;
using device::DeviceEvent;
using device::HostBuffer;

namespace {

double SecondsSince(int64_t begin_us, const Clock& clock) {
  return static_cast<double>(clock.NowUs() - begin_us) / 1e6;
}

}  // namespace

absl::StatusOr<WeightUpload> WeightUpload::Create(Accelerator* device, size_t piece_bytes,
                                                  const Clock& clock) {
  BATON_CHECK(piece_bytes > 0, "pieces of no bytes");
  device->MakeCurrent();
  // Goes after `out`, which waits for the copies into it.
  BATON_ASSIGN_OR_RETURN(const DeviceBuffer measured,
                         DeviceBuffer::Create(device, piece_bytes, "weight pieces"));
  WeightUpload out(device, clock);
  for (Piece& piece : out.pieces_) {
    BATON_ASSIGN_OR_RETURN(piece.buffer, HostBuffer::Create(device, piece_bytes, "weight pieces"));
    BATON_ASSIGN_OR_RETURN(piece.copied, DeviceEvent::Create(device));
  }
  BATON_RETURN_IF_ERROR(out.MeasureLink(measured.data()));
  return out;
}

// Copies both pieces in turn. The first round is not measured: the first copy of a process takes
// longer.
absl::Status WeightUpload::MeasureLink(std::byte* to) {
  constexpr int kRounds = 3;
  int64_t begin_us = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round == 1) begin_us = clock_->NowUs();
    for (const Piece& piece : pieces_) {
      BATON_RETURN_IF_ERROR(device_->CopyIn(to, piece.buffer.data(), piece_bytes()));
    }
    BATON_RETURN_IF_ERROR(device_->Wait());
  }
  const double copied = static_cast<double>(piece_bytes()) * 2 * (kRounds - 1);
  report_.link_bytes_per_second = copied / std::max(SecondsSince(begin_us, *clock_), 1e-6);
  return OkStatus();
}

WeightUpload::~WeightUpload() {
  if (device_ == nullptr) return;
  device_->MakeCurrent();
  // Errors were told to whoever used the device; here only the buffers must outlive the copies.
  (void)device_->Wait();
}

absl::StatusOr<std::span<std::byte>> WeightUpload::Next() {
  device_->MakeCurrent();
  const Piece& piece = pieces_[next_];
  const int64_t begin_us = clock_->NowUs();
  BATON_RETURN_IF_ERROR(piece.copied.Wait());
  report_.wait_seconds += SecondsSince(begin_us, *clock_);
  return std::span(piece.buffer.data(), piece.buffer.size_bytes());
}

absl::Status WeightUpload::Send(std::span<std::byte* const> to, size_t size_bytes) {
  device_->MakeCurrent();
  Piece& piece = pieces_[next_];
  BATON_CHECK(size_bytes <= piece.buffer.size_bytes(), "{} bytes of a piece of {}", size_bytes,
              piece.buffer.size_bytes());
  for (std::byte* const place : to) {
    BATON_RETURN_IF_ERROR(device_->CopyIn(place, piece.buffer.data(), size_bytes));
    report_.bytes += size_bytes;
  }
  BATON_RETURN_IF_ERROR(piece.copied.Record(device_->stream()));
  next_ = 1 - next_;
  return OkStatus();
}

absl::StatusOr<UploadReport> WeightUpload::Finish() {
  device_->MakeCurrent();
  const int64_t begin_us = clock_->NowUs();
  BATON_RETURN_IF_ERROR(device_->Wait());
  report_.wait_seconds += SecondsSince(begin_us, *clock_);
  return report_;
}

}  // namespace baton::model
