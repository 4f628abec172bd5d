// Matrices in NVFP4, and the tensors that a GGUF file has beside them. Any thread.
#ifndef BATON_MODEL_GGUF_NVFP4_H_
#define BATON_MODEL_GGUF_NVFP4_H_

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/model/gguf.h"

namespace baton::model {

bool IsNvfp4(const GgufTensor& tensor);

using TensorLookup = std::function<const GgufTensor*(std::string_view name)>;

// A file of llama.cpp's converter has, beside X.weight in NVFP4, the scale of the tensor (X.scale,
// F32) and that of its activations (X.input_scale), which are not quantised here. Both leave
// `tensors`, and X.weight gets the scale in a type row of its own, which `storage` keeps.
// kBadScale where it is not one number for the whole tensor in (0, 2^64]: experts have one each in
// their files, and are read where all are equal. `find` gives the tensor of `tensors` of a name.
absl::Status TakeNvfp4Scales(std::vector<GgufTensor>& tensors, const TensorLookup& find,
                             std::vector<std::shared_ptr<const void>>& storage);

}  // namespace baton::model

#endif  // BATON_MODEL_GGUF_NVFP4_H_
