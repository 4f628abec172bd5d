// DeviceBatch: a batch as kernels read it, with the plan of its attention. It is one piece of
// device memory, filled by one copy a step. Owned by the thread that calls Forward. Private to
// src/model.
//
// A batch may be padded to more rows than it has. Then only that number of rows and the grid for
// its attention decide where each array begins. So kernels whose parameters were recorded can read
// any batch with this number and grid. A padding row has no sequence (cuda::kPaddingRow), token 0
// and logits that nobody wants.
//
//   [counts][token ids][positions][sequences][logit rows][sampling][items ...][states ...]
//   [block lists]
#ifndef BATON_MODEL_DEVICE_BATCH_H_
#define BATON_MODEL_DEVICE_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/delta_params.h"
#include "kernels/sampling.h"
#include "src/base/status.h"
#include "src/device/accelerator.h"
#include "src/device/host_buffer.h"
#include "src/model/model_batch.h"
#include "src/model/model_config.h"

namespace baton::model {

// Ctas that decode attention is spread over: four of 128 threads on each of Hopper's 132 SMs.
inline constexpr uint32_t kDecodeCtas = 4 * 132;
// Ctas for splits of keys that have a cta each. Their shared memory lets two run on each SM.
inline constexpr uint32_t kSpreadCtas = 2 * 132;
// Each decode cta has at most four splits at a time.
inline constexpr uint32_t kMaxPartials = 4 * kDecodeCtas;
// Ctas of prefill attention. Their shared memory lets two run on each SM.
inline constexpr uint32_t kPrefillCtas = 2 * 132;
// The most rows to which a batch may be padded, and the grids that walk its items. A cta without an
// item costs its launch. So few items, which have a kernel of their own, get a smaller grid.
inline constexpr uint32_t kMaxPaddedRows = 128;
inline constexpr uint32_t kPaddedGrids[] = {kSpreadCtas, kDecodeCtas};

// The numbers that set the size of a batch's memory.
struct DeviceBatchSize {
  uint32_t max_rows = 0;
  uint32_t max_logit_rows = 0;
  uint32_t max_context = 0;   // positions of a sequence
  uint32_t block_size = 0;    // tokens
  bool has_prefill = true;    // cuda::AttentionPlanLimits
  bool has_spread = true;     // cuda::KernelTable
  uint32_t state_blocks = 0;  // kv::KvLayout
};

// The fixed states of a batch on the device; all null where sequences have none.
struct DeviceStates {
  const kernels::cuda::DeltaSpan* spans = nullptr;  // [num_spans], with those of padding
  const uint32_t* row_spans = nullptr;              // [rows]
  const uint32_t* lists = nullptr;                  // [num_spans][state_blocks]
  const uint32_t* copies = nullptr;                 // [copies][state_blocks]
  uint32_t* broken = nullptr;                       // [num_spans], zeros at first if any is copied
  const uint32_t* cleared = nullptr;                // [num_cleared]: blocks that begin as zeros
  uint32_t num_spans = 0;
  uint32_t num_cleared = 0;
};

// The items of attention on the device, and the grid that walks them; 0 = there are none.
struct DeviceItems {
  const kernels::cuda::AttentionItem* items = nullptr;
  const uint32_t* num_items = nullptr;
  uint32_t num_ctas = 0;
  bool is_spread = false;  // cuda::AttentionParams
};

// See the file comment.
class DeviceBatch {
 public:
  // ResourceExhausted when memory is short.
  static absl::StatusOr<std::unique_ptr<DeviceBatch>> Create(const ModelConfig& config,
                                                             const DeviceBatchSize& size,
                                                             device::Accelerator* device);

  // Puts the copy of the batch, which was checked, into the stream. The copy of the batch before
  // the last one is done. With `padded_rows` 0 the batch is copied as it is. Else all its rows
  // decode and want logits, and `padded_rows` is at least their number and at most kMaxPaddedRows.
  Status Set(const ModelBatch& batch, uint32_t padded_rows);
  // Sets where everything lies in a batch that is padded to `rows` and whose items `num_ctas` ctas
  // walk. Copies nothing. Used to record the kernels that read such a batch.
  void PlacePadded(uint32_t rows, uint32_t num_ctas);

