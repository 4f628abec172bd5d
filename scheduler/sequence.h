// Sequence: one choice of one request inside one worker: its tokens, how many of them have their KV
// computed, and its blocks. Plain data, owned by the Scheduler; the engine reads it. Engine thread.
#ifndef BATON_SCHEDULER_SEQUENCE_H_
#define BATON_SCHEDULER_SEQUENCE_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/block_table.h"
#include "kvcache/hash_chain.h"
#include "kvcache/prefix_index.h"
#include "src/base/ids.h"

namespace baton::scheduler {

// Where a sequence stands.
enum class SequenceState : uint8_t {
  kWaiting = 0,     // holds no block: new, or preempted
  kPrefilling = 1,  // holds blocks (see Scheduler); chunks of its tokens are being computed
  kPromptDone = 2,  // computed as far as needed; it leaves by hand-off or Fork (n > 1)
  kReady = 3,       // could decode, but max_running others do
  kRunning = 4,     // decodes one token every step
};
std::string_view SequenceStateName(SequenceState state);

// Why a choice ended at a worker.
enum class FinishReason : uint8_t {
  kNone = 0,    // goes on
  kStop = 1,    // end-of-generation or stop token
  kLength = 2,  // max_tokens, or the context is full
};

// How long a choice may become.
struct SequenceLimits {
  uint32_t max_tokens = 1;   // output tokens, >= 1
  uint32_t max_context = 1;  // prompt and output tokens together

  // Whether a choice with this many prompt and output tokens ends after its last token.
  // `is_stop` = that token is an end-of-generation or stop token that counts.
  FinishReason After(uint32_t num_prompt_tokens, uint32_t num_output_tokens, bool is_stop) const;
  // Tokens of prompt and output at most.
  uint32_t MaxTotalTokens(uint32_t num_prompt_tokens) const;
};

// The work that a request asks of a scheduler.
struct SequenceSpec {
  SequenceId id;  // unique in the worker's life, ascending
  RequestUid uid;
  uint32_t attempt = 1;
  uint32_t choice = 0;             // of the sequence; 0 while n choices share one prompt
  uint32_t num_choices = 1;        // that start when the prompt is done
  std::vector<TokenId> tokens;     // prompt, then replayed output; not empty
  uint32_t num_prompt_tokens = 0;  // how many of them are the prompt, >= 1
  SequenceLimits limits;
  kv::ChainKey chain_key;    // names its blocks in the prefix index; of its tenant
  bool is_cacheable = true;  // its blocks are for the prefix index
  int32_t priority = 0;      // of its request, in its range (src/base/priority.h)
  bool logs_prompt =
      false;            // all rows of the prompt have logits: none is found in the prefix index
  bool embeds = false;  // its rows with logits have hidden states too; it ends with its prompt
};

// See the file comment. Fields are changed by the Scheduler alone.
struct Sequence {
  Sequence(SequenceSpec spec_in, uint32_t block_size)
      : spec(std::move(spec_in)), chain(spec.chain_key, block_size) {}

  SequenceSpec spec;  // spec.tokens grows with the output
  SequenceState state = SequenceState::kWaiting;
  uint32_t num_computed = 0;     // tokens whose KV is in the blocks
  kv::BlockTable table;          // of its tokens
  kv::BlockTable state_table;    // of its fixed state; empty where models have none
  kv::HashChain chain;           // of all its tokens
  uint32_t num_hit_tokens = 0;   // of num_computed, those found in the prefix index
  uint32_t num_kept_blocks = 0;  // at the front, offered to the prefix index already
  uint32_t num_good_blocks = 0;  // of those, up to its last hit or checkpoint: all are numbers
  bool preempted = false;        // lost its blocks once and is computed again
  uint32_t num_preemptions = 0;
  int64_t arrival_us = 0;      // kept over preemptions
  int64_t priority_us = 0;     // smaller runs first; see Scheduler
  bool planned = false;        // is an item of the current plan
  bool planned_ahead = false;  // is an item of the plan after the current one
  bool ended = false;          // finished when it was planned ahead: leaves with that plan
  bool awaits = false;         // its next token cannot be sampled yet; see SetAwaiting
  // Tokens whose KV came by a hand-off. 0: none, or the first choice of the prompt counts them.
  uint32_t num_received_tokens = 0;

  SequenceId id() const { return spec.id; }
  kv::PrefixQuery query() const { return {chain.full_links(), spec.tokens}; }
  uint32_t num_tokens() const { return static_cast<uint32_t>(spec.tokens.size()); }
  uint32_t num_output_tokens() const { return num_tokens() - spec.num_prompt_tokens; }
  uint32_t num_remaining() const { return num_tokens() - num_computed; }
  // The last position whose KV can ever be computed, plus one: the last token is never fed back.
  uint32_t MaxKvTokens() const { return spec.limits.MaxTotalTokens(spec.num_prompt_tokens) - 1; }
};

// Blocks of a waiting prompt that the prefix index has.
struct PrefixHits {
  uint32_t num_blocks = 0;  // that it can go on from
  uint32_t num_idle = 0;    // of those that it would hold, and their state: held by nobody now
};

// The last waiting prompt that did not fit.
struct AdmitRefusal {
  SequenceId id;
  int64_t room = 0;          // blocks for prompts, the fewest since then
  uint32_t num_hits = 0;     // PrefixHits::num_blocks
  uint64_t num_changes = 0;  // kv::PrefixStats::num_changes
};

// The KV of a prompt that is divided among its choices.
struct ComputedPrompt {
  // Blocks of the tokens, then those of the state, then spare ones.
  std::span<const kv::BlockHandle> blocks;
  uint32_t num_released = 0;  // blocks of the tokens before those
  int64_t arrival_us = 0;
};

// How one choice of a divided prompt starts.
struct ChoiceStart {
  SequenceId id;  // of the new sequence
  uint32_t choice = 0;
  TokenId first_token = 0;
  bool finished = false;  // the first token ended it: nothing is started
};

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_SEQUENCE_H_
