#include "src/engine/first_token.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

namespace baton::engine {

using kernels::AttentionSpan;
using kv::KvView;
using model::ForwardModel;
using model::ModelBatch;

namespace {

// The likeliest token; Internal when there are no numbers to compare.
StatusOr<TokenId> Likeliest(std::span<const float> logits, uint32_t position) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return Internal("the first token cannot be computed: logit {} at position {} is {}", i,
                      position, logits[i]);
    }
  }
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

StatusOr<TokenId> ComputeFirstToken(ForwardModel* model, const KvView& kv) {
  constexpr uint32_t kSteps = 2;
  std::vector<uint32_t> blocks(kv.layout->BlocksOfSequence(kSteps));
  std::iota(blocks.begin(), blocks.end(), 0);
  const std::span<const uint32_t> state = std::span(blocks).subspan(kv.layout->BlocksFor(kSteps));
  std::vector<float> logits(model->vocab_size());
  const uint32_t logit_row = 0;
  TokenId token{0};
  for (uint32_t position = 0; position < kSteps; ++position) {
    const AttentionSpan span{
        .kv = {blocks, state}, .first_row = 0, .num_rows = 1, .first_pos = position};
    const ModelBatch batch{.token_ids = std::span(&token, 1),
                           .spans = std::span(&span, 1),
                           .logit_rows = std::span(&logit_row, 1)};
    BATON_RETURN_IF_ERROR(model->Forward(batch, kv, nullptr, logits));
    BATON_ASSIGN_OR_RETURN(token, Likeliest(logits, position));
  }
  return token;
}

}  // namespace baton::engine