  // Rows and logit rows, padding included; arrays in device memory.
  uint32_t num_rows() const { return sizes_.rows; }
  uint32_t num_logit_rows() const { return sizes_.logit_rows; }
  const uint32_t* token_ids() const { return At<uint32_t>(places_.token_ids); }
  const uint32_t* positions() const { return At<uint32_t>(places_.positions); }
  // [rows]: at which entry of block_lists() the list of the row's sequence begins.
  const uint32_t* sequences() const { return At<uint32_t>(places_.sequences); }
  const uint32_t* logit_rows() const { return At<uint32_t>(places_.logit_rows); }
  // [logit_rows] RowSampling; null where the model is asked for no token.
  const kernels::RowSampling* sampling() const {
    return sizes_.sampled_rows == 0 ? nullptr : At<kernels::RowSampling>(places_.sampling);
  }
  const uint32_t* block_lists() const { return At<uint32_t>(places_.block_lists); }
  // Items of prefill attention, for every layer; none in a padded batch.
  DeviceItems prefill() const { return {At<Item>(places_.prefill), Count(0), sizes_.prefill_ctas}; }
  // Items of decode attention, for layers that see everything. In a padded batch the grid is one of
  // kPaddedGrids, the same as for local layers.
  DeviceItems decode() const {
    return {At<Item>(places_.decode), Count(1), sizes_.decode_ctas, sizes_.is_spread};
  }
  // Items of decode attention, for local layers; no split lies wholly before the window.
  DeviceItems local_decode() const {
    return {At<Item>(places_.local), Count(2), sizes_.local_ctas, sizes_.is_spread};
  }

  DeviceStates states() const;

 private:
  using Item = kernels::cuda::AttentionItem;
  static constexpr uint32_t kNumCounts = 3;  // prefill, decode, local decode

  // Lengths of the arrays, and of grids.
  struct Sizes {
    uint32_t rows = 0;
    uint32_t logit_rows = 0;
    uint32_t sampled_rows = 0;
    uint32_t spans = 0;  // with states; 0 where sequences have none
    uint32_t copies = 0;
    size_t cleared = 0;  // blocks
    size_t prefill = 0;
    size_t decode = 0;
    size_t local = 0;
    size_t list_words = 0;
    uint32_t prefill_ctas = 0;
    uint32_t decode_ctas = 0;
    uint32_t local_ctas = 0;
    bool is_spread = false;
  };
  // Where the arrays begin and the last one ends, in bytes from the begin of the memory.
  struct Places {
    size_t token_ids, positions, sequences, logit_rows, sampling, prefill, decode, local;
    size_t spans, row_spans, states, copies, broken, cleared;
    size_t block_lists, end;
  };

  DeviceBatch(const ModelConfig& config, const DeviceBatchSize& size);
  Places PlacesOf(const Sizes& sizes) const;
  template <typename T>
  const T* At(size_t place) const {
    return reinterpret_cast<const T*>(memory_.data() + place);
  }
  template <typename T>
  std::span<T> HostAt(size_t place, size_t count) const {
    return {reinterpret_cast<T*>(staged() + place), count};
  }
  std::byte* staged() const { return staged_[which_staged_].data(); }
  const uint32_t* Count(uint32_t which) const { return At<uint32_t>(0) + which; }
  Status Plan(const ModelBatch& batch);
  void Write(const ModelBatch& batch) const;
  void WriteRows(const ModelBatch& batch) const;
  void WriteStates(const ModelBatch& batch) const;
  // Blocks of states that begin in this batch, and of copies.
  size_t NumCleared(const ModelBatch& batch) const;

  const DeviceBatchSize size_;
  const kernels::cuda::AttentionPlanLimits limits_;
  const kernels::cuda::AttentionShape shape_;
  const kernels::cuda::AttentionShape local_shape_;
  const bool has_local_layers_;
  device::Accelerator* device_ = nullptr;
  device::DeviceBuffer memory_;
  device::DeviceBuffer broken_;   // DeviceStates; kernels write it, and no other part of a batch
  device::HostBuffer staged_[2];  // what is being copied, in turn
  size_t which_staged_ = 0;       // the last batch's
  Sizes sizes_;
  Places places_ = {};
  std::vector<kernels::cuda::AttentionRows> rows_;  // reserved, as the plans
  kernels::cuda::AttentionPlan plan_;
  kernels::cuda::AttentionPlan local_plan_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_DEVICE_BATCH_H_
