// Steps that are begun and ended: the tokens of one feed the next on the device, and reach the host
// beside it.
#include <algorithm>

#include "src/base/check.h"
#include "src/model/batch_check.h"
#include "src/model/device_model.h"
#include "src/model/device_rank.h"

namespace baton::model {

using kernels::RowSampling;
using kv::KvView;

Status DeviceModel::Begin(const ModelBatch& batch, const KvView& kv) {
  BATON_CHECK(overlaps_steps() && num_begun_ < std::size(begun_rows_),
              "{} steps were begun already", num_begun_);
  const bool is_chosen = batch.sampling.size() == batch.num_rows() &&
                         std::all_of(batch.sampling.begin(), batch.sampling.end(),
                                     [](const RowSampling& row) { return row.on_device != 0; });
  if (batch.spans.size() != batch.num_rows() || !is_chosen ||
      batch.num_rows() > options_.max_logit_rows) {
    return InvalidArgument(
        "a step that is begun has decode rows alone, {} at most, each with a "
        "token that the model chooses: {} rows in {} spans",
        options_.max_logit_rows, batch.num_rows(), batch.spans.size());
  }
  if (!batch.state_copies.empty()) {
    return InvalidArgument("a step that is begun makes {} copies of states, none can be",
                           batch.state_copies.size());
  }
  BATON_RETURN_IF_ERROR(CheckBatch(batch, kv,
                                   {.layout = &layout_,
                                    .max_rows = options_.max_rows,
                                    .max_context = options_.max_context,
                                    .vocab_size = config_.vocab_size,
                                    .num_feeding = num_begun_ == 0 ? 0 : begun_rows_[last_begun_]},
                                   size_t{batch.num_rows()} * config_.vocab_size));
  BATON_RETURN_IF_ERROR(CheckRanksOf(kv));
  BATON_RETURN_IF_ERROR(PutStep(batch, kv, nullptr));
  const size_t which = 1 - last_begun_;
  if (Status sent = ranks_[0]->SendTokens(which, batch.num_rows()); !sent.ok()) {
    (void)WaitForAll();
    return sent;
  }
  last_begun_ = which;
  begun_rows_[which] = batch.num_rows();
  ++num_begun_;
  return OkStatus();
}

Status DeviceModel::End(std::span<TokenId> tokens) {
  if (num_begun_ == 0) return Internal("no step was begun");
  const size_t which = num_begun_ == 1 ? last_begun_ : 1 - last_begun_;
  if (tokens.size() != begun_rows_[which]) {
    return InvalidArgument("room for {} tokens, the step has {} rows", tokens.size(),
                           begun_rows_[which]);
  }
  options_.device->MakeCurrent();
  Status status = ranks_[0]->TakeTokens(which, tokens);
  --num_begun_;
  if (status.ok()) return status;
  num_begun_ = 0;
  (void)WaitForAll();
  return status;
}

}  // namespace baton::model
