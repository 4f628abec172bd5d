// The part of a model that one of several ranks has when the matrices are divided among devices
// (tensor parallelism). A rank has heads of attention with their K and V, a part of every
// feed-forward layer, and columns of the logits. Every rank has the norms, the router and the
// embedding whole. Private to src/model, and to checks that make random weights
// (DeviceModel::FromWeights).
//
//   q, k, v, gate, up   rows: what the rank's heads and its part of the layer are made of
//   attn_output, down   columns: each rank's product is a part of the sum
//   output              rows
#ifndef BATON_MODEL_MODEL_RANK_H_
#define BATON_MODEL_MODEL_RANK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/device/thread_pool.h"
#include "src/model/gguf.h"
#include "src/model/model_config.h"
#include "src/model/tensor_plan.h"

namespace baton::model {

// One of `count` ranks.
struct ModelRank {
  uint32_t index = 0;
  uint32_t count = 1;
};

// [first, first + count)
struct IndexRange {
  uint64_t first = 0;
  uint64_t count = 0;

  bool operator==(const IndexRange&) const = default;
};

// InvalidArgument with the values unless `count` is 1, 2, 4 or 8 and every rank can have an equal
// part: `count` must divide the heads, the KV heads and the feed-forward layer.
absl::Status CheckRankCount(const ModelConfig& config, uint32_t count);

// The config that one of `count` ranks computes with; `count` was checked. The vocabulary is whole.
ModelConfig ConfigOfRank(const ModelConfig& config, uint32_t count);

// The tokens whose logits a rank computes; the last ranks of a small vocabulary may have none.
IndexRange LogitsOfRank(const ModelConfig& config, const ModelRank& rank);

// Rows and columns of every matrix of a tensor.
struct TensorCut {
  const GgufTensor* tensor = nullptr;
  IndexRange rows;
  IndexRange columns;
  // The rows of its one matrix, or the elements of a vector, in the order in which they are wanted;
  // empty: as they lie. `rows` then counts from 0.
  std::vector<uint32_t> picked = {};
};
TensorCut WholeOf(const GgufTensor* tensor);
TensorCut CutOf(const GgufTensor* tensor, const IndexRange& rows);            // all columns
TensorCut CutColumnsOf(const GgufTensor* tensor, const IndexRange& columns);  // all rows
TensorCut PickOf(const GgufTensor* tensor, std::vector<uint32_t> picked);
// Whether the columns begin or end within a block of the tensor's type (of fp8, a group of one
// scale).
bool CutsBlocks(const TensorCut& cut);

// A rank's share of a layer's matrices and biases: rows of q; of k and v; of gate and up. The
// columns of attn_output are those of q, the columns of down are those of ffn.
struct LayerShares {
  IndexRange q;
  IndexRange kv;
  IndexRange ffn;
};
LayerShares SharesOf(const ModelConfig& config, const ModelRank& rank);

// A tensor of a part, and what it views; moved, never copied.
struct TensorSlice {
  struct Fp8Part {
    std::vector<float> values;
    Fp8Scales scales;
    GgufTensorType type;
  };

  GgufTensor tensor;
  std::unique_ptr<std::vector<std::byte>> storage;  // null when it views the tensor it is cut from
  std::unique_ptr<Fp8Part> fp8;  // of a tensor in fp8: its type row and the scales
};

// Rows of all matrices of a tensor, which lie below one another, as one matrix. `bytes` are the
// bytes of these rows, wherever they lie.
TensorSlice RowsOfTensor(const GgufTensor& tensor, const IndexRange& rows,
                         std::span<const std::byte> bytes);

// The picked rows, or elements of a vector, of a whole tensor.
TensorSlice PickRows(const GgufTensor& tensor, std::span<const uint32_t> picked);

// `rows` and `columns` of every matrix of the tensor. It has the tensor's type unless the columns
// cut blocks, else bf16 (EncodeMatrix, with its errors). Whole rows of one matrix are not copied.
absl::StatusOr<TensorSlice> SliceTensor(const GgufTensor& tensor, const IndexRange& rows,
                                        const IndexRange& columns, device::ThreadPool& pool);

}  // namespace baton::model

#endif  // BATON_MODEL_MODEL_RANK_H_
