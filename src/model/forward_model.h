// ForwardModel: the interface that an engine needs of a model, so that scheduling and hand-off can
// be tested with a toy. LoadedModel: a model that was read from a model file, on whatever device.
// The engine thread calls Forward; the rest is constant after loading.
#ifndef BATON_MODEL_FORWARD_MODEL_H_
#define BATON_MODEL_FORWARD_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvcache/kv_view.h"
#include "src/base/status.h"
#include "src/model/model_batch.h"
#include "src/model/model_config.h"

namespace baton::device {
class Accelerator;
class ThreadPool;
}  // namespace baton::device

namespace baton::model {

// See the file comment.
class ForwardModel {
 public:
  virtual ~ForwardModel() = default;

  virtual uint32_t vocab_size() const = 0;
  // Rows of one batch, and tokens of one sequence, at most.
  virtual uint32_t max_rows() const = 0;
  virtual uint32_t max_context() const = 0;
  // Elements of a row of ModelBatch::hidden; 0 = the model does not give them.
  virtual uint32_t hidden_size() const { return 0; }

  // Called once before the first Forward, with the view that Forward will be given. Makes ready
  // what can be made ready. The view's memory may hold anything, and nothing is written to it.
  // Internal when a device failed. Not needed for right answers.
  virtual Status Prepare(const kv::KvView& /*kv*/) { return OkStatus(); }

  // Computes the rows of `batch`: stores their K and V in the blocks of their spans, and writes the
  // logits of the wanted rows to `logits` [logit_rows, vocab_size] in their order. `hook` (may be
  // null) hears of each layer. Allocates nothing. InvalidArgument with the values when a size,
  // token, position or block lies outside what the model was loaded for; then nothing is written.
  // Internal when a device failed.
  virtual Status Forward(const ModelBatch& batch, const kv::KvView& kv, LayerHook* hook,
                         std::span<float> logits) = 0;

  // The first layer whose part of a sequence's fixed state, in these blocks, holds an element that
  // is infinite or no number; none where all are finite, or nothing is kept. Between two steps.
  virtual std::optional<uint32_t> BrokenStateLayer(std::span<const uint32_t> /*state*/,
                                                   const kv::KvView& /*kv*/) const {
    return std::nullopt;
  }

  // Whether it takes ModelBatch::sampling.
  virtual bool samples() const { return false; }

  // Whether steps can overlap: a step is begun before the one before it has ended.
  virtual bool overlaps_steps() const { return false; }
  // Puts a step into the device's stream and does not wait for it. All its rows decode, and the
  // model chooses a token for each of them. A token id may be a FedToken of the step begun before,
  // which has not ended. Two steps are begun and not ended at most. The arrays may change when it
  // returns. Errors as Forward; then nothing was begun.
  virtual Status Begin(const ModelBatch& /*batch*/, const kv::KvView& /*kv*/) {
    return Unimplemented("steps of this model do not overlap");
  }
  // Waits for the older of the steps that were begun; `tokens` [rows] as ModelBatch::tokens.
  // Internal when a device failed; then none is begun any more.
  virtual Status End(std::span<TokenId> /*tokens*/) { return Internal("no step was begun"); }

  // For the utilisation metrics; 0 = unknown. bytes_read_per_step is the weights that a step of one
  // row with logits reads. Packed weights are read again for every 64 rows, or are unpacked.
  // flops_per_row is the operations (multiplications and additions) that one row costs without
  // attention.
  virtual size_t bytes_read_per_step() const { return 0; }
  virtual uint64_t flops_per_row() const { return 0; }
};

// The threads and the device that a model computes with; both outlive it.
struct ModelThreads {
  device::ThreadPool* pool = nullptr;  // of the host
  device::Accelerator* device =
      nullptr;  // of the model's device and this model's alone; null on the host
};

// See the file comment.
class LoadedModel : public ForwardModel {
 public:
  // Another model over the same weights, for another engine thread. All that follows here is equal;
  // the working memory is its own. The weights live as long as one of these models, on a device no
  // longer than the accelerator that they were loaded with. ResourceExhausted when memory is short.
  virtual StatusOr<std::unique_ptr<LoadedModel>> Share(const ModelThreads& threads) const = 0;

  virtual const ModelConfig& config() const = 0;
  virtual const kv::KvLayout& layout() const = 0;  // of every KvView given to Forward
  // Hash of the config and of every tensor's bytes, 32 hex digits. Equal ids = equal weights.
  virtual const std::string& weights_id() const = 0;
  // Hash of everything that decides bits, 32 hex digits: two models of equal numerics_id give equal
  // bits.
  virtual const std::string& numerics_id() const = 0;
  // The parts of numerics_id in words: "weights=... tokenizer=... arithmetic=... sampling=...".
  virtual const std::string& numerics_text() const = 0;
  // Whether a row's bits are equal whatever else is in a batch and however a prompt is cut into
  // steps. If not, numerics_id names a class of arithmetic, and logits of one sequence differ a
  // little.
  virtual bool is_deterministic() const { return true; }
  virtual size_t weight_bytes() const = 0;  // all tensors, as they lie in the device's memory
  // The name of the arithmetic: "avx2", "simt".
  virtual std::string_view arithmetic_name() const = 0;

  uint32_t vocab_size() const override { return config().vocab_size; }
  uint32_t hidden_size() const override { return config().hidden_size; }
  // A multiplication and an addition per weight of every matrix that a row passes through; the
  // output layer only counts for the rows whose logits are wanted, which are few in a prefill.
  uint64_t flops_per_row() const override { return uint64_t{2} * config().WeightsPerRow(); }
};

}  // namespace baton::model

#endif  // BATON_MODEL_FORWARD_MODEL_H_
