// Elements that no product may see: what is refused when a model is loaded, uploaded or converted.
// Pure; any thread. Private to src/model.
#ifndef BATON_MODEL_WEIGHT_CHECKS_H_
#define BATON_MODEL_WEIGHT_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/status.h"
#include "src/device/thread_pool.h"
#include "src/model/gguf.h"

namespace baton::model {

// InvalidArgument naming the first vector (norm, bias, rope factor) with an element that is not
// finite, or a rope factor that is not positive: every logit would be NaN.
absl::Status CheckVectors(const GgufFile& file);
// Checks one vector as CheckVectors does.
absl::Status CheckVector(const GgufTensor& vector);

// InvalidArgument naming the first row with an element that is not finite in bf16. Such an element
// is an infinity or a NaN of an f32, f16, bf16 or fp8 tensor, or an f32 of 3.396e38 and more. An
// element of an MXFP4 tensor beyond fp32 is one too (a power that is finite itself, times a digit).
// Scales of other types are looked at when they are packed. Reads these tensors once.
absl::Status CheckElements(const GgufFile& file, device::ThreadPool& pool);
// As CheckElements, for rows of one tensor of any type; they begin at row `first` of its
// `num_rows`.
absl::Status CheckElementsOf(const GgufTensor& rows, uint64_t first, uint64_t num_rows,
                             device::ThreadPool& pool);
// As CheckElementsOf, for `bytes` of a tensor.
absl::Status CheckRows(const GgufTensor& tensor, std::span<const std::byte> bytes, uint64_t first,
                       uint64_t num_rows, device::ThreadPool& pool);

}  // namespace baton::model

#endif  // BATON_MODEL_WEIGHT_CHECKS_H_
