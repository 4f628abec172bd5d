// Rows of a tensor of a model file that become one packed matrix, or a part of one. Pure; any
// thread. Private to src/model.
#ifndef BATON_MODEL_TENSOR_PART_H_
#define BATON_MODEL_TENSOR_PART_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/packed_matrix.h"
#include "src/base/status.h"
#include "src/device/thread_pool.h"
#include "src/model/gguf.h"
#include "src/model/tensor_plan.h"

namespace baton::model {

// Rows of a tensor that is no vector: all, or those of one expert, or those of a list.
struct TensorPart {
  const GgufTensor* tensor;
  uint64_t first_row;
  uint32_t num_rows;
  HeadOrder order = {};               // of all rows
  std::vector<uint32_t> picked = {};  // of those above, in the order to pack; empty: as they lie

  // Rows of the matrix that they become.
  uint32_t num_packed() const {
    return picked.empty() ? num_rows : static_cast<uint32_t>(picked.size());
  }
};

TensorPart WholePart(const GgufTensor* tensor);
TensorPart ExpertPart(const GgufTensor* tensor, size_t expert);
// Rows of all matrices of a tensor.
uint64_t NumRowsOf(const GgufTensor& tensor);

// Where element `i` of a head goes: elements that turn together end at j and j + head_dim / 2;
// those that do not turn fill up both halves. Row sums of q * k have the same terms.
size_t TargetOf(const HeadOrder& order, size_t i);

// Rows of a matrix that has `per_head` of each head.
struct HeadRows {
  uint32_t num_heads = 0;
  uint32_t per_head = 0;
  uint32_t first = 0;  // of a head; head_dim from there on
};
// Picks these rows, in the order of TargetOf if they turn, else as they lie.
std::vector<uint32_t> PickHeads(const HeadOrder& order, const HeadRows& rows, bool turns);
// As PickHeads, of the elements of a norm of q or k.
std::vector<uint32_t> PickNorm(const HeadOrder& order);

// CheckRows of weight_checks.h for a part.
absl::Status CheckPart(const TensorPart& part, device::ThreadPool& pool);
// The type in which the rows of a tensor are packed.
kernels::WeightType PackedTypeOf(const GgufTensor& tensor);
// A part as it is packed: bytes of the file, or what `made` then holds: fp8 and NVFP4 in bf16, rows
// in another order.
kernels::RawRows RawRowsOf(const TensorPart& part, device::ThreadPool& pool,
                           std::vector<std::byte>& made);
// The elements of rows of a matrix; those of a quantised type in fp32. InvalidArgument naming a row
// with a scale that is not finite.
absl::StatusOr<std::vector<std::byte>> ElementsOf(const TensorPart& part, device::ThreadPool& pool);

}  // namespace baton::model

#endif  // BATON_MODEL_TENSOR_PART_H_
