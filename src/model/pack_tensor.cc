#include "src/model/pack_tensor.h"

#include "src/model/tensor_plan.h"

namespace baton::model {

namespace cuda = kernels::cuda;
using device::ThreadPool;
using kernels::Fp8Rows;

cuda::PackedFormat PackedFormatOf(const GgufTensor& tensor) {
  return PackedFormatOf(WholeOf(&tensor));
}

cuda::PackedFormat PackedFormatOf(const TensorCut& cut) {
  if (CutsBlocks(cut)) return cuda::PackedFormat::kBf16;
  const GgufTensor& tensor = *cut.tensor;
  if (tensor.fp8() == nullptr) return cuda::PackedFormatOf(WeightTypeOf(tensor));
  const auto k = static_cast<uint32_t>(cut.columns.count);
  return cuda::PackedFormatOf(Fp8Rows{.k = k, .group = tensor.fp8()->group});
}

absl::Status PackTensor(const GgufTensor& tensor, ThreadPool& pool, std::span<std::byte> out) {
  if (tensor.fp8() != nullptr) return cuda::PackFp8(Fp8RowsOf(tensor), pool, out);
  const auto n = static_cast<uint32_t>(tensor.num_elements() / tensor.dims[0]);
  return cuda::PackWeights({WeightTypeOf(tensor), tensor.data, n},
                           static_cast<uint32_t>(tensor.dims[0]), pool, out);
}

}  // namespace baton::model
