// OverlappingModel: a toy model that chooses tokens itself and whose steps overlap, as a device's
// do: a step is computed when it is begun, or only when it is ended, which is as early and as late
// as a stream may.
#ifndef BATON_TESTS_ENGINE_OVERLAPPING_MODEL_H_
#define BATON_TESTS_ENGINE_OVERLAPPING_MODEL_H_

#include <algorithm>
#include <deque>
#include <span>
#include <vector>

#include "src/base/check.h"
#include "src/model/sampler.h"
#include "tests/engine/toy_model.h"

namespace baton::engine {

// See the file comment.
class OverlappingModel final : public model::ForwardModel {
 public:
  // Steps are computed when they are ended.
  bool is_late = false;
  // From this decode row on, all rows counted, one row's logits hold no number; 0 = never.
  uint64_t damaged_row = 0;
  // The status of every step; an error fails the step.
  Status device_error;

  uint64_t num_behind() const { return num_behind_; }  // steps begun while another one ran
  bool IsIdle() const { return begun_.empty(); }

  uint32_t vocab_size() const override { return toy_.vocab_size(); }
  uint32_t max_rows() const override { return toy_.max_rows(); }
  uint32_t max_context() const override { return toy_.max_context(); }
  bool samples() const override { return true; }
  bool overlaps_steps() const override { return true; }

  Status Forward(const model::ModelBatch& batch, const kv::KvView& kv, model::LayerHook* hook,
                 std::span<float> logits) override {
    BATON_CHECK(begun_.empty(), "{} steps were begun and have not ended", begun_.size());
    BATON_RETURN_IF_ERROR(device_error);
    BATON_RETURN_IF_ERROR(toy_.Forward(batch, kv, hook, logits));
    Choose(batch.sampling, logits, batch.tokens);
    return OkStatus();
  }

  Status Begin(const model::ModelBatch& batch, const kv::KvView& kv) override {
    const bool is_decode = batch.spans.size() == batch.num_rows() &&
                           batch.logit_rows.size() == batch.num_rows() &&
                           batch.sampling.size() == batch.num_rows();
    BATON_CHECK(is_decode && begun_.size() < 2, "{} steps are begun already", begun_.size());
    Step step;
    step.kv = kv;
    for (uint32_t row = 0; row < batch.num_rows(); ++row) {
      const TokenId token = batch.token_ids[row];
      const bool may_feed = !begun_.empty() && model::FeedingRow(token) < begun_.back().rows.size();
      BATON_CHECK(token >= 0 || may_feed, "row {} is fed by a row that is not there", row);
      BATON_CHECK(batch.sampling[row].on_device != 0, "row {} is not to be chosen here", row);
      const kernels::AttentionSpan& span = batch.spans[row];
      step.rows.push_back({token,
                           span.first_pos,
                           {span.kv.blocks.begin(), span.kv.blocks.end()},
                           batch.sampling[row]});
    }
    num_behind_ += begun_.empty() ? 0 : 1;
    begun_.push_back(std::move(step));
    if (!is_late) ComputeAll();
    return OkStatus();
  }

  Status End(std::span<TokenId> tokens) override {
    if (begun_.empty()) return Internal("no step was begun");
    BATON_RETURN_IF_ERROR(device_error);
    Compute(&begun_.front());
    const std::vector<TokenId>& chosen = begun_.front().tokens;
    BATON_CHECK(tokens.size() == chosen.size(), "{} tokens of {}", tokens.size(), chosen.size());
    std::copy(chosen.begin(), chosen.end(), tokens.begin());
    begun_.pop_front();
    return OkStatus();
  }

 private:
  struct Row {
    TokenId token;
    uint32_t position;
    std::vector<uint32_t> blocks;
    kernels::RowSampling sampling;
  };
  struct Step {
    kv::KvView kv;
    std::vector<Row> rows;
    std::vector<TokenId> tokens;  // empty until it is computed
  };

  void ComputeAll() {
    for (Step& step : begun_) Compute(&step);
  }
  void Compute(Step* step) {
    if (!step->tokens.empty()) return;
    std::vector<TokenId> ids;
    std::vector<kernels::AttentionSpan> spans;
    std::vector<uint32_t> logit_rows;
    std::vector<kernels::RowSampling> sampling;
    for (uint32_t i = 0; i < step->rows.size(); ++i) {
      const Row& row = step->rows[i];
      const TokenId id = row.token >= 0 ? row.token : last_tokens_[model::FeedingRow(row.token)];
      ids.push_back(std::max(id, 0));  // a device reads a row of zeros for no token
      spans.push_back(
          {.kv = {row.blocks}, .first_row = i, .num_rows = 1, .first_pos = row.position});
      logit_rows.push_back(i);
      sampling.push_back(row.sampling);
    }
    std::vector<float> logits(ids.size() * kToyVocab);
    const model::ModelBatch batch{.token_ids = ids, .spans = spans, .logit_rows = logit_rows};
    const Status status = toy_.Forward(batch, step->kv, nullptr, logits);
    BATON_CHECK(status.ok(), "{}", status.ToString());
    step->tokens.resize(ids.size());
    Choose(sampling, logits, step->tokens);
    last_tokens_ = step->tokens;
  }
  void Choose(std::span<const kernels::RowSampling> rows, std::span<const float> logits,
              std::span<TokenId> tokens) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].on_device == 0) continue;
      const bool is_damaged = ++num_chosen_ == damaged_row;
      tokens[i] =
          is_damaged ? model::kNoTokenId : ChooseOne(rows[i], logits.subspan(i * kToyVocab));
    }
  }
  TokenId ChooseOne(const kernels::RowSampling& row, std::span<const float> logits) {
    const wire::SamplingParams params{.temperature = row.temperature,
                                      .top_k = row.top_k,
                                      .top_p = row.top_p,
                                      .min_p = row.min_p,
                                      .seed = row.seed};
    model::SamplerState state(params, {}, row.output_index);
    for (uint32_t i = 0; i < row.output_index; ++i) state.Append(0);
    model::SampledToken out;
    const Status status = sampler_.Sample({.params = &params,
                                           .state = &state,
                                           .choice = row.choice,
                                           .logits = logits.first(kToyVocab)},
                                          out);
    return status.ok() ? out.token : model::kNoTokenId;
  }

  ToyModel toy_;
  model::Sampler sampler_{kToyVocab, std::vector<TokenId>{}};
  std::deque<Step> begun_;
  std::vector<TokenId> last_tokens_;  // of the step that was computed last
  uint64_t num_behind_ = 0;
  uint64_t num_chosen_ = 0;
};

}  // namespace baton::engine

#endif  // BATON_TESTS_ENGINE_OVERLAPPING_MODEL_H_
