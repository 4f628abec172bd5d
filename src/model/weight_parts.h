// WeightParts: which rows and columns of which tensors of a model go where in the memory of
// devices, and in which form. A part that several ranks have alike is one part with several
// targets, so it is made once. Private to src/model.
#ifndef BATON_MODEL_WEIGHT_PARTS_H_
#define BATON_MODEL_WEIGHT_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/packed_weights.h"
#include "src/model/gguf.h"
#include "src/model/model_rank.h"

namespace baton::model {

// How elements lie on a device: packed or bf16; or as the fp32 that the file has.
struct WeightForm {
  kernels::cuda::PackedFormat format = kernels::cuda::PackedFormat::kBf16;
  bool is_float = false;

  bool operator==(const WeightForm&) const = default;
  // Where one matrix's row `row` begins, in rows of `k`; of a packed form the first of a tile.
  size_t Offset(uint64_t row, uint64_t k) const;
  // Bytes of `rows` rows of `k`; a packed form has whole tiles.
  size_t Bytes(uint64_t rows, uint64_t k) const;
};

// A place in the memory of one of the devices.
struct WeightTarget {
  size_t device_idx = 0;
  std::byte* begin = nullptr;
};

// See the file comment.
struct WeightPart {
  TensorCut cut;
  WeightForm form;
  size_t stride = 0;                  // bytes from a matrix of the tensor to the next
  std::vector<WeightTarget> targets;  // device_idx ascends
};

// See the file comment.
class WeightParts {
 public:
  // `part` has one target, on no earlier device than what was added before.
  void Add(WeightPart part);
  // The parts of the tensor, in no particular order.
  std::span<const WeightPart> Of(const GgufTensor& tensor) const;

 private:
  std::unordered_map<const GgufTensor*, std::vector<WeightPart>> parts_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_WEIGHT_PARTS_H_
