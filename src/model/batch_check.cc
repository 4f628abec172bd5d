#include "src/model/batch_check.h"

namespace baton::model {

using kernels::AttentionSpan;
using kv::KvView;

namespace {

// Checks the spans one after the other; knows where the next must begin.
struct SpanChecker {
  const KvView& kv;
  uint32_t max_context;
  uint32_t num_rows;
  uint32_t next_row = 0;

  absl::Status Check(size_t idx, const AttentionSpan& span) {
    if (span.first_row != next_row || span.num_rows == 0 || span.num_rows > num_rows - next_row) {
      return InvalidArgument("span {} covers rows [{}, {} + {}), expected to begin at {} of {}",
                             idx, span.first_row, span.first_row, span.num_rows, next_row,
                             num_rows);
    }
    next_row += span.num_rows;
    if (span.first_pos >= max_context || span.num_rows > max_context - span.first_pos) {
      return InvalidArgument("span {} has positions [{}, {} + {}), the context has {}", idx,
                             span.first_pos, span.first_pos, span.num_rows, max_context);
    }
    const uint32_t need = kv.layout->BlocksFor(span.first_pos + span.num_rows);
    if (span.kv.blocks.size() < need) {
      return InvalidArgument("span {} has {} blocks, {} positions need {}", idx,
                             span.kv.blocks.size(), span.first_pos + span.num_rows, need);
    }
    if (span.kv.state.size() != kv.layout->state_blocks) {
      return InvalidArgument("span {} has {} blocks of its state, the layout has {}", idx,
                             span.kv.state.size(), kv.layout->state_blocks);
    }
    for (uint32_t block : span.kv.state) {
      if (block >= kv.num_blocks) {
        return InvalidArgument("span {} names block {} of its state, the arena has {}", idx, block,
                               kv.num_blocks);
      }
    }
    for (uint32_t block : span.kv.blocks.first(need)) {
      if (block >= kv.num_blocks) {
        return InvalidArgument("span {} names block {}, the arena has {}", idx, block,
                               kv.num_blocks);
      }
    }
    return OkStatus();
  }
};

absl::Status CheckCopies(const ModelBatch& batch, const KvView& kv) {
  for (size_t i = 0; i < batch.state_copies.size(); ++i) {
    const StateCopy& copy = batch.state_copies[i];
    const bool is_next = i == 0 || batch.state_copies[i - 1].span < copy.span;
    if (copy.span >= batch.spans.size() || !is_next) {
      return InvalidArgument("state copy {} is of span {} of {}, out of range or order", i,
                             copy.span, batch.spans.size());
    }
    const uint32_t num_rows = batch.spans[copy.span].num_rows;
    if (copy.num_rows == 0 || copy.num_rows > num_rows) {
      return InvalidArgument("state copy {} is after row {} of a span of {}", i, copy.num_rows,
                             num_rows);
    }
    if (kv.layout->state_blocks == 0 || copy.blocks.size() != kv.layout->state_blocks) {
      return InvalidArgument("state copy {} has {} blocks, a state has {}", i, copy.blocks.size(),
                             kv.layout->state_blocks);
    }
    for (const uint32_t block : copy.blocks) {
      if (block >= kv.num_blocks) {
        return InvalidArgument("state copy {} names block {}, the arena has {}", i, block,
                               kv.num_blocks);
      }
    }
  }
  return OkStatus();
}

}  // namespace

absl::Status CheckBatch(const ModelBatch& batch, const KvView& kv, const BatchLimits& limits,
                        size_t num_logits) {
  const uint32_t rows = batch.num_rows();
  if (batch.token_ids.empty() || batch.token_ids.size() > limits.max_rows) {
    return InvalidArgument("a batch of {} rows is outside [1, {}]", batch.token_ids.size(),
                           limits.max_rows);
  }
  if (kv.layout == nullptr || !(*kv.layout == *limits.layout)) {
    return InvalidArgument("the KV view has another layout than the model");
  }
  for (TokenId token : batch.token_ids) {
    if (token < 0 && FeedingRow(token) < limits.num_feeding) continue;
    if (token < 0 || static_cast<uint32_t>(token) >= limits.vocab_size) {
      return InvalidArgument("token {} is outside [0, {})", token, limits.vocab_size);
    }
  }
  SpanChecker checker{kv, limits.max_context, rows};
  for (size_t i = 0; i < batch.spans.size(); ++i) {
    BATON_RETURN_IF_ERROR(checker.Check(i, batch.spans[i]));
  }
  if (checker.next_row != rows) {
    return InvalidArgument("the spans cover {} of {} rows", checker.next_row, rows);
  }
  BATON_RETURN_IF_ERROR(CheckCopies(batch, kv));
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const uint32_t row = batch.logit_rows[i];
    if (row >= rows || (i > 0 && row <= batch.logit_rows[i - 1])) {
      return InvalidArgument("logit row {} (of {} rows) is out of range or order", row, rows);
    }
  }
  const size_t num_sampled = batch.sampling.size();
  if ((num_sampled != 0 && num_sampled != batch.logit_rows.size()) ||
      batch.tokens.size() != num_sampled) {
    return InvalidArgument("{} rows to sample into {} tokens, logits of {} rows are wanted",
                           num_sampled, batch.tokens.size(), batch.logit_rows.size());
  }
  if (num_logits != batch.logit_rows.size() * limits.vocab_size) {
    return InvalidArgument("room for {} logits, {} rows of {} are wanted", num_logits,
                           batch.logit_rows.size(), limits.vocab_size);
  }
  const size_t num_hidden = batch.logit_rows.size() * limits.hidden_size;
  if (!batch.hidden.empty() && batch.hidden.size() != num_hidden) {
    return InvalidArgument("room for {} hidden elements, {} rows of {} are wanted",
                           batch.hidden.size(), batch.logit_rows.size(), limits.hidden_size);
  }
  return OkStatus();
}

}  // namespace baton::model
