#include "src/engine/engine_state.h"

#include <algorithm>
#include <bit>

#include "src/base/limits.h"

namespace baton::engine {

using kv::BlockPool;
using kv::DeriveChainKey;
using kv::KvLayout;
using kv::PrefixIndex;
using kv::StateLimits;
using model::Pooling;
using scheduler::kMaxProposalRows;
using scheduler::Proposer;
using scheduler::SchedulerConfig;
using scheduler::SequenceSpec;

namespace {

// Tokens between two checkpoints of a prompt: a power of two, and their KV takes no less memory
// than a checkpoint.
uint32_t CheckpointTokens(const KvLayout& layout) {
  constexpr uint32_t kLeast = 512;
  const uint64_t least = std::max(uint64_t{layout.state_blocks} * layout.block_size,
                                  uint64_t{std::max(kLeast, layout.block_size)});
  const auto tokens = std::bit_ceil(std::min<uint64_t>(least, limits::kMaxContextTokens));
  return layout.BlocksFor(static_cast<uint32_t>(tokens)) * layout.block_size;
}

SchedulerConfig WithLayout(SchedulerConfig config, const KvLayout& layout) {
  config.block_size = layout.block_size;
  config.state_blocks = layout.state_blocks;
  if (layout.state_blocks == 0) {
    config.checkpoint_tokens = 0;
  } else if (config.checkpoint_tokens == 0) {
    config.checkpoint_tokens = CheckpointTokens(layout);
  }
  return config;
}

std::unique_ptr<PrefixIndex> MakePrefixIndex(const EngineConfig& config, const EngineParts& parts,
                                             BlockPool* pool) {
  if (!config.prefix_cache) return nullptr;
  const KvLayout& layout = parts.kv->layout();
  const StateLimits states{.state_blocks = layout.state_blocks,
                           .max_blocks = pool->num_blocks() / limits::kCheckpointShare};
  return std::make_unique<PrefixIndex>(pool, layout.block_size, parts.prefixes, states);
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
      pool(kv_view.num_blocks, parts.kv->ready()),
      prefix_index(MakePrefixIndex(config, parts, &pool)),
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
