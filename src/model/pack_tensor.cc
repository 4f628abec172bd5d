#include "src/model/pack_tensor.h"

#include "src/model/tensor_plan.h"

namespace baton {

cuda::PackedFormat PackedFormatOf(const GgufTensor& tensor) {
  if (tensor.fp8() != nullptr) return cuda::PackedFormatOf(Fp8RowsOf(tensor));
  return cuda::PackedFormatOf(WeightTypeOf(tensor));
}

absl::Status PackTensor(const GgufTensor& tensor, ThreadPool& pool, std::span<std::byte> out) {
  if (tensor.fp8() != nullptr) return cuda::PackFp8(Fp8RowsOf(tensor), pool, out);
  const auto n = static_cast<uint32_t>(tensor.num_elements() / tensor.dims[0]);
  return cuda::PackWeights({WeightTypeOf(tensor), tensor.data, n},
                           static_cast<uint32_t>(tensor.dims[0]), pool, out);
}

}  // namespace baton
