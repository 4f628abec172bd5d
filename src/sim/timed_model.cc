#include "src/sim/timed_model.h"

#include <algorithm>
#include <cmath>

namespace baton::sim {

using kernels::AttentionSpan;
using kv::KvView;
using model::LayerHook;
using model::ModelBatch;
using scheduler::StepShape;

int64_t TimedModel::StepUs(const ModelBatch& batch) const {
  StepShape prompts;
  StepShape decodes;
  for (const AttentionSpan& span : batch.spans) {
    if (span.num_rows == 1) {
      decodes.AddDecode(span.first_pos);
    } else {
      prompts.AddPrefill(span.first_pos, span.num_rows);
    }
  }
  const auto num_logits = static_cast<uint32_t>(batch.logit_rows.size());
  prompts.logit_rows = num_logits - std::min(num_logits, decodes.logit_rows);
  return std::llround(options_.steps.StepUs(prompts, decodes));
}

Status TimedModel::Forward(const ModelBatch& batch, const KvView& /*kv*/, LayerHook* hook,
                           std::span<float> logits) {
  const int64_t step_us = StepUs(batch);
  const int64_t num_layers = options_.num_layers;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    // Exactly step_us in all.
    spend_(step_us * (layer + 1) / num_layers - step_us * layer / num_layers);
    if (hook != nullptr) hook->OnLayerStored(static_cast<uint32_t>(layer));
  }
  for (model::StateCopy& copy : batch.state_copies) copy.has_numbers = true;
  std::fill(logits.begin(), logits.end(), 0.0f);
  for (size_t row = 0; row < batch.logit_rows.size(); ++row) {
    logits[row * kSimVocab + static_cast<size_t>(kTimedToken)] = 1.0f;
  }
  return OkStatus();
}

}  // namespace baton::sim
