#include "src/model/weight_loader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/model/encode_matrix.h"
#include "src/model/model_weights.h"
#include "src/model/pack_tensor.h"
#include "src/model/weight_checks.h"

namespace baton::model {

namespace cuda = kernels::cuda;
using device::Accelerator;
using device::ThreadPool;

namespace {

uint64_t NumRows(const GgufTensor& tensor) { return tensor.num_elements() / tensor.dims[0]; }
uint64_t RowBytes(const GgufTensor& tensor) { return tensor.data.size() / NumRows(tensor); }

// Rows of a tensor's matrices, one below the other, that are read at once: whole tiles.
uint64_t RowsAtOnce(uint64_t row_bytes, size_t piece_bytes) {
  return std::max<uint64_t>(piece_bytes / row_bytes / cuda::kPackedRows, 1) * cuda::kPackedRows;
}

// All rows to `out`, in a part's form.
absl::Status WriteRows(const GgufTensor& rows, const WeightForm& form, ThreadPool& pool,
                       std::span<std::byte> out) {
  if (form.is_float) {
    std::memcpy(out.data(), rows.data.data(), out.size());
    return OkStatus();
  }
  if (form.format == cuda::PackedFormat::kBf16) return EncodeRows(rows, GgmlType::kBf16, pool, out);
  return PackTensor(rows, pool, out);
}

// One pass; see the header.
class Uploader {
 public:
  Uploader(const WeightParts& parts, const WeightUploadOptions& options)
      : parts_(parts), options_(options) {}

  absl::StatusOr<UploadedWeights> Run(const GgufFile& file, const ModelConfig& config) {
    const int64_t begin_us = options_.clock->NowUs();
    const std::vector<const GgufTensor*> tensors = TensorsByName(file);
    const size_t piece_bytes = PieceBytes(tensors);
    for (Accelerator* const device : options_.devices) {
      BATON_ASSIGN_OR_RETURN(WeightUpload upload,
                             WeightUpload::Create(device, piece_bytes, *options_.clock));
      uploads_.push_back(std::move(upload));
    }
    TensorReader reader(file.mappings(), PiecesOf(tensors), options_.reader);
    WeightsHash hash(config);
    for (const GgufTensor* tensor : tensors) {
      hash.Begin(*tensor);
      const uint64_t step = RowsReadAtOnce(*tensor);
      for (uint64_t row = 0; row < NumRows(*tensor); row += step) {
        BATON_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, reader.Next());
        hash.Update(bytes);
        const IndexRange rows = {row, std::min(step, NumRows(*tensor) - row)};
        BATON_RETURN_IF_ERROR(PutPiece(*tensor, rows, bytes));
      }
      hash.End(*tensor);
    }
    UploadedWeights out;
    out.weights_id = hash.Text();
    out.report.file_bytes = reader.report().bytes;
    out.report.direct_bytes = reader.report().direct_bytes;
    out.report.file_wait_seconds = reader.report().wait_seconds;
    for (WeightUpload& upload : uploads_) {
      BATON_ASSIGN_OR_RETURN(const UploadReport report, upload.Finish());
      out.report.device_bytes += report.bytes;
      out.report.link_wait_seconds += report.wait_seconds;
      out.report.link_bytes_per_second += report.link_bytes_per_second;
    }
    out.report.seconds = static_cast<double>(options_.clock->NowUs() - begin_us) / 1e6;
    return out;
  }

 private:
  // All of a tensor whose rows some part takes in another order.
  uint64_t RowsReadAtOnce(const GgufTensor& tensor) const {
    const std::span<const WeightPart> parts = parts_.Of(tensor);
    const bool is_picked = std::any_of(parts.begin(), parts.end(), [](const WeightPart& part) {
      return !part.cut.picked.empty();
    });
    return is_picked ? NumRows(tensor) : RowsAtOnce(RowBytes(tensor), options_.read_bytes);
  }

  // Room for the largest piece of any part, within the limit.
  size_t PieceBytes(const std::vector<const GgufTensor*>& tensors) const {
    size_t wanted = 1;
    size_t needed = 1;
    for (const GgufTensor* tensor : tensors) {
      const uint64_t at_once = RowsReadAtOnce(*tensor);
      for (const WeightPart& part : parts_.Of(*tensor)) {
        const auto bytes_of = [&part](uint64_t rows) {
          return part.form.Bytes(std::min(rows, part.cut.rows.count), part.cut.columns.count);
        };
        wanted = std::max(wanted, bytes_of(at_once));
        needed = std::max(needed, bytes_of(cuda::kPackedRows));
      }
    }
    return std::max(needed, std::min(wanted, options_.upload_bytes));
  }

  std::vector<std::span<const std::byte>> PiecesOf(
      const std::vector<const GgufTensor*>& tensors) const {
    std::vector<std::span<const std::byte>> out;
    for (const GgufTensor* tensor : tensors) {
      const size_t step = RowsReadAtOnce(*tensor) * RowBytes(*tensor);
      for (size_t at = 0; at < tensor->data.size(); at += step) {
        out.push_back(tensor->data.subspan(at, std::min(step, tensor->data.size() - at)));
      }
    }
    return out;
  }

  absl::Status PutPiece(const GgufTensor& tensor, const IndexRange& rows,
                        std::span<const std::byte> bytes) {
    const TensorSlice piece = RowsOfTensor(tensor, rows, bytes);
    if (tensor.num_dims == 1) BATON_RETURN_IF_ERROR(CheckVector(piece.tensor));
    BATON_RETURN_IF_ERROR(
        CheckElementsOf(piece.tensor, rows.first, NumRows(tensor), *options_.pool));
    for (const WeightPart& part : parts_.Of(tensor)) {
      BATON_RETURN_IF_ERROR(part.cut.picked.empty() ? PutPart(part, piece.tensor, rows)
                                                    : PutPicked(part, piece.tensor));
    }
    return OkStatus();
  }

