// WeightPacking: the matrices of a model that are yet to be packed, in the order in which they are
// loaded. First all get their shapes, so that memory for all can be shared out; then each is packed
// by its job. One thread. Private to src/model.
#ifndef BATON_MODEL_WEIGHT_PACKING_H_
#define BATON_MODEL_WEIGHT_PACKING_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/packed_matrix.h"
#include "src/base/status.h"
#include "src/device/thread_pool.h"
#include "src/model/gguf.h"
#include "src/model/model_weights.h"
#include "src/model/tensor_part.h"

namespace baton::model {

// One matrix, and how it is packed.
struct PackJob {
  // Checks the rows and packs them to `out` [matrix.bytes()], as PackedMatrix::PackInto does.
  // InvalidArgument as CheckElements, or naming the tensor and its first row with a scale that is
  // not finite.
  using PackFn =
      std::function<absl::Status(const kernels::PackedMatrix& matrix, std::span<std::byte> out)>;

  kernels::PackedMatrix* matrix;
  std::string_view tensor;  // its name; of joined ones the first
  PackFn pack;
};

// See the file comment. Tensors outlive it.
class WeightPacking {
 public:
  explicit WeightPacking(device::ThreadPool& pool) : pool_(pool) {}

  device::ThreadPool& pool() const { return pool_; }
  // Parts joined by rows: neighbours of equal type are one matrix. The error of packing has the
  // row's number in `whole`, where it is given: rows of the parts are in another order.
  // The matrices keep their address when the group is moved, and must not be copied.
  absl::StatusOr<MatrixGroup> Group(std::span<const TensorPart> parts,
                                    const GgufTensor* whole = nullptr);
  absl::StatusOr<MatrixGroup> One(const TensorPart& part);
  // One matrix of that shape which `pack` makes of `tensor`.
  absl::StatusOr<MatrixGroup> Made(const GgufTensor& tensor, kernels::PackedMatrix shape,
                                   PackJob::PackFn pack);
  // The whole tensor; `matrix` stays where it is.
  absl::Status Single(const GgufTensor* tensor, kernels::PackedMatrix* matrix);

  std::span<const PackJob> jobs() const { return jobs_; }
  // Does one job in memory of the matrix's own. Errors as PackJob::pack; ResourceExhausted.
  static absl::Status PackAlone(const PackJob& job);

 private:
  device::ThreadPool& pool_;
  std::vector<PackJob> jobs_;
};

// The error that packing some rows of a tensor would give.
absl::Status TryToPack(const TensorPart& part, device::ThreadPool& pool);

}  // namespace baton::model

#endif  // BATON_MODEL_WEIGHT_PACKING_H_
