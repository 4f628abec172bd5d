// PromptSeals: the blocks that a step fills for good of prompts that are handed off. They are
// hashed after each layer and may cross after each group of layers, while the step goes on. Engine
// thread.
#ifndef BATON_ENGINE_PROMPT_SEALS_H_
#define BATON_ENGINE_PROMPT_SEALS_H_

#include <cstdint>
#include <vector>

#include "src/engine/step_work.h"
#include "src/model/forward_model.h"

namespace baton::engine {

// See the file comment.
class PromptSeals final : public model::LayerHook {
 public:
  explicit PromptSeals(const StepParts& parts);

  // A step is planned: none of its blocks is known yet.
  void Clear();
  // The item computes a chunk of the transfer's prompt in this step.
  void Note(const scheduler::BatchItem& item, SourceTransfer* transfer);
  // The step fills no such block.
  bool empty() const { return seals_.empty(); }
  // Before the forward pass: blocks that the prefix index had may cross before anything is
  // computed.
  void SealHits();
  // Between two layers.
  void OnLayerStored(uint32_t layer) override;

 private:
  // A range of blocks of one transfer, by ordinal.
  struct Range {
    SourceTransfer* transfer = nullptr;
    uint32_t first_ordinal = 0;
    uint32_t num_ordinals = 0;
  };

  void TakeGrants();

  EngineState* const state_;
  TakenEvents* const events_;
  SourceTransferSet* const sources_;
  std::vector<Range> seals_;      // that this step fills for good
  std::vector<Range> hit_seals_;  // that were found whole in the prefix index
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_PROMPT_SEALS_H_