  // Puts the picked rows of a whole tensor.
  absl::Status PutPicked(const WeightPart& part, const GgufTensor& whole) {
    const TensorSlice picked = PickRows(whole, part.cut.picked);
    const uint64_t num_rows = part.cut.rows.count;
    const uint64_t k = part.cut.columns.count;
    const uint64_t step = StepOf(part);
    for (uint64_t row = 0; row < num_rows; row += step) {
      const IndexRange some = {row, std::min(step, num_rows - row)};
      const absl::Status status = PutRows(part, picked.tensor, some, part.form.Offset(row, k));
      if (status.ok()) continue;
      return WithPrefix(status, fmt::format("tensor {}, in the order of its heads' pairs",
                                            part.cut.tensor->NameText()));
    }
    return OkStatus();
  }

  // Rows of a part that go to the devices at once.
  uint64_t StepOf(const WeightPart& part) const {
    const size_t tile_bytes = part.form.Bytes(cuda::kPackedRows, part.cut.columns.count);
    return RowsAtOnce(tile_bytes / cuda::kPackedRows, uploads_[0].piece_bytes());
  }

  // Puts the rows of each matrix that lie in the piece, which begins at row `rows.first` of all
  // rows.
  absl::Status PutPart(const WeightPart& part, const GgufTensor& piece, const IndexRange& rows) {
    const uint64_t of_matrix = part.cut.tensor->dims[1];
    const uint64_t piece_end = rows.first + rows.count;
    for (uint64_t matrix = rows.first / of_matrix; matrix * of_matrix < piece_end; ++matrix) {
      const uint64_t cut_begin = matrix * of_matrix + part.cut.rows.first;
      const uint64_t begin = std::max(rows.first, cut_begin);
      const uint64_t end = std::min(piece_end, cut_begin + part.cut.rows.count);
      const size_t place = matrix * part.stride;
      const uint64_t k = part.cut.columns.count;
      const uint64_t step = StepOf(part);
      for (uint64_t row = begin; row < end; row += step) {
        const IndexRange some = {row - rows.first, std::min(step, end - row)};
        const absl::Status status =
            PutRows(part, piece, some, place + part.form.Offset(row - cut_begin, k));
        if (status.ok()) continue;
        // Errors count rows from the first of these.
        const std::string where = row == 0 ? "" : fmt::format(" from row {}", row);
        return WithPrefix(status, fmt::format("tensor {}{}", part.cut.tensor->NameText(), where));
      }
    }
    return OkStatus();
  }

  absl::Status PutRows(const WeightPart& part, const GgufTensor& piece, const IndexRange& rows,
                       size_t place) {
    BATON_ASSIGN_OR_RETURN(const TensorSlice slice,
                           SliceTensor(piece, rows, part.cut.columns, *options_.pool));
    return SendRows(part, slice.tensor, place);
  }

  // Made for the first device; the others' buffers get a copy.
  absl::Status SendRows(const WeightPart& part, const GgufTensor& rows, size_t place) {
    const size_t size = part.form.Bytes(rows.dims[1], rows.dims[0]);
    std::span<const std::byte> made;
    for (auto target = part.targets.begin(); target != part.targets.end();) {
      WeightUpload& upload = uploads_[target->device_idx];
      BATON_ASSIGN_OR_RETURN(std::span<std::byte> out, upload.Next());
      out = out.first(size);
      if (made.empty()) {
        BATON_RETURN_IF_ERROR(WriteRows(rows, part.form, *options_.pool, out));
      } else {
        std::memcpy(out.data(), made.data(), size);
      }
      made = out;
      places_.clear();
      const size_t device_idx = target->device_idx;
      for (; target != part.targets.end() && target->device_idx == device_idx; ++target) {
        places_.push_back(target->begin + place);
      }
      BATON_RETURN_IF_ERROR(upload.Send(places_, size));
    }
    return OkStatus();
  }

  const WeightParts& parts_;
  const WeightUploadOptions& options_;
  std::vector<WeightUpload> uploads_;
  std::vector<std::byte*> places_;
};

}  // namespace

double WeightLoadReport::ShareOfLink() const {
  const double could = link_bytes_per_second * seconds;
  return could > 0 ? static_cast<double>(device_bytes) / could : 0;
}

std::string WeightLoadReport::Text() const {
  const auto bytes = static_cast<double>(device_bytes);
  const std::string_view source = direct_bytes == file_bytes ? "O_DIRECT"
                                  : direct_bytes == 0        ? "mapping"
                                                             : "O_DIRECT and mapping";
  return fmt::format(
      "{:.2f} GB in {:.2f} s ({:.2f} GB/s, {:.0f} % of the link's {:.2f}); waited {:.2f} s for the "
      "file ({}), packed for {:.2f} s, waited {:.2f} s for the link",
      bytes / 1e9, seconds, bytes / 1e9 / std::max(seconds, 1e-9), 100 * ShareOfLink(),
      link_bytes_per_second / 1e9, file_wait_seconds, source,
      std::max(seconds - file_wait_seconds - link_wait_seconds, 0.0), link_wait_seconds);
}

absl::StatusOr<UploadedWeights> UploadWeights(const GgufFile& file, const ModelConfig& config,
                                              const WeightParts& parts,
                                              const WeightUploadOptions& options) {
  BATON_CHECK(!options.devices.empty() && options.pool != nullptr,
              "an upload needs devices and a thread pool");
  return Uploader(parts, options).Run(file, config);
}

}  // namespace baton::model
