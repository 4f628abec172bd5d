#include "src/engine/engine_state.h"

#include "src/base/limits.h"

namespace baton::engine {

using kv::DeriveChainKey;
using kv::KvLayout;
using kv::PrefixIndex;
using model::Pooling;
using scheduler::kMaxProposalRows;
using scheduler::Proposer;
using scheduler::SchedulerConfig;
using scheduler::SequenceSpec;

namespace {

SchedulerConfig WithLayout(SchedulerConfig config, const KvLayout& layout) {
  config.block_size = layout.block_size;
  config.state_blocks = layout.state_blocks;
  return config;
}

// A fixed state follows the tokens of one sequence: what the index would find of others' prompts
// has none.
bool HasPrefixes(const EngineConfig& config, const KvLayout& layout) {
  return config.prefix_cache && layout.state_blocks == 0;
}

// Null where nothing is guessed.
Proposer* ProposerOf(const EngineConfig& config, const EngineParts& parts, Speculator* own) {
  if (parts.proposer != nullptr) return parts.proposer;
  return config.speculate == SpeculateMode::kOff ? nullptr : own;
}

}  // namespace

EngineState::EngineState(const EngineConfig& config_in, const EngineParts& parts_in)
    : config(config_in),
      parts(parts_in),
      kv_view(parts_in.kv->view()),
      pool(kv_view.num_blocks),
      prefix_index(
          HasPrefixes(config, *kv_view.layout)
              ? std::make_unique<PrefixIndex>(&pool, kv_view.layout->block_size, parts.prefixes)
              : nullptr),
      speculator(config.speculate, &requests),
      scheduler(WithLayout(config.scheduler, *kv_view.layout), &pool, prefix_index.get(),
                ProposerOf(config, parts, &speculator)),
      outbox(parts.listener),
      now_us(parts.clock->NowUs()) {
  outbox.Reserve(2 * MaxItems() + limits::kMaxChoices + limits::kMaxPromptLogRows +
                 kMaxProposalRows);
}

LiveRequest* EngineState::FindLive(const RequestKey& key) const {
  LiveRequest* const request = requests.Find(key.uid);
  return request != nullptr && request->spec.key == key ? request : nullptr;
}

SequenceSpec EngineState::SequenceSpecOf(const LiveRequest& request, SequenceId id) const {
  const bool embeds = request.spec.kind == RequestKind::kEmbed;
  // A mean needs all hidden states, which come with logits.
  const bool logs_prompt = embeds ? config.pooling == Pooling::kMean
                                  : request.spec.sampling.prompt_logprobs.has_value() &&
                                        request.spec.kind != RequestKind::kDest;
  return {.id = id,
          .uid = request.spec.key.uid,
          .attempt = request.spec.key.attempt,
          .choice = 0,
          .num_choices = request.spec.num_choices,
          .tokens = request.spec.tokens,
          .num_prompt_tokens = request.spec.num_prompt_tokens,
          .limits = request.limits,
          .chain_key = DeriveChainKey(config.cluster_secret, request.spec.tenant),
          .is_cacheable = request.spec.is_cacheable,
          .priority = request.spec.priority,
          .logs_prompt = logs_prompt,
          .embeds = embeds};
}

}  // namespace baton::engine
