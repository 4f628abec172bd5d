#include "src/model/weight_packing.h"

#include <utility>

#include "src/device/aligned_buffer.h"

namespace baton::model {

using device::AlignedBuffer;
using device::ThreadPool;
using kernels::PackedMatrix;
using kernels::RawRows;
using kernels::WeightType;

namespace {

uint32_t RowLengthOf(const GgufTensor& tensor) { return static_cast<uint32_t>(tensor.dims[0]); }

// Each part is checked right before it is packed, so that its bytes come from the disk once.
absl::Status PackParts(std::span<const TensorPart> parts, const PackedMatrix& matrix,
                       ThreadPool& pool, std::span<std::byte> out) {
  std::vector<std::vector<std::byte>> made(parts.size());
  std::vector<RawRows> rows;
  for (size_t i = 0; i < parts.size(); ++i) {
    BATON_RETURN_IF_ERROR(CheckPart(parts[i], pool));
    rows.push_back(RawRowsOf(parts[i], pool, made[i]));
  }
  return WithPrefix(matrix.PackInto(rows, pool, out), "tensor " + parts[0].tensor->NameText());
}

PackJob::PackFn PackFnOf(std::span<const TensorPart> parts, const GgufTensor* whole,
                         ThreadPool& pool) {
  return [parts = std::vector<TensorPart>(parts.begin(), parts.end()), whole, &pool](
             const PackedMatrix& matrix, std::span<std::byte> out) {
    const absl::Status status = PackParts(parts, matrix, pool, out);
    if (status.ok() || whole == nullptr) return status;
    const absl::Status of_whole = TryToPack(WholePart(whole), pool);
    return of_whole.ok() ? status : of_whole;
  };
}

absl::StatusOr<PackedMatrix> ShapeOf(std::span<const TensorPart> parts) {
  uint64_t num_rows = 0;
  for (const TensorPart& part : parts) num_rows += part.num_packed();
  const GgufTensor& first = *parts[0].tensor;
  absl::StatusOr<PackedMatrix> shape =
      PackedMatrix::Shaped(PackedTypeOf(first), num_rows, RowLengthOf(first));
  if (!shape.ok()) return WithPrefix(shape.status(), "tensor " + first.NameText());
  return shape;
}

}  // namespace

absl::StatusOr<MatrixGroup> WeightPacking::Group(std::span<const TensorPart> parts,
                                                 const GgufTensor* whole) {
  MatrixGroup group;
  std::vector<std::span<const TensorPart>> joined;
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin + 1;
    const WeightType type = PackedTypeOf(*parts[begin].tensor);
    while (end < parts.size() && PackedTypeOf(*parts[end].tensor) == type) ++end;
    joined.push_back(parts.subspan(begin, end - begin));
    BATON_ASSIGN_OR_RETURN(PackedMatrix matrix, ShapeOf(joined.back()));
    group.n += matrix.n();
    group.uses_a16 = group.uses_a16 || matrix.uses_a16();
    group.parts.push_back(std::move(matrix));
    begin = end;
  }
  for (size_t i = 0; i < joined.size(); ++i) {
    jobs_.push_back(
        {&group.parts[i], joined[i][0].tensor->name, PackFnOf(joined[i], whole, pool_)});
  }
  return group;
}

absl::StatusOr<MatrixGroup> WeightPacking::One(const TensorPart& part) {
  return Group({&part, 1}, part.order.num_heads == 0 ? nullptr : part.tensor);
}

absl::StatusOr<MatrixGroup> WeightPacking::Made(const GgufTensor& tensor, PackedMatrix shape,
                                                PackJob::PackFn pack) {
  MatrixGroup group;
  group.n = shape.n();
  group.uses_a16 = shape.uses_a16();
  group.parts.push_back(std::move(shape));
  jobs_.push_back({&group.parts[0], tensor.name, std::move(pack)});
  return group;
}

absl::Status WeightPacking::Single(const GgufTensor* tensor, PackedMatrix* matrix) {
  const TensorPart part = WholePart(tensor);
  BATON_ASSIGN_OR_RETURN(*matrix, ShapeOf({&part, 1}));
  jobs_.push_back({matrix, tensor->name, PackFnOf({&part, 1}, nullptr, pool_)});
  return OkStatus();
}

absl::Status WeightPacking::PackAlone(const PackJob& job) {
  absl::StatusOr<AlignedBuffer> packed = AlignedBuffer::Allocate(job.matrix->bytes());
  if (!packed.ok()) return WithPrefix(packed.status(), fmt::format("tensor \"{}\"", job.tensor));
  BATON_RETURN_IF_ERROR(job.pack(*job.matrix, {packed->data(), packed->size()}));
  job.matrix->Own(*std::move(packed));
  return OkStatus();
}

absl::Status TryToPack(const TensorPart& part, ThreadPool& pool) {
  BATON_RETURN_IF_ERROR(CheckPart(part, pool));
  std::vector<std::byte> made;
  const RawRows rows = RawRowsOf(part, pool, made);
  const absl::Status status =
      PackedMatrix::PackRows({&rows, 1}, RowLengthOf(*part.tensor), pool).status();
  const std::string where = part.first_row == 0 ? "" : fmt::format(" from row {}", part.first_row);
  return WithPrefix(status, fmt::format("tensor {}{}", part.tensor->NameText(), where));
}

}  // namespace baton::model
