#include "src/engine/engine_checks.h"

#include <span>

#include "src/base/limits.h"
#include "src/model/model_config.h"

namespace baton::engine {

using limits::kMaxChoices;
using limits::kMaxDeadlineUs;
using limits::kMaxStopTokens;
using model::GivesVector;
using model::kMinContextTokens;
using model::PoolingName;
using wire::ValidateSamplingParams;

namespace {

Status CheckEmbeds(const RequestSpec& spec, const EngineConfig& config, const EngineParts& parts) {
  if (parts.model->hidden_size() == 0 || !GivesVector(config.pooling)) {
    return FailedPrecondition("this worker's model gives no embeddings: its pooling is \"{}\"",
                              PoolingName(config.pooling));
  }
  const size_t num_replayed = spec.tokens.size() - spec.num_prompt_tokens;
  if (spec.num_choices != 1 || num_replayed > 0 || spec.sampling.grammar) {
    return InvalidArgument(
        "an embedding has one choice, no replayed tokens and no grammar; n {}, replayed {}",
        spec.num_choices, num_replayed);
  }
  return OkStatus();
}

}  // namespace

Status CheckEngine(const EngineConfig& config, const EngineParts& parts) {
  if (parts.model == nullptr || parts.kv == nullptr || parts.listener == nullptr) {
    return InvalidArgument("an engine needs a model, a KV store and a listener");
  }
  if ((parts.transport == nullptr) != (parts.wire == nullptr)) {
    return InvalidArgument("a transport and a wire format go together");
  }
  if (config.max_context < kMinContextTokens || config.max_context > parts.model->max_context()) {
    return InvalidArgument("max_context {} is outside [{}, {}]", config.max_context,
                           kMinContextTokens, parts.model->max_context());
  }
  if (config.scheduler.max_batch_tokens > parts.model->max_rows()) {
    return InvalidArgument("max_batch_tokens {} is above the model's rows, {}",
                           config.scheduler.max_batch_tokens, parts.model->max_rows());
  }
  const uint32_t block_size = parts.kv->layout().block_size;
  if (config.scheduler.max_batch_tokens < config.scheduler.max_running + block_size) {
    return InvalidArgument("max_batch_tokens {} is below max_running {} and a block of {}",
                           config.scheduler.max_batch_tokens, config.scheduler.max_running,
                           block_size);
  }
  if (config.scheduler.checkpoint_tokens % block_size != 0) {
    return InvalidArgument("checkpoint_tokens {} is no multiple of a block of {}",
                           config.scheduler.checkpoint_tokens, block_size);
  }
  const bool guesses = config.speculate != SpeculateMode::kOff || parts.proposer != nullptr;
  if (parts.kv->layout().state_blocks > 0 && guesses) {
    return InvalidArgument(
        "--speculate {}: the model's layers keep a state that no wrong guess can be taken out of; "
        "use off",
        SpeculateModeName(config.speculate));
  }
  if (config.layers_per_group == 0 || config.max_requests == 0 || config.inbox_capacity == 0) {
    return InvalidArgument("layers_per_group {}, max_requests {}, inbox_capacity {}: none may be 0",
                           config.layers_per_group, config.max_requests, config.inbox_capacity);
  }
  return OkStatus();
}

Status CheckSpec(const RequestSpec& spec, const EngineConfig& config, const EngineParts& parts) {
  const size_t num_tokens = spec.tokens.size();
  if (spec.key.attempt == 0) return InvalidArgument("attempt 0: placements count from 1");
  if (num_tokens == 0 || num_tokens >= config.max_context) {
    return InvalidArgument("{} tokens are outside [1, {}]", num_tokens, config.max_context - 1);
  }
  if (spec.num_prompt_tokens == 0 || spec.num_prompt_tokens > num_tokens) {
    return InvalidArgument("num_prompt_tokens {} is outside [1, {}]", spec.num_prompt_tokens,
                           num_tokens);
  }
  if (spec.num_choices == 0 || spec.num_choices > kMaxChoices) {
    return InvalidArgument("n {} is outside [1, {}]", spec.num_choices, kMaxChoices);
  }
  const size_t num_replayed = num_tokens - spec.num_prompt_tokens;
  if (num_replayed > 0 && spec.num_choices > 1) {
    return InvalidArgument("{} replayed tokens with n {}: they belong to one choice", num_replayed,
                           spec.num_choices);
  }
  if (spec.sampling.max_tokens <= num_replayed) {
    return InvalidArgument("max_tokens {} leaves nothing after {} replayed tokens",
                           spec.sampling.max_tokens, num_replayed);
  }
  const uint32_t vocab_size = parts.model->vocab_size();
  for (const std::span<const TokenId> list :
       {std::span<const TokenId>(spec.tokens),
        std::span<const TokenId>(spec.sampling.stop_token_ids)}) {
    for (const TokenId token : list) {
      if (token < 0 || static_cast<uint32_t>(token) >= vocab_size) {
        return InvalidArgument("token {} is outside [0, {})", token, vocab_size);
      }
    }
  }
  if (spec.sampling.stop_token_ids.size() > kMaxStopTokens) {
    return InvalidArgument("{} stop tokens are more than {}", spec.sampling.stop_token_ids.size(),
                           kMaxStopTokens);
  }
  if (spec.deadline_us <= 0 || spec.deadline_us > kMaxDeadlineUs) {
    return InvalidArgument("a deadline of {} us is outside (0, {}]", spec.deadline_us,
                           kMaxDeadlineUs);
  }
  if (spec.kind == RequestKind::kEmbed) BATON_RETURN_IF_ERROR(CheckEmbeds(spec, config, parts));
  if (spec.sampling.grammar && parts.guides == nullptr) {
    return FailedPrecondition("this worker does not constrain answers");
  }
  return ValidateSamplingParams(spec.sampling, vocab_size);
}

}  // namespace baton::engine
