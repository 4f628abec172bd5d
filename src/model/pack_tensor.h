// A tensor of a model file as packed weights of a device (kernels/cuda/packed_weights.h). Pure; any
// thread. Private to src/model.
#ifndef BATON_MODEL_PACK_TENSOR_H_
#define BATON_MODEL_PACK_TENSOR_H_

#include <cstddef>
#include <span>

#include "kernels/cuda/pack_weights.h"
#include "src/base/status.h"
#include "src/device/thread_pool.h"
#include "src/model/gguf.h"
#include "src/model/model_rank.h"

namespace baton::model {

// The format of a supported tensor; kBf16 when devices keep it dequantised.
kernels::cuda::PackedFormat PackedFormatOf(const GgufTensor& tensor);
// The format of some rows and columns of a tensor.
kernels::cuda::PackedFormat PackedFormatOf(const TensorCut& cut);

// All rows, to `out` [PackedBytes]. Errors as cuda::PackWeights and cuda::PackFp8.
absl::Status PackTensor(const GgufTensor& tensor, device::ThreadPool& pool,
                        std::span<std::byte> out);

}  // namespace baton::model

#endif  // BATON_MODEL_PACK_TENSOR_H_
