// RowSampler: the tokens of a step's rows: chosen by the model where it was asked to, else sampled
// here from the row's logits with the choice's own state. Engine thread.
//
// The threads of EngineParts::pool share the rows of a step. One thread computes a row whole, with
// a sampler of its own, from what the engine thread has put down before: so no bit depends on how
// many threads there are. All that changes a request happens on the engine thread, row by row, in
// the order of the plan's items.
#ifndef BATON_ENGINE_ROW_SAMPLER_H_
#define BATON_ENGINE_ROW_SAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/engine/step_work.h"
#include "src/model/sampler.h"

namespace baton::engine {

// See the file comment.
class RowSampler {
 public:
  // `work` outlives it. Takes model::Sampler::BytesFor each thread of the pool.
  RowSampler(const StepParts& parts, StepWork* work);

  // Before a step begins: the model may choose the tokens of its rows, where one token is enough.
  void AskModel(const scheduler::BatchPlan& plan, StepBatch* step) const;
  // After it: the tokens of all decode rows, and the result of each item. A prompt that ends is
  // listed in StepWork::done_prompts and sampled later.
  void SampleAll(const scheduler::BatchPlan& plan);
  // The first token of each choice of a request, whose prompt plan item `item` ends; appended to
  // `out`. False, and the request is noted as failed, when one cannot be chosen.
  bool SampleFirst(LiveRequest* request, size_t item, std::vector<model::SampledToken>* out);

  // Tells the log-probabilities of the prompts' tokens. The logits of one are those of the token
  // before it. What was told before the prompt was preempted is not told again.
  void LogPrompts(const scheduler::BatchPlan& plan);

 private:
  // A row whose token is wanted: what it is, and what came of it.
  struct Row {
    LiveRequest* request = nullptr;
    Choice* choice = nullptr;
    size_t item = 0;  // of the plan
    // Logits are empty where the model has chosen, and where the status is an error.
    model::SampleQuery query;
    Status status;            // of the grammar
    bool has_number = false;  // the logits, or the model, gave a token
    model::SampledToken token;
  };
  // The token of a prompt after the row, whose log-probability is wanted.
  struct LogRow {
    const LiveRequest* request = nullptr;
    uint32_t pos = 0;  // of the token
    std::span<const float> logits;
    uint32_t rank = 0;
    model::SampledToken token;
  };

  // Calls task(idx, thread_idx) for each idx in [0, num_rows), on the pool's threads.
  template <typename Task>
  void Share(size_t num_rows, const Task& task) const;

  // The result of an item without a token; else it is put down in rows_.
  scheduler::ItemResult AskItem(const scheduler::BatchItem& item, size_t idx);
  // The row of plan item `item` after `row` of its guesses, and what is asked of it.
  Row Ask(LiveRequest* request, Choice* choice, size_t item, uint32_t row) const;
  // The tokens of rows_.
  void SampleRows();
  static void SampleRow(model::Sampler* sampler, Row* row);
  // False, and the request is noted as failed, when nothing could be chosen.
  bool HasToken(Row* row);
  // The model gave no number to sample from: in which layer the request's state holds none, if any.
  Status NoNumberError(const LiveRequest& request, const Choice& choice) const;
  scheduler::ItemResult TakeItem(const scheduler::BatchItem& item, Row* row);
  // The choice's next token, and those after it as long as the item's guesses are right.
  scheduler::ItemResult TakeTokens(const scheduler::BatchItem& item, Row* first);

  EngineState* const state_;
  RequestLife* const life_;
  GuideWaits* const guides_;
  ChoiceTokens* const tokens_;
  StepWork* const work_;
  std::vector<model::Sampler> samplers_;  // one of each thread; the engine thread's is the first
  // Rows of one step; all memory is taken at construction.
  std::vector<Row> rows_;               // in the order of the plan's items
  std::vector<uint32_t> sampled_here_;  // places in rows_
  std::vector<LogRow> log_rows_;        // in the order of the plan's items, then of positions
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ROW_SAMPLER_H_
